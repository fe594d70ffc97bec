"""A series: read from a table and checked, the rows in the order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..engine.errors import UserError
from ..engine.store import StoreWriter
from .scaling import BLOCK_ROWS

if TYPE_CHECKING:
    from .tables import Block, Source

EMPTY = ("", "NA", "nan", "NaN")


@dataclass(frozen=True)
class Series:
    """Rows in the order of time, in memory or mapped.

    A row is known `step` seconds after its time, when its bar closes.
    """

    names: list[str]
    times: np.ndarray  # (N,) int64, seconds since 1970, or row numbers
    values: np.ndarray  # (N, C) float32
    step: int

    def __len__(self) -> int:
        return len(self.times)


def blocks_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of an array, in blocks."""
    for start in range(0, len(array), BLOCK_ROWS):
        yield array[start : start + BLOCK_ROWS]


def read_series(
    writer: StoreWriter,
    source: Source,
    time: str | None,
    drop: list[str],
    fill: str | None,
    only: list[str] | None = None,
) -> Series:
    """The whole table, or some columns of it, in arrays that `writer` has until its end.

    Raises `UserError`, with row and column, for what is no series.
    """
    blocks = source.blocks("reading")
    first = next(blocks)
    time, names = choose_columns(first, time, drop, only)
    remedy = "fix it" if only else "fix it, or see --drop"
    last_time = np.empty(0, np.int64)
    last_values = np.full(len(names), np.nan)
    num_empty = 0

    for block in chain([first], blocks):
        values = np.stack([block.numbers(name, remedy) for name in names], 1)
        is_empty = np.isnan(values)
        if is_empty.any():
            if fill:
                values = fill_gaps(values, last_values)
                num_empty += int(is_empty.sum())
            check_gaps(block, names, values, fill)
        times = read_times(block, time, last_time)
        writer.append(".values", values.astype(np.float32))
        writer.append(".times", times)
        last_time = times[-1:]
        last_values = values[-1]

    if num_empty:
        print(f"note: {num_empty:,} empty cells filled with the last value")
    times = writer.appended(".times")
    return Series(names, times, writer.appended(".values"), find_step(times))


def choose_columns(
    block: Block, time: str | None, drop: list[str], only: list[str] | None
) -> tuple[str, list[str]]:
    """The name of the column of times, empty where rows count, and of the columns of values."""
    from .tables import place_of

    header = block.table.column_names
    path = block.source.path
    if time == "none":
        time = ""
    elif not time:
        time = header[0]
    names = only or [name for name in header if name != time and name not in drop]
    needed = [time] if time else []
    for name in [*drop, *names, *needed]:
        place_of(name, header, path)
    if not names:
        remedy = "it needs a time and one or more numbers"
        raise UserError("no column of numbers", str(path), remedy)
    return time, names


def fill_gaps(values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Put the value before it in place of each NaN (rows, C), never a later one.

    last: (C,) values before the first row.
    """
    padded = np.concatenate([last[None], values])
    rows = np.arange(len(padded))[:, None]
    known_rows = np.where(np.isnan(padded), 0, rows)
    last_known = np.maximum.accumulate(known_rows)
    return np.take_along_axis(padded, last_known, 0)[1:]


def check_gaps(block: Block, names: list[str], values: np.ndarray, fill: str | None) -> None:
    """Raise `UserError` for the first cell that is still empty."""
    rows, columns = np.nonzero(np.isnan(values))
    if len(rows):
        what = "an empty cell"
        remedy = "--fill last takes the last known value instead"
        if fill:
            what = "nothing to fill an empty cell with"
            remedy = "cut the file where it begins"
        raise block.error(what, int(rows[0]), names[columns[0]], remedy)


def read_times(block: Block, column: str, last: np.ndarray) -> np.ndarray:
    """(rows,) int64 of a column; without one, rows count. last: the time before them, or none.

    Raises `UserError` for a row that is not later than the one before it.
    """
    if not column:
        return block.first + np.arange(len(block.table))
    times, is_known = block.times(column)
    if not is_known.all():
        row = int(is_known.argmin())
        raise block.error("a time is missing", row, column, "fill it in, or see --time-column")

    distances = np.diff(times, prepend=last)
    wrong = np.flatnonzero(distances <= 0)
    if len(wrong):
        row = int(wrong[0]) + len(times) - len(distances)
        what = "the time goes back" if distances[wrong[0]] else "the same time twice"
        cell = block.column(column)[row]
        raise block.error(f"{what}: '{cell}'", row, column, "sort the rows, one for each time")
    return times


def find_step(times: np.ndarray) -> int:
    """The most frequent distance of rows, the shorter one of two; print a note of longer ones."""
    counts = Counter[int]()
    for start in range(0, len(times) - 1, BLOCK_ROWS):
        counts.update(np.diff(times[start : start + BLOCK_ROWS + 1]).tolist())
    step = min(counts, key=lambda distance: (-counts[distance], distance), default=1)
    gaps = sum(count for distance, count in counts.items() if distance > step)
    if gaps:
        print(f"note: {gaps:,} gaps in time, the longest of {max(counts) / step:,.0f} steps;")
        print("      windows run across them as if nothing were missing")
    return step
