def test_padding_changes_no_loss() -> None:
    data = make_data()
    _, padded = next(data.batches("train", np.arange(3)))
    whole = {name: values[:3] for name, values in padded.items()}
    assert len(padded["features"]) == 4
    assert not padded["listed"][3].any()
    assert loss_of(padded) == pytest.approx(loss_of(whole), rel=1e-5)


def test_no_day_sees_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither features nor graphs nor scales of training days change with later prices."""
    before = make_data()
    count = len(before.splits["train"])
    last_day = before.days[count - 1] + 1  # its target is the day after it
    stocks = train.synthesize()
    for number, stock in enumerate(stocks):
        later = np.arange(len(stock.dates)) > last_day
        prices = np.where(later[:, None], 7 * stock.prices, stock.prices)
        adjusted = np.where(later, 7 * stock.adjusted, stock.adjusted)
        stocks[number] = stock._replace(prices=prices, adjusted=adjusted)
    monkeypatch.setattr(train, "synthesize", lambda: stocks)
    after = make_data()
    assert after.scale == before.scale
    assert after.facts["sha256"] != before.facts["sha256"]
    for (_, batch), (_, other) in zip(
        before.split_batches("train"), after.split_batches("train"), strict=True
    ):
        for name in batch:
            assert torch.equal(batch[name].nan_to_num(), other[name].nan_to_num()), name


def test_graphs_from_the_file_are_those_of_a_batch() -> None:
    rebuilt = make_data("--cached_graphs", "0")
    for (_, batch), (_, other) in zip(
        make_data().split_batches("validation"), rebuilt.split_batches("validation"), strict=True
    ):
        assert torch.equal(batch["neighbors"], other["neighbors"])
        assert (batch["neighbors"][batch["listed"]] >= 0).any()


def test_neighbors_are_the_most_correlated() -> None:
    returns = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    returns[:, 3] = -returns[:, 1] + 0.01 * returns[:, 0]
    expected = np.abs(np.corrcoef(returns.double().numpy().T))
    np.fill_diagonal(expected, -1)
    neighbors = train.correlated(returns, 2, overlap=3)
    assert neighbors.tolist() == np.argsort(-expected, axis=1)[:, :2].tolist()


def test_wrong_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    header = "date,open,high,low,close,volume\n"
    for name, text in {
        "column": "date,open,high,low,close\n2024-01-02,1,1,1,1\n",
        "date": f"{header}2024-31-01,1,1,1,1,9\n",
        "price": f"{header}2024-01-02,1,1,0,1,9\n",
        "few": f"{header}2024-01-02,1,1,1,1,9\n",
    }.items():
        Path(name).mkdir()
        Path(name, "A.csv").write_text(text)
    wrong = {
        "--width 9": "is no multiple of --heads 4",
        "--data .": "no .csv or .csv.gz file in the folder",
        "--data column": "no column 'volume'",
        "--data date": "A.csv, row 2",
        "--data price": "a price of 0 or below",
        "--data few": "have --window 20 days: add more",
        "--split 0.6,0.2,0.1": "fractions that add up to 1",
    }
    for arguments, reason in wrong.items():
        assert reason in error_of(arguments, capsys)
