"""Series and windows as people have them: jittered times, gaps, whole numbers as times. Nothing is
taken for something else in silence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import stocks
from made_up import contents, lines, prepare, prepared, store, values, written
from running import one_error
from workload import Workload

SERIES = Workload("timeseries")
WINDOWS = Workload("windows")
QUARTER = 900
START = np.datetime64("2024-01-01T00:00:00")
GRID = START + QUARTER * np.arange(1000)
SMALL = ("--model.width", "8", "--training.max_steps", "6", "--evaluation.every_steps", "6")


def jittered(seed: int = 0, most: int = 40) -> np.ndarray:
    return GRID + np.random.default_rng(seed).integers(-most, most + 1, len(GRID))


def series(times: Any) -> str:
    """Rows of these times, whose values are random."""
    return lines({"date": list(times), "a": values(len(times))[:, 0].tolist()})


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


def tables(table: dict[str, Any], folder: Path) -> Iterator[str]:
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


BAD_TIMES = {
    "a format without a month": (series(GRID[::96]), "%Y/%d", "'2024-01-01.* %Y/%d: table.csv"),
    "a text among milliseconds": (
        series([*GRID[:70].astype("M8[ms]").astype(int), "soon", 1_800_000_000_000]),
        "ms",
        "'soon' is not a time in the format ms: .*row 71",
    ),
    "milliseconds, then seconds": (
        series([*(GRID[:99].astype(int) * 1000), 1_800_000_000]),
        "ms",
        "not later than the time before",
    ),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_times_without_the_format_that_is_given_are_one_line(name, tmp_path):
    content, time_format, says = BAD_TIMES[name]
    path = written(tmp_path, content)
    flags = f"--history 4 --horizon 1 --time-format {time_format}"
    one_error(prepare(tmp_path, "timeseries", path, flags), says)


# ---- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [[row / 2 for row in range(1000)], list(range(1000))])
def test_a_time_in_another_column_is_named(first, tmp_path):
    table = {"a": first, "b": values()[:, 0], "when": GRID}
    for path in tables(table, tmp_path):
        says = "'2024-01-01.* is not a finite number: .*row 1, column 'when': .*--time-column"
        one_error(prepare(tmp_path, "timeseries", path), says)
        assert prepare(tmp_path, "timeseries", path, "--time-column when").code == 0


# ---- prices --------------------------------------------------------------------------------------


def test_more_neighbours_than_stocks_are_as_many_as_there_are(tmp_path):
    stocks.write_folder(tmp_path / "prices")
    assert stocks.prepare(tmp_path, "--neighbors", "100").code == 0
    assert stocks.store(tmp_path).facts["neighbors"] == 7


# ---- files of windows ----------------------------------------------------------------------------

FEATURES = np.random.default_rng(0).normal(size=(400, 16, 3))
TARGETS = np.random.default_rng(1).normal(size=(400, 2))


# name: datasets, the error, flags
BAD_WINDOWS: dict[str, tuple[dict[str, np.ndarray], str, str]] = {
    "not finite": (
        {"features": FEATURES, "targets": np.where(TARGETS > 2, np.nan, TARGETS)},
        "value .* in column [01] is missing or not finite as float32: windows.h5, targets rows .*: fix it",
        "",
    ),
    "beyond float32": (
        {"features": FEATURES, "targets": TARGETS * np.where(TARGETS > 2, 1e39, 1)},
        "value .* in column 0 is missing or not finite as float32: windows.h5, targets rows",
        "--dtype float16",
    ),
    "a purge below 0": (
        {"features": FEATURES, "targets": TARGETS},
        "-1 windows cannot be left out: --purge: use 0 or more",
        "--purge -1",
    ),
    "other names": ({"X": FEATURES, "y": TARGETS}, "it has X, y: name two with --datasets", ""),
    "one target": (
        {"features": FEATURES, "targets": TARGETS[:, 0]},
        r"shape \(400,\) where \(N, H\) .*'targets': write the targets as \(N, H\)",
        "",
    ),
}


@pytest.mark.parametrize("name", BAD_WINDOWS)
def test_bad_windows_are_one_line_with_the_remedy(name, tmp_path):
    datasets, says, flags = BAD_WINDOWS[name]
    with h5py.File(tmp_path / "windows.h5", "w") as file:
        for name, rows in datasets.items():
            file[name] = rows
    words = ("prepare", "--input", "windows.h5", *flags.split())
    one_error(WINDOWS.run(*words, cwd=tmp_path), says)
