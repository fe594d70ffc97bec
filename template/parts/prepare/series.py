"""Read a time series from a table, check that its rows are in order of time, and describe it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .scaling import BLOCK_ROWS

if TYPE_CHECKING:
    from .tables import Block, Source

JITTER = 0.1  # rows may be early or late by this fraction of their usual distance
BEFORE_ALL = np.iinfo(np.int64).min // 2  # earlier than any time
FIX = "fix it, or see --time-column, --drop, --missing and --decimal"
SORT = (
    "sort the rows, and keep one per time (read to the second); if no column is a time, `prepare` "
    "with --time-column none"
)


@dataclass(frozen=True)
class Series:
    """Rows in order of time, in memory or memory-mapped."""

    names: list[str]
    times: np.ndarray  # (N,) int64, seconds since 1970, or row numbers
    values: np.ndarray  # (N, C) float32
    step: int  # the usual distance of rows, in seconds

    def __len__(self) -> int:
        return len(self.times)


def blocks_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, in blocks."""
    for start in range(0, len(array), BLOCK_ROWS):
        yield array[start : start + BLOCK_ROWS]


def read_series(
    writer: StoreWriter,
    source: Source,
    flags: dict[str, Any],
    only: list[str] | None = None,
    arrays: tuple[str, str] = ("rows", "time"),
) -> Series:
    """Write the values and the times of a table, or of its columns `only`, as two `arrays`.

    Raises `UserError`, with row and column, for a table that is not a series.
    """
    blocks = source.blocks()
    first = next(blocks)
    time, names = choose_columns(first, flags, only)
    fill = flags.get("fill")
    last_values = np.full(len(names), np.nan)
    last_time = BEFORE_ALL
    num_filled = 0
    num_rows = 0

    for block in chain([first], blocks):
        values = np.stack([block.numbers(name, FIX) for name in names], 1)
        if fill:
            num_filled += int(np.isnan(values).sum())
            values = fill_gaps(values, last_values)
        check_known(block, names, values)
        if time == "none":
            times = np.arange(num_rows, num_rows + block.num_rows)
        else:
            times = read_times(block, time, last_time)
        writer.append(arrays[0], values.astype(np.float32))
        writer.append(arrays[1], times)
        last_values = values[-1]
        last_time = times[-1]
        num_rows += block.num_rows

    if num_filled:
        print(f"note: empty cells filled with the last value: {num_filled:,}")
    writer.source = {"file": source.path.name, **source.style, "time_column": time, "fill": fill}
    times = writer.appended(arrays[1])
    return Series(names, times, writer.appended(arrays[0]), find_step(times))


def choose_columns(
    block: Block, flags: dict[str, Any], only: list[str] | None
) -> tuple[str, list[str]]:
    """Return the name of the time column, `none` if rows count, and the names of the values."""
    from .tables import place_of

    header = list(block.columns)
    time = flags.get("time_column") or header[0]
    drop = flags.get("drop", [])
    names = only or [name for name in header if name not in (time, *drop)]
    for name in [time, *drop, *names]:
        if name != "none":
            place_of(name, header, block.path)
    if not names:
        remedy = "add at least one column of numbers next to the time"
        raise UserError("no column of numbers", str(block.path), remedy)
    return time, names


def fill_gaps(values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Replace each NaN in values (rows, C) by the last known value, never by a later one.

    last: the values (C,) before the first row.
    """
    padded = np.concatenate([last[None], values])
    rows = np.arange(len(padded))[:, None]
    last_known = np.maximum.accumulate(np.where(np.isnan(padded), 0, rows))
    return np.take_along_axis(padded, last_known, 0)[1:]


def check_known(block: Block, names: list[str], values: np.ndarray) -> None:
    """Raise `UserError` for the first NaN in values (rows, C)."""
    is_missing = np.isnan(values)
    if is_missing.any():
        row, column = np.argwhere(is_missing)[0]
        remedy = "fill it in, or run `prepare` with --fill last to use the value before, if any"
        raise block.error("an empty cell", row, names[column], remedy)


def read_times(block: Block, column: str, last: int) -> np.ndarray:
    """Return times (rows,) int64. last: the time of the row before.

    Raises `UserError` for a row that is not later than the row before.
    """
    times = block.times(column)
    seconds = times.astype(np.int64)
    distances = np.diff(seconds, prepend=last)
    is_wrong = np.isnat(times) | (distances <= 0)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        cell = block.column(column)[row]
        if not cell.is_valid:
            raise block.error("a time is missing", row, column, "fill it in, or remove the row")
        raise block.error(f"'{cell}' is not later than the time before", row, column, SORT)
    return seconds


def find_step(times: np.ndarray) -> int:
    """Return the usual distance of rows, in seconds. Print how many are further apart."""
    if len(times) < 2:
        return 1
    step = max(int(np.median(np.diff(times[:BLOCK_ROWS]))), 1)
    gaps = 0
    for start in range(0, len(times) - 1, BLOCK_ROWS):
        distances = np.diff(times[start : start + BLOCK_ROWS + 1])
        gaps += int((distances > longest_step(step)).sum())
    if gaps:
        print(f"note: gaps in time, which windows run across: {gaps:,}")
    return step


def longest_step(step: int) -> float:
    """Return the largest distance of rows that follow each other, with jitter."""
    return (1 + 2 * JITTER) * step


# --- what a model is built from


def find_targets(given: str | None, names: list[str], source: Source) -> list[int]:
    """Return the columns that `--targets` names; all of them by default."""
    from .tables import place_of

    wanted = given.split(",") if given else names
    return [place_of(name.strip(), names, source.path) for name in wanted]


def check_windows(splits: dict[str, list[int]], reach: int, horizon: int, where: str) -> None:
    """Raise `UserError`, with `where`, if no window fits into training or validation.

    reach: the first row with a complete history.
    """
    if min(reach, horizon) < 1:
        remedy = "use at least 1 row for each"
        raise UserError("no window without rows", "--history, --horizon", remedy)
    counts = []
    for first, last in splits.values():
        counts.append(max(last - horizon - max(first, reach) + 1, 0))
    if not (counts[0] and counts[1]):
        what = f"{counts[0]} training and {counts[1]} validation windows fit into the split"
        raise UserError(what, where, "give it more rows, or use a smaller --history")
