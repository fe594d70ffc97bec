def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches(np.arange(3)))
    assert len(padded["history"]) == 64
    real = {name: values[:3] for name, values in padded.items()}
    assert loss_of(padded) == pytest.approx(loss_of(real), rel=1e-5)


def test_training_sees_nothing_that_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_data()
    rows = train.synthesize()
    border = sorted(row[1] for row in rows[1:] if row[2])[int(0.6 * 24 * 707)]
    for row in rows[1:]:
        if row[1] >= border and row[2]:
            row[2:] = "1e6", "7"
    monkeypatch.setattr(train, "synthesize", lambda: rows)
    after = make_data()
    assert before.splits == after.splits
    assert not torch.equal(before.values, after.values)
    for (_, batch), (_, other) in zip(
        before.split_batches("train"), after.split_batches("train"), strict=True
    ):
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def write_table(path: str, order: list[int]) -> np.ndarray:
    """Write two series of 60 and 40 days, whose values tell where they are."""
    rows = [f"b,{day},{day},{day % 7}" for day in range(60)]
    rows += [f"a,{day},{1000 + day},{day % 7}" for day in range(40)]
    for day in (40, 41):  # to forecast, and one row more than the horizon has
        rows.append(f"a,{day},,{day % 7}")
    Path(path).write_text("\n".join(["shop,day,sales,offer", *(rows[place] for place in order)]))
    return np.array([*range(1000, 1040), *range(60)])


def test_a_window_is_in_one_series_in_whatever_order_the_file_is() -> None:
    sizes = ["--history", "5", "--horizon", "2", "--split", "rest,8,6"]
    columns = ["--series", "shop", "--known", "offer"]
    hashes = set()
    for order in (range(102), np.random.default_rng(0).permutation(102)):
        sales = write_table("table.csv", [*order])
        data = make_data("--data", "table.csv", *columns, *sizes)
        hashes.add(data.facts["sha256"])
        firsts = {"train": [], "validation": [], "test": [], "future": []}
        for split, found in firsts.items():
            for numbers, batch in data.split_batches(split):
                window = batch["history"][: len(numbers), :, 0]
                assert (window.diff(dim=1) == 1).all()  # one series, without a gap
                found += window[:, 0].int().tolist()
                if split != "future":
                    target = batch["target"][: len(numbers), :, 0]
                    assert torch.equal(target, window[:, -1:] + torch.tensor([1, 2]))
    assert len(hashes) == 1
    assert set(firsts["train"] + firsts["test"]) < set(sales.tolist())
    # Targets of a split are in it; histories reach back.
    assert firsts["train"] == [*range(1000, 1020), *range(40)]
    assert firsts["validation"] == [*range(1021, 1028), *range(41, 48)]
    assert firsts["test"] == [*range(1029, 1034), *range(49, 54)]
    assert firsts["future"] == [1035]  # of the other, no offer is known


def test_forecasts_follow_the_last_targets() -> None:
    assert train.main([*SMALL, "--max_steps", "30", "--learning_rate", "0.01"]) == 0
    header, *lines = (newest_run() / "forecasts.csv").read_text().splitlines()
    assert header == "series,after,step,sales"
    assert len(lines) == 24 * 7
    *_, last = records()
    assert last["mase"] < last["mase_naive"]
    for line in (lines[0], lines[-1]):
        series, after, _, sales = line.split(",")
        assert after == "2025-12-07"
        known = [float(row[2]) for row in train.synthesize() if row[0] == series and row[2]]
        assert min(known) / 2 < float(sales) < 2 * max(known)
