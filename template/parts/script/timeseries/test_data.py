def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches(np.arange(3)))
    assert len(padded[0]) == 16
    assert loss_of(padded) == pytest.approx(loss_of([part[:3] for part in padded]), rel=1e-5)


def test_no_window_sees_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names, values = train.synthesize()
    true = make_data()
    # the first target of window 10; the first row after training
    for row in (24 + 10, 1200):
        changed_values = values.copy()
        changed_values[row:] += 1000
        monkeypatch.setattr(train, "synthesize", lambda changed=changed_values: (names, changed))
        changed = make_data()
        assert true.splits == changed.splits
        windows = np.arange(10, 11) if row < 1200 else np.array(true.splits["train"])
        for (_, before), (_, after) in zip(
            true.batches(windows), changed.batches(windows), strict=True
        ):
            if row == 1200:
                assert torch.equal(before[0], after[0])
                assert torch.equal(before[1], after[1])
            else:
                # Standardized by another scale: only the change within the history can be compared.
                scale = torch.tensor(changed.facts["std"]) / torch.tensor(true.facts["std"])
                changes = [(batch[0] - batch[0][:, -1:]) for batch in (before, after)]
                assert torch.allclose(changes[0], changes[1] * scale, atol=1e-2)


def test_targets_follow_the_history() -> None:
    data = make_data()
    _, values = train.synthesize()
    mean = torch.tensor(data.facts["mean"])
    std = torch.tensor(data.facts["std"])
    series = (torch.from_numpy(values) - mean) / std
    ends = {"train": 1200, "validation": 1500, "test": 1800}
    for split, end in ends.items():
        windows = np.array(data.splits[split])[[0, -1]]
        assert windows[1] + 24 + 4 == end
        _, (history, target, _) = next(data.batches(windows))
        for place, row in enumerate(windows):
            assert torch.equal(history[place], series[row : row + 24])
            assert torch.equal(target[place], series[row + 24 : row + 28])
    assert data.splits["validation"][0] + 24 == 1200


def test_wrong_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gap.csv").write_text("time,a\n2024-01-01,1\n2024-01-02,\n")
    Path("twice.csv").write_text("time,a,a\n2024-01-01,1,2\n")
    Path("underscore.csv").write_text("time,a\n2024-01-01,1_2\n")
    wrong = {
        "--data gap.csv": "gap.csv, row 3",
        "--data twice.csv": "3 cells for 2 different column names: twice.csv, row 1",
        "--data underscore.csv": "a cell is not a finite number: underscore.csv, row 2",
        "--split 0.6,0.2,0.1": "fractions that add up to 1",
    }
    for arguments, reason in wrong.items():
        assert reason in error_of(arguments, capsys)
