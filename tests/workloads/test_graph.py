"""The workload `graph`: samples that know no future, files of prices and what is wrong with
them."""

import bz2
import re
from typing import Any

import numpy as np
import pytest
import stocks
import torch
from rendering import REPOSITORY
from running import documented, evaluation_of, losses, newest_run, one_error
from stocks import (
    GRAPH,
    HEADER,
    NAMES,
    TRAIN,
    batches,
    csv_lines,
    dates,
    module,
    prepare,
    prepared,
    prices,
    store,
    write_folder,
)


@pytest.fixture
def opened(tmp_path_factory):
    return stocks.example(tmp_path_factory.getbasetemp())


def rows(opened, name):
    return opened.arrays[name].rows()


# ---- no future ---------------------------------------------------------------------------------


def test_noise_after_the_border_changes_nothing_before_it(tmp_path):
    """Other prices and volumes on every day after the last one that training may use."""
    flags = ("--horizons", "1,3", "--split", "120,40,30")
    clean = prepared(tmp_path / "clean", *flags)
    opened = store(clean)
    border = rows(opened, "dates")[opened.splits["validation"][0]].astype("datetime64[D]")
    first = int(np.searchsorted(dates(220), border))
    random = np.random.default_rng(1)
    table = prices()
    for values in table.values():
        noise = np.exp(random.normal(2, 1, (220 - first, 4)))
        noise.sort(1)
        values[first:, :4] = noise[:, [1, 3, 0, 2]]
        values[first:, 4] = random.integers(1, 10**6, 220 - first)
    noisy = prepared(tmp_path / "noisy", *flags, table=table)
    changed = store(noisy)
    assert opened.facts == changed.facts  # scalers among them
    assert opened.splits == changed.splits
    known = 8 * (rows(opened, "days")[: opened.splits["train"][1], 0].max() + 1)
    ours = rows(opened, "neighbors")
    theirs = rows(changed, "neighbors")
    assert (ours[:known] == theirs[:known]).all()
    assert (ours != theirs).any()
    words = (*TRAIN, "--data.batch_size", "4", "--training.max_steps", "30")
    for place in (clean, noisy):
        GRAPH.done(*words, cwd=place)
    assert losses(clean) == losses(noisy)
    assert len(losses(clean)) == 30


def test_features_and_targets_are_those_of_the_formulas(opened):
    table = prices()["bee"]
    opening, high, low, close = np.log(np.round(table[:, :4], 6)).T
    returns = np.diff(close)
    ranges = high - low
    volume = np.log1p(table[:, 4])
    expected = [
        returns[49],
        ranges[50],
        close[50] - opening[50],
        abs(returns[49]),
        volume[50] - volume[31:51].mean(),
        ranges[46:51].mean(),
        ranges[29:51].mean(),
    ]
    row = 220 + 50  # stocks are in the order of their names: bee behind ant
    np.testing.assert_allclose(rows(opened, "features")[row], expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(rows(opened, "target")[row], ranges[51], rtol=1e-5)


@pytest.mark.parametrize("kind", ["return", "range", "volatility"])
def test_targets_of_several_days(kind, tmp_path):
    opened = store(prepared(tmp_path, "--target", kind, "--horizons", "1,4"))
    target = rows(opened, "target")[:220]
    _, high, low, close = np.log(np.round(prices()["ant"][:, :4], 6)).T
    returns = np.diff(close)
    ranges = high - low
    expected = {
        "return": [returns[20], returns[20:24].sum()],
        "range": [ranges[21], ranges[21:25].mean()],
        "volatility": [abs(returns[20]), np.sqrt((returns[20:24] ** 2).mean())],
    }[kind]
    np.testing.assert_allclose(target[20], expected, rtol=1e-4, atol=1e-7)
    assert np.isnan(target[-1]).all()
    assert np.isnan(target[-4:, 1]).all()


def test_graphs_are_those_of_the_past_correlations(opened):
    facts = opened.facts
    days = rows(opened, "days")
    neighbors = rows(opened, "neighbors").reshape(-1, 8, 3)
    closes = [np.round(values[:, 3], 6) for values in prices().values()]
    returns = np.diff(np.log(closes)).T
    assert len(neighbors) > 3
    for graph, day in dict(days.tolist()).items():
        past = returns[max(0, day - facts["correlation_days"]) : day]  # number d − 1 is of day d
        if len(past) < facts["overlap"]:
            assert (neighbors[graph] == -1).all()
            continue
        strength = np.abs(np.corrcoef(past.T)) - 2 * np.eye(8)
        strongest = np.argsort(-strength)[:, :3]
        assert np.array_equal(np.sort(neighbors[graph]), np.sort(strongest))
    age = rows(opened, "dates") - dates(220).astype(np.int64)[days[:, 1]]
    assert ((age >= 0) & (age < facts["refresh"])).all()


def test_graphs_of_many_stocks_are_the_same_in_blocks(monkeypatch):
    dataset = module("dataset")
    returns = torch.randn(40, 8)
    returns[:30, 2] = torch.nan
    whole = dataset.correlated(returns, 3, 20)
    monkeypatch.setattr(dataset, "STOCKS_AT_ONCE", 3)
    assert dataset.correlated(returns, 3, 20).equal(whole)
    assert (whole[2] == -1).all()


@pytest.mark.parametrize("split", ["train", "test"])
def test_cached_graphs_are_those_rebuilt_for_each_batch(split, opened):
    rebuilt = batches(opened, split, "--graph_builder.use_in_training", "true")
    for ours, theirs in zip(batches(opened, split), rebuilt, strict=True):
        assert torch.equal(ours["neighbors"].sort(2).values, theirs["neighbors"].sort(2).values)


def days_of_stock(opened, number):
    """The days on which a stock has a seat."""
    seats = rows(opened, "seats")
    has_seat = ((rows(opened, "stock")[seats] == number) & (seats >= 0)).any(1)
    return np.searchsorted(dates(220).astype(np.int64), rows(opened, "dates")[has_seat]).tolist()


def test_listings_delistings_and_gaps(tmp_path):
    """A stock takes part on days that it trades with a whole window behind it, and no other."""
    table = prices()
    pause = csv_lines(table["cat"]).splitlines(keepends=True)
    place = prepared(
        tmp_path,
        bee=csv_lines(table["bee"][100:], first=100),
        cat="".join(pause[:81] + pause[91:]),
        dog=csv_lines(table["dog"][:150]),
        elk=csv_lines(table["elk"][:9]),
    )
    opened = store(place)
    assert opened.facts["tickers"] == ["ant", "bee", "cat", "dog", "fox", "gnu", "hen"]
    stock = rows(opened, "stock")
    assert days_of_stock(opened, 0) == list(range(9, 220))
    assert days_of_stock(opened, 1) == list(range(109, 220))
    assert days_of_stock(opened, 2) == [*range(9, 80), *range(90, 220)]
    assert days_of_stock(opened, 3) == list(range(9, 150))
    target = rows(opened, "target")
    assert np.isnan(target[np.flatnonzero(stock == 2)[79]]), "its next day is not the next one"
    assert np.isnan(target[np.flatnonzero(stock == 3)[-1]])
    for batch in batches(opened, "train"):
        neighbors = batch["neighbors"]
        is_listed = batch["listed"].gather(1, neighbors.clamp(min=0).flatten(1))
        assert (is_listed.view_as(neighbors) | (neighbors < 0)).all()
        assert not (neighbors == torch.arange(neighbors.shape[1])[:, None]).any()
        assert (neighbors[~batch["listed"]] == -1).all()
    GRAPH.done(*TRAIN, cwd=place)


# ---- files -------------------------------------------------------------------------------------

ANT = csv_lines(prices()["ant"])


def changed(row, column, cell):
    """The file of `ant` with another cell; rows count from 1."""
    lines = ANT.splitlines()
    cells = lines[row].split(",")
    cells[HEADER.strip().split(",").index(column)] = cell
    lines[row] = ",".join(cells)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("ant", "says"),
    [
        (changed(5, "low", "0"), ["a price is 0 or below", "ant.csv, row 5"]),
        (changed(7, "high", "0.01"), ["high is below the low", "row 7"]),
        (changed(7, "open", "n.a."), ["'n.a.' is not a finite number", "row 7", "'open'"]),
        (changed(7, "date", "01/02/2020"), ["'01/02/2020' is not a time", "row 7", "2024-01-31"]),
        (ANT + ANT.splitlines()[-1] + "\n", ["ant has two rows of 20", "prices: remove one"]),
        (ANT.replace("close", "last"), ["no column 'close'", "ant.csv"]),
        (
            ANT.replace("\n", ",a,b\n").replace("a,b", "symbol,ticker", 1),
            ["2 columns 'ticker'", "ant.csv", "--ticker"],
        ),
        (ANT + "2030-01-01,1\n", ["Row #222: Expected 6 columns, got 2", "ant.csv"]),
    ],
)
def test_a_bad_file_is_one_line(ant, says, tmp_path):
    write_folder(tmp_path / "prices")
    (tmp_path / "prices/ant.csv").write_text(ant)
    one_error(prepare(tmp_path), *says)
    assert not (tmp_path / "data" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--window 300", ["no stock has 300 days", "--window"]),
        ("--window 1", ["1 is too few", "--window", "at least 2"]),
        ("--horizons 2,2", ["'2,2' is not a list of horizons"]),
        ("--horizons 1,40", ["40 days is longer than the validation split of 25", "1,40"]),
        ("--split 300,20,20", ["210 cannot be split into 300, 20, 20"]),
        ("--input nowhere", ["no such file or folder", "nowhere"]),
    ],
)
def test_a_bad_flag_is_one_line(flags, says, tmp_path):
    write_folder(tmp_path / "prices")
    one_error(prepare(tmp_path, *flags.split()), *says)
    assert not (tmp_path / "data" / "manifest.json").exists()


def test_tickers_that_differ_only_in_case_are_one_line(tmp_path):
    write_folder(tmp_path / "prices")
    lines = [f"{line},ANT" for line in ANT.splitlines()[1:]]  # works where `ANT.csv` is `ant.csv`
    (tmp_path / "prices/upper.csv").write_text("\n".join([HEADER.strip() + ",ticker", *lines]))
    one_error(prepare(tmp_path), "two stocks differ only in case: 'ANT' and 'ant': prices: write")


def test_odd_files_are_counted(tmp_path):
    """A missing volume or price, a stock that overlaps with none, a short one."""
    without_volume = changed(30, "volume", "nan").splitlines()[:60]
    without_price = changed(60, "open", "").splitlines()[60:]
    write_folder(
        tmp_path / "prices",
        ant="\n".join([*without_volume, *without_price]),
        zoe=csv_lines(prices()["bee"][:30], first=400),
        yak=csv_lines(prices()["cat"][:5]),
    )
    (tmp_path / "prices" / "notes.md").write_text("not a table")
    printed = prepare(tmp_path).out
    for line in (
        "rows left out: a price is missing: 1",
        "rows without a volume, treated as the usual volume: 1",
        "stocks left out: fewer than 10 days: 1",
        "stocks: +9, at most 8 a day",
    ):
        assert re.search(line, printed), (line, printed)
    GRAPH.done(*TRAIN, cwd=tmp_path)
    assert "nan" not in GRAPH.done("evaluate", cwd=tmp_path).out


def long_lines():
    """Rows of all stocks with their names at the end, in any order."""
    lines = []
    for name, values in prices().items():
        for line in csv_lines(values).splitlines()[1:]:
            lines.append(f"{line},{name}\n")
    np.random.default_rng(0).shuffle(lines)
    return lines


def test_rows_of_a_stock_come_together_over_blocks_and_files(tmp_path, monkeypatch):
    """Days of all stocks in any order, in two files of many blocks."""
    monkeypatch.setattr(module("prepare.tables"), "BLOCK_BYTES", 4096)
    lines = long_lines()
    for name, of_file in (("a", lines[:500]), ("b", lines[500:])):
        (tmp_path / f"{name}.csv").write_text(HEADER.strip() + ",ticker\n" + "".join(of_file))
    read = module("prepare.stocks").read_stocks(tmp_path, {})[0]
    assert list(read) == list(NAMES)
    # A stock a file, in folders and behind links.
    for number, (name, values) in enumerate(prices().items()):
        folder = tmp_path / "stocks" / ("deep" if number % 2 else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.csv.bz2").write_bytes(bz2.compress(csv_lines(values).encode()))
    (tmp_path / "stocks/circle").symlink_to(".")
    (tmp_path / "link").symlink_to("stocks")
    by_file = module("prepare.stocks").read_stocks(tmp_path / "link", {})[0]
    assert list(by_file) == list(NAMES)
    for name, stock in [*read.items(), *by_file.items()]:
        np.testing.assert_array_equal(stock.dates, dates(220))
        expected = np.round(prices()[name], 6)
        np.testing.assert_array_equal(np.c_[stock.prices, stock.volume], expected)
        np.testing.assert_array_equal(stock.adjusted, stock.prices[:, 3])


def test_a_split_of_shares_is_no_return(tmp_path, opened):
    """Adjusted closes make the returns: a split of shares that halves all prices changes no
    feature."""
    halved = prices()["ant"]
    halved[100:, :4] /= 2
    lines = [HEADER.strip() + ",Adj Close"]
    for line, real in zip(csv_lines(halved).splitlines()[1:], ANT.splitlines()[1:], strict=True):
        lines.append(f"{line},{real.split(',')[4]}")
    place = prepared(tmp_path, ant="\n".join(lines) + "\n")
    np.testing.assert_allclose(rows(store(place), "features"), rows(opened, "features"), atol=2e-5)
    for name in ("Adj. Close", "adjClose", "Adj Close*", "Close (adj)", "Adjusted_Close"):
        (tmp_path / "one.csv").write_text(
            "\n".join([lines[0].replace("Adj Close", name), *lines[1:]])
        )
        (stock,) = module("prepare.stocks").read_stocks(tmp_path / "one.csv", {})[0].values()
        np.testing.assert_allclose(stock.adjusted, np.round(prices()["ant"][:, 3], 6))


# ---- own columns, own edges --------------------------------------------------------------------


def long_table(place, changed_from=220):
    """One file with a column `Name`, an own column with gaps, and a column of texts.

    changed_from: the own column has noise from this day on.
    """
    random = np.random.default_rng(3)
    mood = random.normal(5, 2, (8, 220))
    mood[:, changed_from:] = np.random.default_rng(changed_from).normal(size=(8, 220))[
        :, changed_from:
    ]
    lines = [HEADER.strip() + ",Name,mood,sector"]
    for number, (name, values) in enumerate(prices().items()):
        for day, line in enumerate(csv_lines(values).splitlines()[1:]):
            cell = "" if day % 20 == 7 else f"{mood[number, day]:.4f}"
            lines.append(f"{line},{name},{cell},energy")
    place.mkdir(parents=True, exist_ok=True)
    (place / "prices").write_text("\n".join(lines) + "\n")
    return np.where(np.arange(220) % 20 == 7, np.nan, mood)


def test_a_column_names_the_stocks_and_own_columns_are_features(tmp_path):
    mood = long_table(tmp_path)
    one_error(prepare(tmp_path), "prices has two rows of 2020-01-01", "add --ticker COLUMN")
    flags = ("--ticker", "Name", "--features", "mood")
    for wrong, says in (
        (("--ticker", "Nmae"), "no column 'Nmae': .*did you mean one of Name"),
        ((*flags, "--features", "sector"), "'energy' is not a finite number: .*row 1, .*'sector'"),
        ((*flags, "--features", "age"), "no column 'age'"),
    ):
        one_error(prepare(tmp_path, *wrong), says)
    printed = prepare(tmp_path, *flags).out
    for line in (
        "features:     return, range, body, size, volume, week, month, mood",
        "2020-01-14:   8 stocks, each 10 days of 8 features → range",
        "left out:     3 days: after the splits, or their target reaches beyond a split",
        "empty cells of --features, treated as the mean: 88",
        "columns left out, see --features: sector: 1",
    ):
        assert line in printed
    opened = store(tmp_path)
    assert opened.facts["tickers"] == list(NAMES)
    np.testing.assert_allclose(rows(opened, "features")[:, 7], mood.ravel(), atol=1e-4)
    days = opened.splits["train"][1] + 9
    seen = mood[:, :days]
    np.testing.assert_allclose(opened.facts["features"][7]["std"], np.nanstd(seen), rtol=0.05)

    for words in (TRAIN, ("evaluate",), ("predict", "--output", "old.npz")):
        GRAPH.done(*words, cwd=tmp_path)
    assert "nan" not in losses(tmp_path)
    # New files are read as `prepare` did; a flag overrides the name.
    text = (tmp_path / "prices").read_text().replace("Name", "Stock")
    (tmp_path / "renamed").write_text(text)
    for name, flag in (("prices", ()), ("renamed", ("--ticker", "Stock"))):
        words = ("predict", "--input", name, *flag, "--output", f"{name}.npz")
        GRAPH.done(*words, cwd=tmp_path)
    one, other = (np.load(tmp_path / f"{name}.npz")["prediction"] for name in ("prices", "renamed"))
    np.testing.assert_array_equal(one, other)
    assert np.isfinite(one).all()


def test_noise_in_an_own_column_after_the_border_changes_nothing_before_it(tmp_path):
    flags = ("--split", "120,40,30", "--ticker", "Name", "--features", "mood")
    measured = []
    for place, changed_from in ((tmp_path / "clean", 220), (tmp_path / "noisy", 129)):
        long_table(place, changed_from)
        assert prepare(place, *flags).code == 0
        opened = store(place)
        border = opened.splits["train"][1]
        assert border <= 120
        measured.append((opened.facts, rows(opened, "features").reshape(8, 220, 8)))
    (facts, clean), (same, noisy) = measured
    assert facts == same
    np.testing.assert_array_equal(clean[:, :129], noisy[:, :129])
    assert (clean[:, 129:, 7] != noisy[:, 129:, 7]).any()


EDGES = """from,to,weight,first date
bee,ant,0.5,2020-01-01
cat,ant,-0.9,2020-01-01
dog,ant,0.7,2020-01-01
elk,ant,0.1,2020-01-01
bee,ant,0,2020-06-01
hen,bee,1,2020-05-20
ant,ant,1,2020-01-01
yak,bee,1,2020-01-01
"""


def test_own_edges_are_the_graphs_from_their_first_dates_on(tmp_path):
    """The three strongest into a stock, with a later row in place of an earlier one."""
    (tmp_path / "edges.csv").write_text(EDGES)
    short = csv_lines(prices()["cat"][:5])
    prepared(tmp_path, "--edges", "edges.csv", yak=short)
    opened = store(tmp_path)
    names = opened.facts["tickers"]
    neighbors = rows(opened, "neighbors").reshape(-1, 8, 3)
    graph_dates = dates(220)[rows(opened, "days")[:, 1]]
    for graph, date in zip(rows(opened, "days")[:, 0], graph_dates, strict=True):
        first = (
            ["cat", "dog", "bee"] if date < np.datetime64("2020-06-01") else ["cat", "dog", "elk"]
        )
        of_bee = ["hen"] if date >= np.datetime64("2020-05-20") else []
        found = [[names[stock] for stock in row if stock >= 0] for row in neighbors[graph]]
        assert found == [first, of_bee, *[[]] * 6]
    assert len(set(graph_dates)) > 3

    # Training uses them, also where graphs would be computed for each batch.
    rebuilt = batches(opened, "test", "--graph_builder.use_in_training", "true")
    for ours, theirs in zip(batches(opened, "test"), rebuilt, strict=True):
        assert torch.equal(ours["neighbors"], theirs["neighbors"])
    GRAPH.done(*TRAIN, cwd=tmp_path)
    GRAPH.done("predict", "--output", "old.npz", cwd=tmp_path)
    words = ("predict", "--input", "prices", "--output", "new.npz")
    one_error(GRAPH.run(*words, cwd=tmp_path), "trained with own edges: --edges")
    GRAPH.done(*words, "--edges", "edges.csv", cwd=tmp_path)
    old, new = (np.load(tmp_path / f"{name}.npz") for name in ("old", "new"))
    keys = list(zip(new["date"], new["ticker"], strict=True))
    picked = [keys.index(key) for key in zip(old["date"], old["ticker"], strict=True)]
    np.testing.assert_allclose(new["prediction"][picked], old["prediction"], rtol=1e-5)


def test_bad_edges_are_one_line(tmp_path):
    write_folder(tmp_path / "prices")
    header = "from,to,weight,first date\nbee,ant,1,2020-01-01\n"
    for row, says in (
        ("emu,ant,1,2020-01-01", "an edge of an unknown stock: .*row 2: fix"),
        ("ant,,1,2020-01-01", "an edge of an unknown stock: .*row 2: fix"),
        ("ant,bee,,2020-01-01", "an edge without a weight: .*row 2: fix"),
        ("ant,bee,strong,2020-01-01", "'strong' is not a finite number: .*row 2, .*'weight'"),
        ("ant,bee,1,2031-01-01", "begins after the last day, 2020-11-03: .*row 2: fix"),
        ("ant,bee,1,", "is not a time .*row 2, column 'first date'"),
    ):
        (tmp_path / "edges.csv").write_text(header + row + "\n")
        one_error(prepare(tmp_path, "--edges", "edges.csv"), says, "edges.csv")
    (tmp_path / "edges.csv").write_text("source,target,weight\nant,bee,1\n")
    one_error(prepare(tmp_path, "--edges", "edges.csv"), "no column 'from': .*edges.csv")
    one_error(prepare(tmp_path, "--edges", "nowhere.csv"), "no such file", "nowhere.csv")
    assert not (tmp_path / "data" / "manifest.json").exists()


# ---- evaluation and predictions ----------------------------------------------------------------


def test_predictions_are_those_that_evaluation_measures(tmp_path):
    bee = csv_lines(prices()["bee"][100:], first=100)
    place = prepared(tmp_path, "--horizons", "1,3", bee=bee)
    for words in (TRAIN, ("evaluate",), ("predict",), ("predict", "--output", "old.csv")):
        GRAPH.done(*words, cwd=place)
    old = np.load(newest_run(place) / "predictions.npz")
    evaluation = evaluation_of(place)
    batches = GRAPH.batches(store(place), "test")
    target = torch.cat([batch["target"][batch["listed"]] for batch in batches]).numpy()
    error = old["prediction"] - target
    assert old["horizons"].tolist() == [1, 3]
    expected = pytest.approx(evaluation["metrics"]["mse_original"], rel=1e-4)
    assert np.nanmean(error**2) == expected
    lines = (place / "old.csv").read_text().splitlines()
    assert lines[0] == "date,ticker,prediction 1,prediction 3"
    assert len(lines) == 1 + len(old["date"])
    check_new_days(place, old)


def check_new_days(place, old):
    """The same prices as new files, with a new stock and later days; the run folder is enough."""
    table = prices(days=230)
    write_folder(place / "later", {"zoe": table["ant"], "new": table["bee"][:5]})
    (place / "data").rename(place / "away")
    for name in ("prices", "later"):
        words = ("predict", "--input", name, "--output", f"{name}.npz")
        out = GRAPH.done(*words, cwd=place).out
        assert ("note: stocks left out: fewer than " in out) == (name == "later")
    new = np.load(place / "later.npz")
    assert max(new["date"]) == str(dates(230)[-1])
    assert set(new["ticker"]) == {"zoe"}
    assert np.isfinite(new["prediction"]).all()
    same = np.load(place / "prices.npz")
    number_of = {key: row for row, key in enumerate(zip(same["date"], same["ticker"], strict=True))}
    picked = [number_of[key] for key in zip(old["date"], old["ticker"], strict=True)]
    np.testing.assert_allclose(same["prediction"][picked], old["prediction"], rtol=1e-5)


# ---- the guide ---------------------------------------------------------------------------------

GUIDE = REPOSITORY / "docs/how-to/graph.md"


def test_the_guide_finds_the_classes_of_papers_by_their_links():
    """With the sizes and settings of the paper."""
    text = GUIDE.read_text(encoding="utf-8")
    text = text.replace("from my_training.layers", f"from {module('layers').__name__}")
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(program.partition("\ngiven = ")[0], GUIDE, "exec"), names)
    graph = names["made_up"]()
    accuracy = names["accuracy"]
    assert accuracy(graph, epochs=40) >= 0.6
    assert accuracy(graph | {"links": graph["links"][:, :0]}, epochs=10) < 0.5


@pytest.mark.full
def test_the_commands_of_the_guide(tmp_path):
    long_table(tmp_path)
    (tmp_path / "prices").rename(tmp_path / "all.csv")
    (tmp_path / "edges.csv").write_text(EDGES.replace("yak", "cat"))
    write_folder(tmp_path / "prices")
    for words in documented(GUIDE):
        quick = ("--training.max_steps", "5", "--training.epochs", "1")
        GRAPH.done(*words, *(quick if words[0] == "train" else ()), cwd=tmp_path)
