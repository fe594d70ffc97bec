"""Series and windows as people have them: jittered times, gaps, whole numbers as times. Nothing is
taken for something else in silence."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
import pytest
import stocks
from made_up import (
    GRID,
    contents,
    jittered,
    lines,
    prepare,
    prepared,
    series,
    store,
    values,
    written,
)
from running import one_error
from workload import Workload

SERIES = Workload("timeseries")
SMALL = ("--model.width", "8", "--training.max_steps", "6", "--evaluation.every_steps", "6")


# ---- times around a grid -------------------------------------------------------------------------


def test_gaps_between_jittered_times_are_those_of_missing_rows(tmp_path):
    times = np.delete(jittered(), range(400, 440))
    out = prepared(tmp_path, "timeseries", series(times)).out
    assert "gaps in time, which windows run across: 1" in out


def test_new_rows_are_on_the_grid_of_the_training_data(tmp_path):
    prepared(tmp_path, "timeseries", series(jittered()), "--history 2")
    SERIES.done("train", *SMALL, cwd=tmp_path)
    written(tmp_path, series(jittered(seed=7)[:2]), "new.csv")
    assert len(SERIES.predicted(tmp_path, "--input", "new.csv")["time"]) == 1


# ---- whole numbers as times ----------------------------------------------------------------------

UNITS = ("s", "ms", "us", "ns")


def tables(table, folder):
    """The same as a CSV and as a Parquet file; their names."""
    yield written(folder, lines({name: list(cells) for name, cells in table.items()}))
    pyarrow.parquet.write_table(pa.table(table), folder / "table.parquet")
    yield "table.parquet"


@pytest.mark.parametrize("unit", UNITS)
def test_whole_numbers_are_times_of_the_unit_that_is_given(unit, tmp_path):
    numbers = GRID.astype(f"M8[{unit}]").astype(np.int64)
    prepared(tmp_path, "timeseries", series(GRID))
    expected = contents(tmp_path, "timeseries")
    table = {"date": numbers, "a": values(len(GRID))[:, 0]}
    for path in tables(table, tmp_path):
        one_error(prepare(tmp_path, "timeseries", path), "'17.* is not a time .*--time-format ms")
        assert prepare(tmp_path, "timeseries", path, f"--time-format {unit}").code == 0
        assert contents(tmp_path, "timeseries") == expected


def test_years_with_months_are_months_if_a_flag_says_so(tmp_path):
    months = [f"{1990 + row // 12}{row % 12 + 1:02}" for row in range(300)]
    prepared(tmp_path, "timeseries", series(months), "--time-format %Y%m")
    times = store(tmp_path, "timeseries").arrays["time"].rows().astype("M8[s]")
    assert [str(time)[:10] for time in times[[0, -1]]] == ["1990-01-01", "2014-12-01"]


def test_numbers_as_times_may_have_fractions_and_exponents(tmp_path):
    """In texts and in a Parquet file. A number of another unit, and a time, have none of a unit."""
    prepared(tmp_path, "timeseries", series(GRID))
    expected = contents(tmp_path, "timeseries")
    seconds = GRID.astype(int)
    a = values(len(GRID))[:, 0]
    numbers = {
        "s": [f"{second}.0" for second in seconds],
        "ms": [f"{second * 1000}.25" for second in seconds],
        "ns": [f"{second * 10**9:.12e}" for second in seconds],
    }
    for unit, cells in numbers.items():
        path = written(tmp_path, series(cells))
        assert prepare(tmp_path, "timeseries", path, f"--time-format {unit}").code == 0
        assert contents(tmp_path, "timeseries") == expected
    table = pa.table({"date": seconds + 0.25, "a": a})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert prepare(tmp_path, "timeseries", "t.parquet", "--time-format s").code == 0
    assert contents(tmp_path, "timeseries") == expected

    pyarrow.parquet.write_table(pa.table({"date": GRID, "a": a}), tmp_path / "t.parquet")
    refused = prepare(tmp_path, "timeseries", "t.parquet", "--time-format ms")
    one_error(refused, "'2024-01-01 .* is not a time in the format ms: t.parquet, row 1")
    path = written(tmp_path, series(seconds * 1000))
    one_error(prepare(tmp_path, "timeseries", path, "--time-format s"), "in the format s: .*row 1")


def test_times_have_all_an_offset_or_none(tmp_path):
    """Also those of another block or file. Offsets may differ."""
    plain = GRID.astype(str).tolist()
    utc = [f"{time}+00:00" for time in plain]
    local = [f"{time - np.timedelta64(5, 'h')}-05:00" for time in GRID]
    prepared(tmp_path, "timeseries", series(plain))
    expected = contents(tmp_path, "timeseries")
    for cells in (utc, local, [*local[:500], *utc[500:]], [*utc[:9], plain[9] + "Z", *utc[10:]]):
        prepared(tmp_path, "timeseries", series(cells))
        assert contents(tmp_path, "timeseries") == expected

    mixed = {
        "in turns": ([*plain[:9], utc[9], *plain[10:]], "00:00' .*16:00:00.: .*row 10"),
        "the first one": ([utc[0], *plain[1:]], "with an offset .*16:00:00.01:00.: .*row 2"),
        "with a space": ([*plain[:9], f"{plain[9]} -05:00", *plain[10:]], "row 10, "),
    }
    for cells, says in mixed.values():
        path = written(tmp_path, series(cells))
        one_error(prepare(tmp_path, "timeseries", path), says, "give all times an offset, or none")
    written(tmp_path / "parts", series(plain[:500]), "1.csv")
    written(tmp_path / "parts", series(utc[500:]), "2.csv")
    one_error(prepare(tmp_path, "timeseries", "parts"), "00:00' .*16:00:00.: parts/2.csv, row 1")


HOURS = np.arange("2024-10-26T00", "2024-10-28T00", 3600, dtype="M8[s]")
QUARTERS = np.arange("2024-10-26T00", "2024-10-28T00", 900, dtype="M8[s]")
CLOCKS = "clocks go back: convert them to UTC, or add the offset, such as .01:00"
# name: times, the row of the error, the remedy
NOT_LATER: dict[str, tuple[Any, int, str]] = {
    "an hour twice": (np.insert(HOURS, 27, HOURS[26]), 28, CLOCKS),
    "four quarters twice": (np.insert(QUARTERS, 108, QUARTERS[104:108]), 109, CLOCKS),
    "a day and its hours": ([time[:10] for time in HOURS.astype(str)], 2, "day is in another"),
    "within a second": (np.arange(0, 9000, 250, "M8[ms]"), 2, "within one second, .*column none"),
    "the newest first": (HOURS[::-1], 2, "sort the rows by time; .*--time-column none"),
    "the newest quarter first": (QUARTERS[::-1], 2, "sort the rows. Local"),
    "two rows exchanged": (HOURS[[0, 1, 5, 2, 3, 4]], 4, "sort the rows by time"),
}


def test_a_time_that_is_not_later_has_the_remedy_for_its_kind(tmp_path):
    for times, row, remedy in NOT_LATER.values():
        path = written(tmp_path, series(times))
        says = f"is not later than the time before: table.csv, row {row}, column 'date': .*{remedy}"
        one_error(prepare(tmp_path, "timeseries", path), says)
    table = {"date": [str(time)[:10] for time in GRID], "time": [str(time)[11:] for time in GRID]}
    path = written(tmp_path, lines(table | {"a": values(len(GRID))[:, 0].tolist()}))
    says = (
        "'00:00:00' is not a .* number: .*row 1, column 'time': .*join a time of day and its date"
    )
    one_error(prepare(tmp_path, "timeseries", path), says)


# ---- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [[row / 2 for row in range(1000)], list(range(1000))])
def test_a_time_in_another_column_is_named(first, tmp_path):
    table = {"a": first, "b": values()[:, 0], "when": GRID}
    for path in tables(table, tmp_path):
        says = "'2024-01-01.* is not a finite number: .*row 1, column 'when': .*--time-column"
        one_error(prepare(tmp_path, "timeseries", path), says)
        assert prepare(tmp_path, "timeseries", path, "--time-column when").code == 0


@pytest.mark.parametrize("workload", ["timeseries", "timeseries+frames"])
def test_series_far_from_zero_keep_their_digits(workload, tmp_path):
    """Julian dates and seconds since 1970: scales, metrics and forecasts as in float64."""
    series = Workload(workload)
    rows = 2_459_000.5 + values(600)[:, :2] / 100
    table = {"date": GRID[:600], "julian": rows[:, 0], "stamp": 1.7e9 + rows[:, 1] % 1}
    frames = " --frames M15=24,H1=6" if "frames" in workload else ""
    path = written(tmp_path, lines({name: list(cells) for name, cells in table.items()}))
    assert prepare(tmp_path, workload, path, frames).code == 0
    opened = store(tmp_path, workload)
    facts = opened.facts
    name = facts["frames"][0]["name"]
    exact = np.stack([table["julian"], table["stamp"]], 1)
    np.testing.assert_array_equal(opened.arrays[name].rows(), exact)
    np.testing.assert_allclose(facts["target_mean"][0], exact[:420].mean(0), rtol=1e-13)
    np.testing.assert_allclose(facts["target_std"][0], exact[:420].std(0), rtol=1e-6)

    series.done("train", *SMALL, cwd=tmp_path)
    metrics = series.evaluated(tmp_path)["metrics"]
    forecast = series.predicted(tmp_path)["prediction"]
    windows = np.lib.stride_tricks.sliding_window_view(exact[510:], 6, 0).transpose(0, 2, 1)
    error = forecast - windows
    expected = [np.mean(error**2), np.abs(error).mean()]
    assert [metrics["mse_original"], metrics["mae_original"]] == pytest.approx(expected, rel=1e-4)
    assert 0 < metrics["mse_original"] < 1
    of_input = series.predicted(tmp_path, "--input", path)["prediction"]
    np.testing.assert_array_equal(of_input[-len(forecast) - 6 : -6], forecast)


# ---- prices --------------------------------------------------------------------------------------


def test_more_neighbours_than_stocks_are_as_many_as_there_are(tmp_path):
    stocks.write_folder(tmp_path / "prices")
    assert stocks.prepare(tmp_path, "--neighbors", "100").code == 0
    assert stocks.store(tmp_path).facts["neighbors"] == 7


def test_a_date_of_an_exchange_is_the_date_there(tmp_path):
    """Midnight with an offset, which changes in summer, is a date; another time is none."""
    stocks.write_folder(tmp_path / "prices")
    assert stocks.prepare(tmp_path).code == 0
    expected = contents(tmp_path, "graph")
    clocks = {"ant": " 00:00:00-05:00", "bee": "T00:00+0900", "cat": " 00:00:00.000Z"}
    for name, clock in clocks.items():
        path = tmp_path / f"prices/{name}.csv"
        dated = re.sub(r"(?m)^(20[\d-]+)", rf"\1{clock}", path.read_text())
        path.write_text(re.sub("(-0[4-9]-.. 00:00:00)-05", r"\1-04", dated))
    dog = tmp_path / "prices/dog.csv"
    table = pyarrow.csv.read_csv(dog)
    there = pyarrow.compute.assume_timezone(table["date"].cast(pa.timestamp("s")), "Asia/Tokyo")
    pyarrow.parquet.write_table(table.set_column(0, "date", there), dog.with_suffix(".parquet"))
    dog.unlink()
    assert stocks.prepare(tmp_path).code == 0
    assert contents(tmp_path, "graph") == expected

    path = tmp_path / "prices/ant.csv"
    path.write_text(path.read_text().replace(" 00:", " 16:"))
    one_error(stocks.prepare(tmp_path), "'2020-01-01 16:00:00-05:00' is not a .*ant.csv, row 1")


def test_na_is_a_ticker_if_a_flag_says_so(tmp_path):
    """In prices it still means that there is none."""
    table = stocks.prices()
    table["NA"] = table.pop("ant")
    (tmp_path / "prices").mkdir()
    rows = []
    for name, cells in table.items():
        _, *days = stocks.csv_lines(cells).splitlines()
        rows += [f"{day},{name}" for day in days]
    day, *_ = rows[5].split(",")
    rows[5] = f"{day},NA,NA,NA,NA,NA,bee"
    content = "\n".join([stocks.HEADER.strip() + ",ticker", *rows])
    (tmp_path / "prices/all.csv").write_text(content)
    one_error(stocks.prepare(tmp_path), "a ticker is missing: .*--keep-na")
    out = stocks.prepare(tmp_path, "--keep-na").out
    assert "a price is missing: 1" in out
    assert "NA" in stocks.store(tmp_path).facts["tickers"]


# ---- files of windows ----------------------------------------------------------------------------
