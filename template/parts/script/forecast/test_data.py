def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, (*padded, changes) = next(data.batches(np.arange(3)))
    assert len(padded[0]) == 64
    real = [part[:3] for part in padded]
    assert loss_of([*padded, changes]) == pytest.approx(loss_of([*real, changes]), rel=1e-5)


def test_training_sees_nothing_that_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = train.synthesize()
    before = make_data()
    for row in rows[1:]:
        if row[1] >= "2025-03-14":  # 0.6 of 730 days later
            row[2:] = "1e6", "7"
    monkeypatch.setattr(train, "synthesize", lambda: rows)
    after = make_data()
    assert before.splits == after.splits
    assert not torch.equal(before.values, after.values)
    batches = zip(before.split_batches("train"), after.split_batches("train"), strict=True)
    for (_, (*batch, _)), (_, (*other, _)) in batches:
        assert all(map(torch.equal, batch, other))


SERIES = {"a": range(1000, 1040), "b": range(60)}  # values that tell where they are


def write_table(order: Iterator[int]) -> None:
    """Write two series, and two rows without targets, in some order."""
    rows = ["a,98,,1", "b,99,,1"]
    for name, values in SERIES.items():
        rows += [f"{name},{day},{value},{day % 7}" for day, value in enumerate(values)]
    text = "\n".join(["shop,day,sales,offer", *(rows[place] for place in order)])
    Path("table.csv").write_text(text)


def test_a_window_is_in_one_series_whatever_the_order_of_rows_is() -> None:
    flags = ["--series", "shop", "--known", "offer", "--history", "5", "--horizon", "2"]
    hashes = set()
    for order in (range(102), np.random.default_rng(0).permutation(102)):
        write_table(iter(order))
        data = make_data("--data", "table.csv", *flags, "--split", "rest,8,6")
        hashes.add(data.facts["sha256"])
        firsts: dict[str, list[int]] = {}
        for split in data.splits:
            firsts[split] = []
            for numbers, (history, future, *_) in data.split_batches(split):
                windows = torch.cat([history, future], 1)[: len(numbers), :, 0]
                assert (windows.diff(dim=1) == 1).all()  # of one series, without a gap
                firsts[split] += windows[:, 0].int().tolist()
        # All targets are in the split, and histories reach back.
        assert firsts["train"] == [*range(1000, 1020), *range(40)]
        assert firsts["validation"] == [*range(1021, 1028), *range(41, 48)]
        assert firsts["test"] == [*range(1029, 1034), *range(49, 54)]
    assert len(hashes) == 1


def test_mase_and_smape_are_means_over_the_series() -> None:
    write_table(iter(range(102)))
    flags = ["--data", "table.csv", "--series", "shop", "--known", "offer", "--season", "3"]
    trainer = make_trainer(*flags, "--history", "5", "--horizon", "2", "--split", "rest,8,6")
    errors: dict[str, list[float]] = {name: [] for name in SERIES}
    ratios: dict[str, list[float]] = {name: [] for name in SERIES}
    with torch.no_grad():
        for _, batch in trainer.data.split_batches("test"):
            history, future, is_real, _, std, _ = batch
            forecast, mean, scale = trainer.model.eval()(history, future, std)
            forecast = (forecast * scale + mean)[is_real].flatten()
            truths = future[is_real][..., 0].flatten()
            for value, truth in zip(forecast.tolist(), truths.tolist(), strict=True):
                name = "a" if truth >= 1000 else "b"
                errors[name].append(abs(value - truth) / 3)  # a season before, it was 3 less
                ratios[name].append(200 * abs(value - truth) / (abs(value) + abs(truth)))
    metrics = trainer.evaluate("test")
    for name, values in (("mase", errors), ("smape", ratios)):
        expected = np.mean([np.mean(of_series) for of_series in values.values()])
        assert metrics[name] == pytest.approx(expected, rel=1e-4)
