"""The workload `graph`: samples that know no future, files of prices and what is wrong with them."""

from __future__ import annotations

import functools
import gzip
import json
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import stocks
import torch
from rendering import REPOSITORY, render
from running import losses, newest_run, one_error, run
from stocks import (
    HEADER,
    NAMES,
    batches,
    csv_lines,
    dates,
    module,
    prepare,
    prepared,
    prices,
    settings,
    store,
    train,
    write_folder,
)


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory):
    return stocks.example(tmp_path_factory.getbasetemp())


# ---- no future ---------------------------------------------------------------------------------


def test_noise_after_the_border_changes_nothing_before_it(tmp_path: Path) -> None:
    """Other prices and volumes on every day after the last one that training may use."""
    flags = ("--horizons", "1,3", "--split", "120,40,30")
    clean = prepared(tmp_path / "clean", *flags)
    opened = store(clean)
    border = opened.arrays["dates"].rows()[opened.splits["validation"][0]].astype("datetime64[D]")
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
    last = opened.splits["train"][1]
    graphs = opened.arrays["days"].rows()[:last, 0].max() + 1
    neighbors = [s.arrays["neighbors"].rows()[: 8 * graphs].tobytes() for s in (opened, changed)]
    assert neighbors[0] == neighbors[1]
    assert (
        opened.arrays["neighbors"].rows().tobytes() != changed.arrays["neighbors"].rows().tobytes()
    )
    for place in (clean, noisy):
        train(place, "--data.batch_size", "4", "--training.max_steps", "40")
    assert losses(clean) == losses(noisy)
    assert len(losses(clean)) == 40


def test_splits_are_apart_by_the_longest_horizon(tmp_path: Path) -> None:
    opened = store(prepared(tmp_path, "--horizons", "1,5", "--split", "120,40,30"))
    assert opened.splits == {"train": [0, 115], "validation": [120, 155], "test": [160, 190]}


def test_features_and_targets_are_those_of_the_formulas(opened) -> None:
    table = prices()["bee"]
    logs = np.log(np.round(table[:, :4], 6))
    row = 8 * 0 + 220 + 50  # stocks lie in the order of their names: bee behind ant
    features = opened.arrays["features"].rows()[row]
    returns, ranges = np.diff(logs[:, 3]), logs[:, 1] - logs[:, 2]
    expected = [returns[49], ranges[50], logs[50, 3] - logs[50, 0], abs(returns[49])]
    np.testing.assert_allclose(features[:4], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        features[5:], [ranges[46:51].mean(), ranges[29:51].mean()], rtol=1e-5
    )
    volume = np.log1p(table[:, 4])
    np.testing.assert_allclose(features[4], volume[50] - volume[31:51].mean(), rtol=1e-4)
    np.testing.assert_allclose(opened.arrays["target"].rows()[row], ranges[51], rtol=1e-5)


def panel(folder: Path, calendar: np.ndarray, table: dict[str, np.ndarray], **plan: Any):
    """That of stocks whose last days are those of the calendar."""
    dataset = module("dataset")
    stocks = {
        name: dataset.Stock(calendar[-len(values) :], values[:, :4], values[:, 3], values[:, 4])
        for name, values in table.items()
    }
    with module("engine.store").StoreWriter(folder, "graph") as writer:
        return dataset.panel(writer, stocks, dataset.Plan(**plan))


@pytest.mark.parametrize("kind", ["return", "range", "volatility"])
def test_targets_of_several_days(kind: str, tmp_path: Path) -> None:
    table = prices(3, 60)
    found = panel(tmp_path, dates(60), table, target=kind, horizons=(1, 4), window=5)
    target = found.arrays["target"][:60]
    logs = np.log(table["ant"][:, :4])
    returns = np.diff(logs[:, 3])
    expected = {
        "return": [returns[20], returns[20:24].sum()],
        "range": [(logs[21, 1] - logs[21, 2]), (logs[21:25, 1] - logs[21:25, 2]).mean()],
        "volatility": [abs(returns[20]), np.sqrt((returns[20:24] ** 2).mean())],
    }[kind]
    np.testing.assert_allclose(target[20], expected, rtol=1e-5, atol=1e-7)
    assert np.isnan(target[-1]).all()
    assert np.isnan(target[-4:, 1]).all()


def test_scalers_are_those_of_the_training_rows(opened) -> None:
    features, target = module("dataset")._columns(opened, "train")
    known = [*opened.facts["features"], *opened.facts["target"]["horizons"]]
    for values, scale in zip([*features.T, *target.T], known, strict=True):
        expected = np.nanmean(values), np.nanstd(values)
        assert (scale["mean"], scale["std"]) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_graphs_are_those_of_the_past_correlations(opened) -> None:
    facts, days = opened.facts, opened.arrays["days"].rows()
    neighbors = opened.arrays["neighbors"].rows().reshape(-1, 8, 3)
    returns = np.stack(
        [np.diff(np.log(np.round(values[:, 3], 6))) for values in prices().values()], 1
    )
    assert len(neighbors) > 3
    opens = dict(days.tolist())
    for graph, day in opens.items():
        past = returns[
            max(0, day - facts["correlation_days"]) : day
        ]  # return number d − 1 is that of day d
        if len(past) < facts["overlap"]:
            assert (neighbors[graph] == -1).all()
            continue
        strength = np.abs(np.corrcoef(past.T)) - 2 * np.eye(8)
        assert np.array_equal(np.sort(neighbors[graph]), np.sort(np.argsort(-strength)[:, :3]))
    dates_of = opened.arrays["dates"].rows()
    calendar = dates(220).astype(np.int64)
    for sample, (_, day) in enumerate(days):
        assert calendar[day] <= dates_of[sample]
        assert dates_of[sample] - calendar[day] < facts["refresh"]


def test_no_graph_of_1969_is_a_later_one(tmp_path: Path) -> None:
    calendar = np.datetime64("1969-12-05") + np.arange(90)
    found = panel(tmp_path, calendar, prices(days=90), window=5)
    assert (calendar[found.arrays["days"][:, 1]] <= found.dates).all()


def test_graphs_of_many_stocks_are_the_same_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gaps and without."""
    dataset, table, graphs = module("dataset"), prices(), []
    table["cat"] = table["cat"][120:]
    for cells in (dataset.CELLS_AT_ONCE, 1):
        monkeypatch.setattr(dataset, "CELLS_AT_ONCE", cells)
        monkeypatch.setattr(dataset, "STOCKS_AT_ONCE", 3)
        plan = {"window": 10, "neighbors": 3, "correlation_days": 40, "refresh": 10}
        graphs.append(panel(tmp_path / str(cells), dates(220), table, **plan).arrays["neighbors"])
    np.testing.assert_array_equal(*graphs)
    assert 0 < (graphs[0] < 0).sum() < graphs[0].size / 2


def test_cached_graphs_are_those_rebuilt_for_each_batch(opened) -> None:
    for split in ("train", "test"):
        cached = batches(opened, split)
        rebuilt = batches(opened, split, graph_builder__use_in_training=True)
        for ours, theirs in zip(cached, rebuilt, strict=True):
            assert torch.equal(ours["neighbors"].sort(2).values, theirs["neighbors"].sort(2).values)


def test_training_with_rebuilt_graphs_is_the_same(tmp_path: Path) -> None:
    found = []
    for rebuild in ("false", "true"):
        place = prepared(tmp_path / rebuild)
        train(place, "--graph_builder.use_in_training", rebuild)
        found.append(losses(place))
    assert found[0] == found[1]


def test_listings_delistings_and_gaps(tmp_path: Path) -> None:
    """A stock takes part on days that it trades with a whole window behind it, and no other."""
    table = prices()
    bee, cat = table["bee"], table["cat"]
    pause = csv_lines(cat).splitlines(keepends=True)
    place = prepared(
        tmp_path,
        bee=csv_lines(bee[100:], first=100),
        cat="".join(pause[:81] + pause[91:]),
        dog=csv_lines(table["dog"][:150]),
        elk=csv_lines(table["elk"][:9]),
    )
    opened = store(place)
    assert opened.facts["tickers"] == ["ant", "bee", "cat", "dog", "fox", "gnu", "hen"]
    seats, stock = opened.arrays["seats"].rows(), opened.arrays["stock"].rows()
    calendar = dates(220).astype(np.int64)
    listed = {
        day: set(stock[row[row >= 0]].tolist())
        for day, row in zip(opened.arrays["dates"].rows(), seats, strict=True)
    }
    days = {
        name: [
            number
            for number, day in enumerate(calendar)
            if opened.facts["tickers"].index(name) in listed.get(day, ())
        ]
        for name in ("ant", "bee", "cat", "dog")
    }
    assert days["ant"] == list(range(9, 220))
    assert days["bee"] == list(range(109, 220))
    assert days["cat"] == [*range(9, 80), *range(90, 220)]
    assert days["dog"] == list(range(9, 150))
    target = opened.arrays["target"].rows()
    assert np.isnan(
        target[np.flatnonzero(stock == 2)[79]]
    )  # its next trading day is not the next day
    assert np.isnan(target[np.flatnonzero(stock == 3)[-1]])
    for split in opened.splits:
        for batch in batches(opened, split):
            seat = torch.arange(batch["listed"].shape[1])
            assert (
                batch["listed"]
                .gather(1, batch["neighbors"].clamp(min=0).flatten(1))
                .logical_or((batch["neighbors"] < 0).flatten(1))
                .all()
            )
            assert not (batch["neighbors"] == seat[:, None]).any()
            assert (batch["neighbors"][~batch["listed"]] == -1).all()
    train(place)


# ---- files -------------------------------------------------------------------------------------


def changed(row: int, column: str, cell: str) -> str:
    """The file of `ant` with another cell; rows count from 1."""
    lines = csv_lines(prices()["ant"]).splitlines()
    cells = lines[row].split(",")
    cells[HEADER.strip().split(",").index(column)] = cell
    return "\n".join([*lines[:row], ",".join(cells), *lines[row + 1 :]]) + "\n"


ANT = csv_lines(prices()["ant"])
BAD = {
    "zero price": (
        {"ant": changed(5, "low", "0")},
        (),
        ["a price is 0 or below", "ant.csv, row 5"],
    ),
    "negative price": ({"ant": changed(5, "close", "-3")}, (), ["a price is 0 or below", "row 5"]),
    "high below low": ({"ant": changed(7, "high", "0.01")}, (), ["high is below the low", "row 7"]),
    "negative volume": ({"ant": changed(7, "volume", "-1")}, (), ["volume is below 0", "row 7"]),
    "text": (
        {"ant": changed(7, "open", "n.a.")},
        (),
        ["'n.a.' is not a number", "row 7", "'open'"],
    ),
    "infinity": ({"ant": changed(7, "open", "inf")}, (), ["'inf' is not a finite number", "row 7"]),
    "date": (
        {"ant": changed(7, "date", "01/02/2020")},
        (),
        ["'01/02/2020' is not a time", "row 7", "2024-01-31"],
    ),
    "no such day": ({"ant": changed(7, "date", "2020-02-31")}, (), ["is not a time", "row 7"]),
    "twice": (
        {"ant": ANT + ANT.splitlines()[-1] + "\n"},
        (),
        ["ant has two rows of 20", "row 221"],
    ),
    "no column": ({"ant": ANT.replace("close", "last")}, (), ["no column 'close'", "ant.csv"]),
    "ragged": ({"ant": ANT + "2030-01-01,1\n"}, (), ["2 cells where the header has 6", "row 221"]),
    "empty": ({"ant": ""}, (), ["no rows under the header", "ant.csv"]),
    "header only": ({"ant": HEADER}, (), ["no rows under the header", "ant.csv"]),
    "window": ({}, ("--window", "300"), ["no stock has 300 days", "--window"]),
    "window of one": ({}, ("--window", "1"), ["1 is too few", "--window", "at least 2"]),
    "neighbours": ({}, ("--neighbors", "0"), ["0 is too few", "--neighbors"]),
    "refresh": ({}, ("--refresh", "0"), ["0 is too few", "--refresh"]),
    "horizons": ({}, ("--horizons", "1,x"), ["'1,x' names no horizons", "--horizons"]),
    "horizon twice": ({}, ("--horizons", "2,2"), ["names no horizons"]),
    "horizon 0": ({}, ("--horizons", "0"), ["names no horizons"]),
    "long horizon": (
        {},
        ("--horizons", "1,40"),
        ["40 days is longer than the validation split of 25", "--horizons 1,40"],
    ),
    "split": ({}, ("--split", "0.5,0.2"), ["splits nothing", "--split"]),
    "large split": ({}, ("--split", "300,20,20"), ["needs 340 days", "there are 210"]),
    "no validation": ({}, ("--split", "100,0,20"), ["no day is left for validation"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, tmp_path: Path) -> None:
    files, flags, parts = BAD[case]
    write_folder(tmp_path / "prices", **files)
    one_error(prepare(tmp_path, *flags), *parts)
    assert not (tmp_path / "data" / "manifest.json").exists()


def test_bad_paths_are_one_line(tmp_path: Path) -> None:
    one_error(prepare(tmp_path), "cannot read the file", "prices")
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "readme.txt").write_text("no prices here")
    one_error(prepare(tmp_path), "or .csv.gz file in the folder", "prices")
    (tmp_path / "prices" / "ant.csv.gz").write_bytes(gzip.compress(ANT.encode())[:500])
    one_error(prepare(tmp_path), "cannot read the file .Truncated", "ant.csv.gz")
    (tmp_path / "prices" / "ant.csv.gz").unlink()
    (tmp_path / "prices" / "ant.csv").write_bytes(ANT.replace("date", "dät").encode("latin-1"))
    one_error(prepare(tmp_path), "not UTF-8", "ant.csv")


def test_odd_files_are_counted(tmp_path: Path) -> None:
    """A missing volume or price, a day with one stock, a stock that overlaps with none, a short one."""
    alone = csv_lines(prices()["bee"][:30], first=400)
    write_folder(
        tmp_path / "prices",
        ant="\n".join(
            [
                *changed(30, "volume", "nan").splitlines()[:60],
                *changed(60, "open", "").splitlines()[60:],
            ]
        ),
        zoe=alone,
        yak=csv_lines(prices()["cat"][:5]),
    )
    (tmp_path / "prices" / "notes.md").write_text("not a table")
    result = prepare(tmp_path)
    assert result.code == 0, result.err
    for line in (
        "rows left out: a price is missing: 1",
        "rows without a volume, taken as the usual one: 1",
        "stocks left out: fewer than 10 days: 1",
        "days with a single stock, which has no neighbour: 21",
        "stocks without a neighbour in any graph: 1",
        "stocks: +9, at most 8 a day",
    ):
        assert re.search(line, result.out), (line, result.out)
    train(tmp_path)
    evaluated = run(render(workload="graph"), "evaluate", cwd=tmp_path)
    assert evaluated.code == 0, evaluated.err
    assert "nan" not in evaluated.out


def test_one_long_file_is_the_same_as_a_folder(tmp_path: Path, opened) -> None:
    """Rows in any order, names in another case, adjusted close, gzip."""
    rows = [
        f"{line},{name.upper()}"
        for name, values in prices().items()
        for line in csv_lines(values).splitlines()[1:]
    ]
    np.random.default_rng(0).shuffle(rows)
    text = "Date,Open,High,Low,Close,Volume,Ticker\n" + "\n".join(rows) + "\n\n"
    (tmp_path / "prices").write_bytes(gzip.compress(text.encode()))
    result = prepare(tmp_path)
    assert result.code == 0, result.err
    found = store(tmp_path)
    assert found.facts == {**opened.facts, "tickers": [name.upper() for name in NAMES]}
    for name, array in opened.arrays.items():
        assert array.rows().tobytes() == found.arrays[name].rows().tobytes(), name
    (tmp_path / "prices").write_text(text + rows[0] + "\n")
    one_error(prepare(tmp_path), "has two rows of 20", "row 1761")


def test_rows_of_a_stock_come_together_over_blocks_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days of all stocks in any order, in two files of many blocks; a day that is there twice is named."""
    for name in ("tables", "scaling"):
        monkeypatch.setattr(module(f"prepare.{name}"), "BLOCK_ROWS", 97)
    table, random = prices(), np.random.default_rng(0)
    for file, names in (("a", NAMES[:3]), ("b", NAMES[3:])):
        rows = [
            f"{line},{name}\n" for name in names for line in csv_lines(table[name]).splitlines()[1:]
        ]
        random.shuffle(rows)
        (tmp_path / f"{file}.csv").write_text(HEADER.strip() + ",ticker\n" + "".join(rows))

    def found() -> dict[str, Any]:
        with module("engine.store").StoreWriter(tmp_path / "data", "graph") as writer:
            return module("commands.prepare").read_stocks(writer, tmp_path, {})[0]

    assert list(found()) == list(NAMES)
    for name, stock in found().items():
        np.testing.assert_array_equal(stock.dates, dates(220))
        np.testing.assert_array_equal(np.c_[stock.prices, stock.volume], np.round(table[name], 6))
        np.testing.assert_array_equal(stock.adjusted, stock.prices[:, 3])
    twice = ("b", rows[10], r"has two rows of 20\S+: \S+b.csv, row 1101:")
    for name, row, what in (twice, ("a", rows[0], r"is in two files: \S+b.csv:")):
        with open(tmp_path / f"{name}.csv", "a") as file:
            file.write(row)
        with pytest.raises(module("engine.errors").UserError, match=what):
            found()


def test_a_split_of_shares_is_no_return(tmp_path: Path, opened) -> None:
    """Adjusted closes make the returns: prices halved by a share split change no feature but nothing else."""
    table = prices()
    raw = csv_lines(table["ant"]).splitlines()
    adjusted = [line.split(",")[4] for line in raw]
    halved = table["ant"].copy()
    halved[100:, :4] /= 2
    lines = [
        f"{line},{close}"
        for line, close in zip(csv_lines(halved).splitlines()[1:], adjusted[1:], strict=True)
    ]
    place = prepared(tmp_path, ant="\n".join([HEADER.strip() + ",Adj Close", *lines]) + "\n")
    ours, theirs = (s.arrays["features"].rows() for s in (opened, store(place)))
    np.testing.assert_allclose(theirs, ours, atol=2e-5)


def test_a_store_without_test_days(tmp_path: Path) -> None:
    opened = store(prepared(tmp_path, "--split", "0.8,0.2,0"))
    assert opened.splits["test"][0] == opened.splits["test"][1]
    train(tmp_path)
    one_error(run(render(workload="graph"), "evaluate", cwd=tmp_path), "test split has no samples")


# ---- evaluation and predictions ----------------------------------------------------------------


def test_predictions_are_those_that_evaluation_measures(tmp_path: Path) -> None:
    place = prepared(tmp_path, "--horizons", "1,3", bee=csv_lines(prices()["bee"][100:], first=100))
    train(place)
    project = render(workload="graph")
    for words in (("evaluate",), ("predict",), ("predict", "--output", "found.csv")):
        assert run(project, *words, cwd=place).code == 0
    found = np.load(newest_run(place) / "predictions.npz")
    metrics = json.loads((newest_run(place) / "evaluation.json").read_text())
    known = np.isfinite(found["target"])
    error = (found["prediction"] - found["target"])[known]
    assert found["horizons"].tolist() == [1, 3]
    assert np.mean(error**2) == pytest.approx(metrics["metrics"]["mse_original"], rel=1e-4)
    assert set(metrics["baselines"]) == {"mean", "last value", "mean of 5 days", "HAR ridge"}
    lines = (place / "found.csv").read_text().splitlines()
    assert lines[0] == "date,ticker,prediction 1,target 1,prediction 3,target 3"
    assert len(lines) == 1 + len(found["date"])

    # The same files as new ones: the same days give the same numbers; a new stock and a later day get theirs.
    table = prices(days=230)
    write_folder(
        place / "later",
        {**table, "zoe": table["ant"]},
        bee=csv_lines(table["bee"][100:], first=100),
    )
    words = ("predict", "--input", "later", "--output")
    assert run(project, *words, "new.npz", cwd=place).code == 0
    (place / "data").rename(place / "away")  # the run folder is enough for new prices
    assert run(project, *words, "same.npz", cwd=place).code == 0
    new, same = np.load(place / "new.npz"), np.load(place / "same.npz")
    for name in new:
        np.testing.assert_array_equal(new[name], same[name])
    assert max(new["date"]) == str(dates(230)[-1])
    assert np.isnan(new["target"][new["date"] == max(new["date"])]).all()
    assert "zoe" in new["ticker"]
    assert np.isfinite(new["prediction"]).all()


def test_new_files_with_the_old_days_give_the_old_predictions(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    train(place)
    project = render(workload="graph")
    for words in (("predict",), ("predict", "--input", "prices", "--output", "new.npz")):
        assert run(project, *words, cwd=place).code == 0
    old, new = np.load(newest_run(place) / "predictions.npz"), np.load(place / "new.npz")
    rows = {key: row for row, key in enumerate(zip(new["date"], new["ticker"], strict=True))}
    picked = [rows[key] for key in zip(old["date"], old["ticker"], strict=True)]
    np.testing.assert_allclose(new["prediction"][picked], old["prediction"], rtol=1e-5)
    np.testing.assert_array_equal(new["target"][picked], old["target"])


def test_baselines_are_what_they_say(opened) -> None:
    dataset = module("dataset")
    found = dataset.baselines(opened, settings(), "test")
    x, y = dataset._columns(opened, "test")
    seen, past = dataset._columns(opened, "train")
    guesses = {
        "mean": np.full_like(y, past.mean()),
        "last value": x[:, [1]],
        "mean of 5 days": x[:, [5]],
    }
    columns = np.c_[np.ones(len(seen)), seen[:, [1, 5, 6]]]
    weights = np.linalg.lstsq(columns, past, rcond=None)[0]
    guesses["HAR ridge"] = (
        np.c_[np.ones(len(x)), x[:, [1, 5, 6]]] @ weights
    )  # a penalty of 1 is almost none
    for name, guess in guesses.items():
        assert found[name]["mse_original"] == pytest.approx(np.mean((guess - y) ** 2), rel=1e-3), (
            name
        )
        assert found[name]["r2"] == pytest.approx(1 - np.mean((guess - y) ** 2) / y.var(), abs=2e-3)


def test_returns_of_random_walks_cannot_be_told(tmp_path: Path) -> None:
    """Whoever knows the sign of tomorrow's return in more than 56 % of cases has seen it."""
    table = {f"s{number}": values for number, values in enumerate(prices(8, 400).values())}
    table |= {f"t{number}": values for number, values in enumerate(prices(8, 400, seed=5).values())}
    place = prepared(tmp_path, "--target", "return", table=table)
    train(place, "--training.max_steps", "60")
    assert run(render(workload="graph"), "evaluate", cwd=place).code == 0
    found = json.loads((newest_run(place) / "evaluation.json").read_text())
    assert 0.44 < found["metrics"]["direction_accuracy"] < 0.56
    assert found["metrics"]["mse"] > 0.95 * found["baselines"]["mean"]["mse"]


# ---- the guide ---------------------------------------------------------------------------------


@functools.cache
def guide() -> str:
    return (REPOSITORY / "docs/graph.md").read_text(encoding="utf-8")


def programs() -> list[str]:
    """Those of the guide: the classifier of papers, and what makes its file of Cora's."""
    found = re.findall(r"```python\n(.*?)```", guide(), re.DOTALL)
    return [
        text.replace("from my_training.model", f"from {module('model').__name__}") for text in found
    ]


@functools.cache
def classifier() -> dict[str, Any]:
    """Its functions."""
    names: dict[str, Any] = {}
    exec(compile(programs()[0].partition("\ngiven = ")[0], "docs/graph.md", "exec"), names)
    return names


def test_the_guide_finds_the_classes_of_papers_by_their_links() -> None:
    """With the sizes and settings of the paper, in 50 lines or fewer, at the least as well as on Cora."""
    assert len(programs()[0].splitlines()) <= 50
    graph, accuracy = classifier()["made_up"](), classifier()["accuracy"]
    y, (source, target) = graph["y"], graph["links"]
    assert graph["x"].shape == (2708, 1433)
    assert len(source) == 5278
    assert (y[source] == y[target]).mean() == pytest.approx(0.81, abs=0.001)
    assert (np.bincount(y[graph["train"]]) == 20).all()
    assert accuracy(graph, epochs=150) >= 0.825
    assert accuracy(graph | {"links": graph["links"][:, :0]}, epochs=50) < 0.5


@pytest.mark.full
def test_the_guide_trains_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["citation.py"])
    exec(compile(programs()[0], "docs/graph.md", "exec"), {})
    neighbours, alone = map(float, re.findall(r"0\.\d+", capsys.readouterr().out))
    assert neighbours >= 0.825
    assert alone < 0.5


def test_the_guide_reads_the_files_of_cora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand papers of one-hot classes; the four for test come last, in another order."""
    monkeypatch.chdir(tmp_path)
    x, y = (
        scipy.sparse.csr_matrix(np.eye(1000, 30, dtype="f4") + 1),
        np.eye(3, dtype=int)[np.arange(1000) % 3],
    )
    order = np.array([998, 996, 999, 997])
    graph = {0: [1, 2, 0], 1: [0], 2: [], 999: [0, 0]}
    files = {"allx": x[:996], "tx": x[order], "ally": y[:996], "ty": y[order], "graph": graph}
    for name, part in files.items():
        (tmp_path / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    np.savetxt("ind.cora.test.index", order, fmt="%d")
    exec(compile(programs()[1], "docs/graph.md", "exec"), {})
    made = dict(np.load("cora.npz"))
    np.testing.assert_array_equal(made["x"], x.toarray())
    np.testing.assert_array_equal(made["y"], np.arange(1000) % 3)
    assert made["links"].T.tolist() == [[0, 1], [0, 2], [0, 999]]
    assert made["test"].tolist() == order.tolist()
    assert 0 <= classifier()["accuracy"](made, epochs=1) <= 1


@pytest.mark.full
def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    commands = [
        shlex.split(line.removeprefix("python -m my_training "))
        for block in re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("python -m my_training ")
    ]
    assert [words[0] for words in commands[:4]] == ["prepare", "train", "evaluate", "predict"]
    write_folder(tmp_path / "prices")
    quick = ("--training.max_steps", "5", "--training.epochs", "1")
    for words in commands:
        flags = quick if words[0] == "train" else ()
        result = run(render(workload="graph"), *words, *flags, cwd=tmp_path)
        assert result.code == 0, (words, result.err)
