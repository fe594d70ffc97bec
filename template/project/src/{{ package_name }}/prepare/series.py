"""Read a time series from a table, check that its rows are in order of time, and describe it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from .overview import Column
    from .tables import RowBlock, Source

Facts = dict[str, Any]
BLOCK_ROWS = 16_384  # fit into the cache of a processor
TINY = np.finfo(np.float32).tiny
ROUNDING = 1e-13  # relative; sums of equal float64 numbers may be off by less
JITTER = 0.2  # distances of rows may differ from the usual one by this fraction
UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}
BEFORE_ALL = np.iinfo(np.int64).min // 2  # earlier than any time
INDEX = re.compile(r"Unnamed: \d+.*|__index_level_\d+__|index")  # names that pandas gives
FIX = "fix it, join a time of day and its date, or see --time-column, --drop, --missing, --decimal"
NO_TIME = (
    "fix it, or give the format, such as --time-format '%d.%m.%Y %H:%M', or the unit of numbers, "
    "such as --time-format ms; give all times an offset, or none; or see --time-column"
)
SORT = "sort the rows by time; if no column is a time, `prepare` with --time-column none"
FORECAST = "`copier update --defaults -r :current: -d workload=forecast`"
SEVERAL = (
    f"train on them with the workload `forecast`: {FORECAST}; or keep the rows of one series; or"
    " join this column with the time, if it is the time of day"
)
FILES = f"name the files in the order of time; if each is a series, use forecast: {FORECAST}"
REPEATED = (
    "sort the rows. Local times repeat when clocks go back: add --timezone, such as Europe/Berlin, "
    "or the offset, such as +01:00. If the time of day is in another column, join both. If rows are"
    " within one second, `prepare` with --time-column none"
)


@dataclass(frozen=True)
class Series:
    """Rows in order of time, in memory or memory-mapped."""

    names: list[str]
    times: np.ndarray  # (N,) int64, seconds since 1970, or row numbers
    values: np.ndarray  # (N, C) float32, or float64 if float32 has too few digits
    step: int  # the usual distance of rows, in seconds

    def __len__(self) -> int:
        return len(self.times)


# --- reading


def read_series(
    writer: StoreWriter,
    source: Source,
    names: Sequence[str] = (),
    arrays: tuple[str, str] = ("rows", "time"),
) -> Series:
    """Write the values and the times of a table as two `arrays`.

    names: the columns to read; by default all but the time and those of --drop, of which it prints
    a table. Raises `UserError`, with row and column, for a table that is not a series.
    """
    from .clocks import default_time
    from .overview import Column, print_columns

    is_new = not names
    time = source.flags.get("time_column")
    fill = source.flags.get("fill")
    last_time = -1 if time == "none" else BEFORE_ALL
    columns: dict[str, Column] = {}
    for block in source.blocks():
        time = time or default_time(block)
        names = names or choose_columns(block, time, source.flags["drop"])
        if time == "none":
            check_one_series(block, time)
        values = []
        try:
            for name in names:
                column = columns.setdefault(name, Column())
                values.append(read_cells(block, name, fill, column))
            times = read_times(block, time, last_time)
        except UserError:
            check_one_series(block, time)
            raise
        last_time = times[-1]
        dtype = source.style["dtype"] or np.float32
        writer.append(arrays[0], np.stack(values, 1, dtype=dtype))
        writer.append(arrays[1], times)

    if is_new:
        print_columns(columns)
    writer.source = {"file": source.path.name, **source.style, "time_column": time, "fill": fill}
    times = writer.appended(arrays[1])
    return Series([*names], times, writer.appended(arrays[0]), find_step(times))


def choose_columns(block: RowBlock, time: str, drop: list[str]) -> list[str]:
    """Return the names of all columns but `time` and those to drop."""
    from .tables import place_of

    for name in [time, *drop]:
        if name != "none":
            place_of(name, block.columns, block.path)
    names = [name for name in block.columns if name not in (time, *drop)]
    for name in names:
        block.choose_type(name)
        if INDEX.fullmatch(name):
            print(f"note: column '{name}': if it is an index of pandas, add --drop '{name}'")
    if not names:
        raise UserError("no column of numbers", str(block.path), "add one next to the time")
    return names


def read_cells(block: RowBlock, name: str, fill: str | None, column: Column) -> np.ndarray:
    """Return the numbers of a column (rows,), which also go into its summary.

    fill: `last` replaces missing cells by the last known one, never by a later one; without it,
    they raise `UserError`.
    """
    import pyarrow as pa
    from pyarrow.compute import fill_null_forward

    cells = block.numbers(name, FIX)
    column.add(cells)
    if fill:
        known = pa.array(np.append(column.last, cells), from_pandas=True)  # null for NaN
        cells = fill_null_forward(known).to_numpy(zero_copy_only=False)[1:]
        column.last = cells[-1]
    is_missing = np.isnan(cells)
    if is_missing.any():
        remedy = "fill it in, or run `prepare` with --fill last to use the value before, if any"
        raise block.error("an empty cell", int(is_missing.argmax()), name, remedy)
    return cells


def read_times(block: RowBlock, name: str, last: int) -> np.ndarray:
    """Return times (rows,) int64, or the numbers of the rows if `name` is `none`.

    last: the time of the row before. Raises `UserError` for a row that is not later than the one
    before.
    """
    from .clocks import utc_times  # it imports pyarrow

    if name == "none":
        return last + 1 + np.arange(block.num_rows)
    times = utc_times(block, name, NO_TIME)
    steps = np.diff(times, prepend=last)
    if steps.min() <= 0:
        row = int((steps <= 0).argmax())
        what = f"'{block.column(name)[row]}' is not later than the time before"
        remedy = REPEATED if steps[row] > -3600 else SORT
        raise block.error(what, row, name, FILES if row + block.first == 0 else remedy)
    return times


def check_one_series(block: RowBlock, time: str) -> None:
    """Raise `UserError` if times repeat or restart, and a column names the series of each row.

    time: the column of times, or `none` to take the first column of dates, also one that is left
    out.
    """
    steps = steps_of_time(block, time)
    if steps.min(initial=1) > 0:
        return
    for name in block.columns:
        if name != time and names_series(block.column(name), steps):
            what = f"the table has several series, which column '{name}' names"
            raise UserError(what, str(block.path), SEVERAL)


def steps_of_time(block: RowBlock, time: str) -> np.ndarray:
    """Return the seconds from each time to the next one; nothing if there are no times."""
    from .times import read_dates

    names = [time]
    if time == "none":
        names = [name for name in block.columns if np.isinf(block.parse(name)[0])]
    for name in names:
        with suppress(UserError):  # it has no dates
            dates = read_dates(block, name, "").to_numpy(zero_copy_only=False)
            return np.diff(dates.astype("M8[s]").astype(np.int64))
    return np.empty(0)


def names_series(column: pa.Array, steps: np.ndarray) -> bool:
    """Whether a column has few values, and changes where times do not increase.

    steps: from each time to the next one, in seconds.
    """
    cells = column.cast("string").dictionary_encode()
    is_clock = re.match(r"\d+:\d\d", str(column[0]))
    if is_clock or 2 * len(cells.dictionary) > len(column):
        return False
    changes = np.diff(cells.indices.fill_null(-1)) != 0
    restarts = steps <= 0
    if restarts.mean() > 0.1:
        return bool(changes[restarts].all())
    # Times that restart once may be an hour that clocks repeat.
    return bool((changes == restarts).all()) and steps[restarts].max() < -3600


def find_step(times: np.ndarray) -> int:
    """Return the usual distance of rows, in seconds. Print how many are further apart."""
    if len(times) < 2:
        return 1
    step = int(np.median(np.diff(times[:BLOCK_ROWS])))
    gaps = 0
    for start in range(0, len(times), BLOCK_ROWS):
        distances = np.diff(times[start : start + BLOCK_ROWS + 1])
        gaps += int((distances > (1 + JITTER) * step).sum())
    if gaps:
        print(f"note: gaps in time, which windows run across without --max-gap: {gaps:,}")
    return step


def write_windows(
    writer: StoreWriter, series: Series, history: int, horizon: int, max_gap: str | None
) -> range | np.ndarray:
    """Return the rows of the first targets of all windows; with `max_gap`, write them, too."""
    rows: Any = range(history, len(series) - horizon + 1)
    if max_gap:
        rows = without_gaps(np.array(rows, int), series, history, horizon, max_gap)
        writer.append("windows", rows)
        writer.source["max_gap"] = max_gap
    return rows


def without_gaps(
    rows: np.ndarray, series: Series, history: int, horizon: int, max_gap: str
) -> np.ndarray:
    """Return those of the first targets `rows` whose windows cross no longer gap than `max_gap`.

    A window is the history and the targets.
    """
    is_gap = np.diff(series.times) > seconds(max_gap) + JITTER * series.step
    num_gaps = np.append(0, np.cumsum(is_gap))  # before each row
    is_whole = num_gaps[rows - history] == num_gaps[rows + horizon - 1]
    print(f"note: windows left out, across gaps longer than {max_gap}: {(~is_whole).sum():,}")
    return rows[is_whole]


def seconds(name: str) -> int:
    """Return the seconds of a time frame's name, such as 900 for `M15`."""
    match = re.fullmatch(r"([SMHDW])([1-9]\d*)", name.upper())
    if not match:
        remedy = "use names like M1, M15, H4, D1"
        raise UserError(f"no time frame '{name}'", "--frames, --max-gap", remedy)
    return UNITS[match[1]] * int(match[2])


# --- what a model is built from


def describe_frame(name: str, series: Series, history: int, num_known: int) -> Facts:
    """Return the metadata of an array. The scales come from its first `num_known` rows."""
    known = series.values[:num_known]
    blocks = [known[start : start + BLOCK_ROWS] for start in range(0, num_known, BLOCK_ROWS)]
    mean = sum(block.sum(0, dtype=np.float64) for block in blocks) / num_known
    squares = sum(np.square(block - mean).sum(0) for block in blocks)
    std = np.sqrt(squares / num_known)
    is_constant = std <= TINY + ROUNDING * np.abs(mean)
    for column in np.array(series.names)[is_constant]:
        print(f"note: column '{column}' is constant in the training {name}")
    frame: Facts = {
        "name": name,
        "history": history,
        "step": series.step,
        "mean": mean.tolist(),
        "std": np.where(is_constant, 1, std).tolist(),
    }
    if known.dtype == np.float64:
        frame["dtype"] = "float64"
    return frame


def describe(names: list[str], targets: list[int], horizon: int, frames: list[Facts]) -> Facts:
    """Return the metadata that a model is built from. The first frame has the targets."""
    if min(horizon, *(frame["history"] for frame in frames)) < 1:
        remedy = "use at least 1 row for each"
        raise UserError("no window without rows", "--history, --horizon", remedy)
    return {
        "columns": names,
        "targets": targets,
        "horizon": horizon,
        "frames": frames,
        "target_mean": [[frames[0]["mean"][place] for place in targets]],
        "target_std": [[frames[0]["std"][place] for place in targets]],
    }


def count_windows(
    first_targets: range | np.ndarray, splits: dict[str, list[int]], horizon: int
) -> list[str]:
    """Return how many windows each split has, such as `8,521 train`.

    first_targets: the rows of the first targets of all windows. Raises `UserError` if a split has
    none, except for test.
    """
    counts = []
    for name, (first, last) in splits.items():
        end = bisect_left(first_targets, last - horizon + 1)
        count = max(end - bisect_left(first_targets, first), 0)
        if count == 0 and name != "test":
            flag = "--horizon" if 2 * horizon > last - first else "--history"
            remedy = f"give it more rows, or `prepare` with a smaller {flag}"
            what = f"no window fits into the {last - first} rows of the split {name}"
            raise UserError(what, flag, remedy)
        counts.append(f"{count:,} {name}")
    return counts


def is_close(step: int, usual_step: int) -> bool:
    """Whether a distance of rows is the usual one, with jitter."""
    return abs(step - usual_step) <= JITTER * usual_step


def check_step(series: Series, usual_step: int, where: str) -> None:
    """Raise `UserError` if the rows are not as far apart as in the training data."""
    if len(series) > 1 and not is_close(series.step, usual_step):
        what = f"rows are {series.step} s apart, but {usual_step} s in the training data"
        raise UserError(what, where, "provide data with the same step")
