def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches(np.arange(3)))
    assert len(padded[0]) == 16
    assert loss_of(padded) == pytest.approx(loss_of([part[:3] for part in padded]), rel=1e-5)


def test_training_sees_nothing_that_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names, values = train.synthesize()
    before = make_data()
    values[1200:] += 1000  # the rows after the training rows
    monkeypatch.setattr(train, "synthesize", lambda: (names, values))
    after = make_data()
    assert before.splits == after.splits
    for (_, batch), (_, other) in zip(
        before.split_batches("train"), after.split_batches("train"), strict=True
    ):
        assert all(map(torch.equal, batch, other))


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
