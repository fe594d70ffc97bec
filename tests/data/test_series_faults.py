"""Series and windows as people have them: jittered times, gaps, whole numbers as times. Nothing is
taken for something else in silence."""

import io
import re
from contextlib import redirect_stdout
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
    QUARTER,
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
    assert "gaps in time, which windows run across without --max-gap: 1" in out


def test_new_rows_are_on_the_grid_of_the_training_data(tmp_path):
    prepared(tmp_path, "timeseries", series(jittered()), "--history 2")
    SERIES.done("train", *SMALL, cwd=tmp_path)
    written(tmp_path, series(jittered(seed=7)[:2]), "new.csv")
    assert SERIES.predicted(tmp_path, "--input", "new.csv")["step"].tolist() == [1, 2, 3, 4, 5, 6]


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
CLOCKS = "clocks go back: add --timezone, such as Europe/Berlin, or the offset, such as .01:00"
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


# ---- time zones ----------------------------------------------------------------------------------


def local(times, zone):
    """Naive local times of times in UTC."""
    return pa.compute.local_timestamp(pa.array(times, pa.timestamp("s", zone)))


# A day before clocks go back, and a row in the middle of the time that repeats.
ZONES = {
    "Europe/Berlin": ("2024-10-26", 102),
    "America/New_York": ("2024-11-02", 118),
    "Australia/Lord_Howe": ("2024-04-06", 60),  # half an hour
    "Asia/Kolkata": ("2024-04-06", 60),
    "UTC": ("2024-04-06", 60),
}


LOCAL = "timeseries+timezones"


def test_local_times_of_a_zone_are_those_in_utc(tmp_path):
    """An hour that clocks repeat is told apart by its order, also at the border of two files."""
    for zone, (day, middle) in ZONES.items():
        quarters = np.datetime64(day, "s") + QUARTER * np.arange(400)
        prepared(tmp_path, LOCAL, series(quarters))
        expected = contents(tmp_path, LOCAL)
        there = local(quarters, zone)
        cells = [str(time) for time in there.to_pylist()]
        a = values(400)[:, 0].tolist()
        for name, rows in (("1.csv", slice(middle)), ("2.csv", slice(middle, 400))):
            written(tmp_path / "parts", lines({"date": cells[rows], "a": a[rows]}), name)
        table = pa.table({"date": there, "a": a})
        pyarrow.parquet.write_table(table, tmp_path / "local.parquet")
        for path in (written(tmp_path, series(cells)), "parts", "local.parquet"):
            out = prepare(tmp_path, LOCAL, path, f"--timezone {zone}")
            assert out.code == 0, (zone, path, out.err)
            assert contents(tmp_path, LOCAL) == expected
            assert store(tmp_path, LOCAL).source["timezone"] == zone


# times, flags, the error
NO_LOCAL_TIMES: dict[str, tuple[list[str], str, str]] = {
    "clocks skip it": (
        ["2024-03-31 01:00", "2024-03-31 02:30"],
        "--timezone Europe/Berlin",
        "'2024-03-31 02:30' is a time that clocks skip in Europe/Berlin: .*row 2, column 'date'",
    ),
    "an hour three times": (
        ["2024-10-27 02:00"] * 3,
        "--timezone Europe/Berlin",
        "is not later than the time before: .*row 3",
    ),
    "another hour twice": (
        ["2024-10-27 04:00"] * 2,
        "--timezone Europe/Berlin",
        "is not later than the time before: .*row 2",
    ),
    "no zone": (["2024-01-01"], "--timezone Europe/Bern", "no time zone 'Europe/Bern': --timezone"),
    "no zone for UTC": (["2024-01-01T00Z"], "--timezone X", "no time zone 'X': --timezone: use a"),
}


def test_local_times_that_nobody_has_are_one_line(tmp_path):
    """Without the extra, all of them are."""
    for times, flags, says in NO_LOCAL_TIMES.values():
        path = written(tmp_path, series(times))
        one_error(prepare(tmp_path, LOCAL, path, flags), says)
        needs = (
            f"local times need the extra `timezones`: {flags}: add it: `make add EXTRA=timezones`"
        )
        for workload in ("timeseries", "forecast"):
            one_error(prepare(tmp_path, workload, path, flags), needs)


def test_files_with_and_without_a_zone_are_not_mixed(tmp_path):
    """Also as Parquet, whose type has the zone."""
    for number, zone in enumerate(["Europe/Berlin", None]):
        times = pa.array(GRID[500 * number :][:500], pa.timestamp("s", zone))
        table = pa.table({"date": times, "a": values(500)[:, 0]})
        (tmp_path / "parts").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, tmp_path / f"parts/{number}.parquet")
    says = "'2024-01-06 05:00:00' is not a time in .* with an offset .*1.parquet, row 1"
    one_error(prepare(tmp_path, "timeseries", "parts"), says, "give all times an offset, or none")
    assert prepare(tmp_path, "timeseries", "parts/0.parquet").code == 0
    assert store(tmp_path, "timeseries").source["timezone"] == "UTC"


@pytest.mark.parametrize("index", ["__index_level_0__", "when"])
def test_an_index_of_times_of_pandas_is_the_time(index, tmp_path):
    prepared(tmp_path, "timeseries", series(GRID))
    expected = contents(tmp_path, "timeseries")
    columns: dict[str, Any] = {"a": values(len(GRID))[:, 0], "place": np.arange(len(GRID))}
    for time, flags in ((GRID, ""), (GRID[::-1], "--drop of_file")):
        table = pa.table({"of_file": time} | columns | {index: GRID})
        if not flags:
            table = table.drop_columns("of_file")
        pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
        result = prepare(tmp_path, "timeseries", "table.parquet", f"--drop place {flags}")
        assert result.code == 0, result.err
        assert contents(tmp_path, "timeseries") == expected
        assert store(tmp_path, "timeseries").source["time_column"] == index


# ---- several series in one table -----------------------------------------------------------------

DAYS = [str(np.datetime64("2022-01-01") + row) for row in range(400)]


def panel(by="store", names=("a", "b", "c"), **more):
    """Rows of several series, sorted by one of two columns, and a count of sales."""
    pairs = [(day, name) for name in names for day in DAYS]
    if by == "date":
        pairs = [(day, name) for day in DAYS for name in names]
    sales = np.random.default_rng(0).integers(0, 30, len(pairs))
    table = {"date": [day for day, _ in pairs], "store": [name for _, name in pairs]}
    return table | {"sales": sales.tolist(), **more}


OTHER_DAYS = [DAYS[row] for number in (200, 0) for row in range(number, number + 200)]
PANELS: dict[str, tuple[dict[str, list], str]] = {
    "by series": (panel(), ""),
    "by date": (panel("date"), ""),
    "numbers": (panel(names=(1, 2, 3)), ""),
    "numbers, by date": (panel("date", names=(1, 2, 3)), ""),
    "the newest date first": ({n: c[::-1] for n, c in panel("date", (1, 2)).items()}, ""),
    "no time": (panel(names=(1, 2, 3)), "--time-column none --drop date"),
    "no time, by date": (panel("date", names=(1, 2, 3)), "--time-column none --drop date"),
    "no time, texts": (panel(), "--time-column none"),
    "other times": (
        {"date": OTHER_DAYS, "store": [1] * 200 + [2] * 200, "sales": [*range(400)]},
        "",
    ),
}


def test_several_series_are_refused_and_the_workload_for_them_is_named(tmp_path):
    command = "copier update --defaults -r :current: -d workload=forecast"
    for table, flags in PANELS.values():
        path = written(tmp_path, lines(table))
        says = "the table has several series, which column 'store' names: table.csv: "
        one_error(prepare(tmp_path, "timeseries", path, flags), f"{says}.*{command}")
    for number in range(2):
        (tmp_path / "shops").mkdir(exist_ok=True)
        table = {"date": DAYS, "sales": panel()["sales"][400 * number :][:400]}
        written(tmp_path / "shops", lines(table), f"{number}.csv")
    one_error(prepare(tmp_path, "timeseries", "shops"), f"shops/1.csv, row 1, .*{command}")


AUTUMN = np.insert(np.arange("2024-10-26T00", "2024-10-29T00", 3600, "M8[s]"), 27, HOURS[26])
SUMMER = [1] * 27 + [0] * (len(AUTUMN) - 27)
SECOND = np.arange(0, 75_000, 250, "M8[ms]").astype("M8[s]").tolist()
# One series, what `prepare` says of it, or that it accepts it.
ONE_SERIES: dict[str, tuple[dict[str, list], str, str]] = {
    "clocks go back": (
        {"date": AUTUMN.tolist(), "is_summer": SUMMER, "sales": [*range(len(AUTUMN))]},
        "",
        "is not later than the time before: .*row 28, .*--timezone",
    ),
    "the newest first": (
        {
            "date": DAYS[::-1],
            "is_open": [row % 7 // 6 for row in range(400)],
            "sales": [*range(400)],
        },
        "",
        "sort the rows by time",
    ),
    "several rows in a second": (
        {"date": SECOND, "state": [row // 40 % 2 for row in range(300)], "a": [*range(300)]},
        "--time-column none --drop date",
        "",
    ),
    "a year and its days": (
        {
            "year": [2020 + row // 365 for row in range(1095)],
            "day": [row % 365 for row in range(1095)],
            "a": [*range(1095)],
        },
        "--time-column none",
        "",
    ),
    "months": (
        {"date": DAYS, "month": [int(day[5:7]) for day in DAYS], "a": [*range(400)]},
        "",
        "",
    ),
}


def test_one_series_is_not_taken_for_several(tmp_path):
    for name, (table, flags, says) in ONE_SERIES.items():
        result = prepare(tmp_path, "timeseries", written(tmp_path, lines(table)), flags)
        if says:
            assert "forecast" not in one_error(result, says)
        else:
            assert result.code == 0, (name, result.err)


# ---- columns -------------------------------------------------------------------------------------


def with_marks(column, mark, count=9):
    column = np.array(column, float)
    column[np.random.default_rng(1).choice(len(column), count, replace=False)] = mark
    return column.tolist()


COUNT = 600
RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.normal(15, 8, COUNT).round(1)
DIGITS = RANDOM.integers(0, 10, COUNT)
SUN = RANDOM.integers(0, 1000, COUNT)
MARKED_COLUMNS = {
    "-999": with_marks(NORMAL, -999),
    "9999": with_marks(NORMAL, 9999),
    "1e+30": with_marks(NORMAL, 1e30),
    "-999.9": with_marks(NORMAL, -999.9, 2),
    "-99": with_marks(DIGITS, -99),
    "999": with_marks(RANDOM.integers(0, 361, COUNT), 999),
    "-9999": with_marks(SUN, -9999),
    "-32768": with_marks(SUN, -32768),
    "-1": with_marks(RANDOM.normal(0.5, 0.01, COUNT).round(5), -1),
}
ORDINARY_COLUMNS = {
    "sales": with_marks(RANDOM.integers(900, 1000, COUNT), 0, 90),
    "humidity": with_marks(RANDOM.uniform(80, 99, COUNT).round(1), 100, 60),
    "image": with_marks(RANDOM.integers(0, 9, COUNT), 255, 60),
    "brighter image": with_marks(RANDOM.integers(0, 60, COUNT), 255, 60),
    "year": (1990 + np.arange(COUNT) // 24).tolist(),
    "id": (10_000 + np.arange(COUNT)).tolist(),
    "flag": (np.arange(COUNT) % 2).tolist(),
    "sign": (np.arange(COUNT) % 2 * 2 - 1).tolist(),
    "label": with_marks(np.arange(COUNT) % 3, 255, 60),
    "rain": with_marks(RANDOM.exponential(2, COUNT).round(1).clip(0, 20), 0, 400),
    "heavy tail": np.exp(RANDOM.normal(0, 3, COUNT)).tolist(),
    "whole heavy tail": np.exp(RANDOM.normal(2, 2, COUNT)).astype(int).tolist(),
    "setpoint": with_marks(20 + np.arange(COUNT) % 2 / 2, 15, 200),
    "price": with_marks(4.9 + np.arange(COUNT) % 20 / 100, 1.99, 50),
    "one spike": with_marks(NORMAL, 9999, 1),
    "zero and a number": with_marks([0] * COUNT, 50, 300),
    "loss": (RANDOM.normal(0, 300, COUNT).astype(int) - 99).tolist(),
}


def test_a_value_that_stands_apart_is_a_note_and_no_other_one(tmp_path):
    table: dict[str, list] = {"date": GRID[:COUNT].tolist(), **ORDINARY_COLUMNS}
    for mark, column in MARKED_COLUMNS.items():
        table[f"with {mark}"] = column
    out = prepared(tmp_path, "timeseries", lines(table)).out
    notes = re.findall("note: column '(.*?)' has (.*) in ([0-9]+) rows.*--missing=(.*)", out)
    expected = []
    for mark, column in MARKED_COLUMNS.items():
        expected.append((f"with {mark}", mark, str(column.count(float(mark))), mark))
    assert notes == expected

    alone = lines({"date": GRID[:COUNT].tolist(), "a": MARKED_COLUMNS["1e+30"]})
    out = prepared(tmp_path, "timeseries", alone, "--missing=1e+30 --fill last").out
    assert "far from all" not in out
    assert re.search(r"  a +-?[\d.]+ +[\d.]+ +\d+ +9\n", out)


def test_the_columns_are_as_a_slow_reading_counts_them(tmp_path):
    """Over blocks and files, with more values than are kept."""
    random = np.random.default_rng(0)
    table = {
        "few": random.integers(-3, 4, 3000).astype(float),
        "many": random.normal(0, 1e4, 3000).round(3),
        "last": np.full(3000, np.nan),
    }
    table["few"][50:90] = np.nan
    table["last"][2990:] = 5
    overview = SERIES.module("prepare.overview")
    columns = {name: overview.Column() for name in table}
    for start in range(0, 3000, 700):
        for name, column in columns.items():
            column.add(table[name][start : start + 700])
    out = io.StringIO()
    with redirect_stdout(out):
        overview.print_columns(columns)
    rows = [re.split(" {2,}", line.strip()) for line in out.getvalue().splitlines()]
    many = table["many"]
    assert rows == [
        ["columns:", "min", "max", "distinct", "missing"],
        ["few", "-3", "3", "7", "40"],
        ["many", f"{many.min():.6g}", f"{many.max():.6g}", "1,000+", "0"],
        ["last", "5", "5", "1", "2,990"],
    ]


@pytest.mark.parametrize("first", [[row / 2 for row in range(1000)], list(range(1000))])
def test_a_time_in_another_column_is_named(first, tmp_path):
    table = {"a": first, "b": values()[:, 0], "when": GRID}
    csv, parquet = tables(table, tmp_path)
    says = "'2024-01-01.* is not a finite number: .*row 1, column 'when': .*--time-column"
    one_error(prepare(tmp_path, "timeseries", csv), says)
    assert prepare(tmp_path, "timeseries", csv, "--time-column when").code == 0
    expected = contents(tmp_path, "timeseries")
    # Its types tell.
    assert prepare(tmp_path, "timeseries", parquet).code == 0
    assert contents(tmp_path, "timeseries") == expected


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
    error = forecast.reshape(windows.shape) - windows
    expected = [np.mean(error**2), np.abs(error).mean()]
    assert [metrics["mse_original"], metrics["mae_original"]] == pytest.approx(expected, rel=1e-4)
    assert 0 < metrics["mse_original"] < 1
    of_input = series.predicted(tmp_path, "--input", path)["prediction"]
    after = windows[0].size * 6  # of the windows that end after the file
    np.testing.assert_array_equal(of_input[-len(forecast) - after : -after], forecast)


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
