"""A series: read from a table, checked, and resampled into bars of other time frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from .engine.errors import UserError
from .engine.store import StoreWriter
from .scaling import BLOCK_ROWS

if TYPE_CHECKING:
    from .tables import Block, Source

EMPTY = ("", "NA", "nan", "NaN")
RULES = ("first", "max", "min", "last", "sum")
# The rules of columns with these names; all others have `last`.
BY_NAME = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
REDUCE = {"max": np.maximum, "min": np.minimum, "sum": np.add}


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

    def blocks(self, rows: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Times and values of the first `rows`, in blocks."""
        last = len(self) if rows is None else rows
        for start in range(0, last, BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, last))
            yield self.times[block], self.values[block]


# --- resampling


def resample(
    writer: StoreWriter, name: str, series: Series, step: int, how: dict[str, str]
) -> Series:
    """Bars of `step` seconds, each with the time of its beginning; only bars that the data close.

    how: the rule of a column, where it is not that of its name.
    """
    if step == series.step:
        return series
    rules = [how.get(column) or BY_NAME.get(column.lower(), "last") for column in series.names]
    known_until = series.times[-1] + series.step

    # Rows of the last bar, which may continue in the next block.
    open_times = np.empty(0, np.int64)
    open_values = np.empty((0, len(rules)), np.float32)
    num_read = 0
    for block_times, block_values in series.blocks():
        num_read += len(block_times)
        times = np.concatenate([open_times, block_times])
        values = np.concatenate([open_values, block_values])
        bars, begins = np.unique(times // step, return_index=True)
        is_closed = bars * step + step <= known_until
        is_closed[-1] &= num_read == len(series)
        writer.append(f".{name} times", bars[is_closed] * step)
        writer.append(f".{name} values", _reduce(values, begins, rules)[is_closed])
        open_times = times[begins[-1] :]
        open_values = values[begins[-1] :]

    times = writer.appended(f".{name} times")
    values = writer.appended(f".{name} values")
    return Series(series.names, times, values, step)


def _reduce(values: np.ndarray, begins: np.ndarray, rules: list[str]) -> np.ndarray:
    """(bars, C) of rows (n, C): begins (bars,) are the first rows of the bars."""
    ends = np.append(begins[1:], len(values)) - 1
    columns = []
    for rule, column in zip(rules, values.T, strict=True):
        if rule in REDUCE:
            columns.append(REDUCE[rule].reduceat(column, begins))
        elif rule == "first":
            columns.append(column[begins])
        else:
            columns.append(column[ends])
    return np.stack(columns, 1)


# --- reading


def read_series(
    writer: StoreWriter,
    source: Source,
    time: str | None,
    drop: list[str],
    fill: str | None,
    only: list[str] | None = None,
) -> Series:
    """The whole table, or some columns of it.

    Raises `UserError`, with row and column, for what is no series.
    """
    blocks = source.blocks("reading")
    first = next(blocks)
    time, names = _columns(first, time, drop, only)
    gap = None
    if not fill:
        gap = ("an empty cell", "--fill last takes the last known value instead")

    last_values = _LastValues(names)
    clock = _Clock(time)
    for block in chain([first], blocks):
        columns = []
        for name in names:
            # `predict` has no --drop.
            remedy = "mend it" if only else f"mend it, or --drop '{name}'"
            columns.append(block.numbers(name, remedy, gap))
        values = last_values.fill(block, np.stack(columns, 1))
        writer.append(".values", values.astype(np.float32))
        writer.append(".times", clock.times(block))

    last_values.report(clock.rows)
    step = clock.step()
    clock.report(step)
    return Series(names, writer.appended(".times"), writer.appended(".values"), step)


def _columns(
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
    for name in [*drop, *names]:
        place_of(name, header, path)
    if time:
        place_of(time, header, path)
    if not names:
        remedy = "it needs a time and one or more numbers"
        raise UserError("no column of numbers", str(path), remedy)
    return time, names


class _LastValues:
    """Fills empty cells with the value before them, never a later one; counts them by column."""

    def __init__(self, names: list[str]):
        self.names = names
        self.last = np.full(len(names), np.nan)
        self.counts = np.zeros(len(names), int)

    def fill(self, block: Block, values: np.ndarray) -> np.ndarray:
        """values (rows, columns), NaN where a cell is empty."""
        empty = np.isnan(values)
        if empty.any():
            self.counts = self.counts + empty.sum(0)
            padded = np.concatenate([self.last[None], values])
            rows = np.arange(len(padded))[:, None]
            known_rows = np.where(np.isnan(padded), 0, rows)
            last_known = np.maximum.accumulate(known_rows)
            values = np.take_along_axis(padded, last_known, 0)[1:]
            self._check(block, values[0])
        self.last = values[-1]
        return values

    def _check(self, block: Block, first_row: np.ndarray) -> None:
        unknown = np.isnan(first_row)
        if unknown.any():
            column = self.names[int(unknown.argmax())]
            what = "nothing to fill an empty cell with"
            raise block.error(what, 0, column, "cut the file where it begins")

    def report(self, rows: int) -> None:
        """Print a note for each column that had gaps."""
        for name, count in zip(self.names, self.counts.tolist(), strict=True):
            if count:
                cells = f"{count:,} empty cells ({count / rows:.1%})"
                print(f"note: column '{name}': {cells} filled with the last value")


class _Clock:
    """Times of rows, which must increase, and the distances between them."""

    def __init__(self, column: str):
        """column: empty where rows count."""
        self.column = column
        self.rows = 0
        self.distances = Counter[int]()
        self.longest = 0  # distance
        self.longest_row = 0
        self.longest_after = ""  # the time before it
        self.last = np.empty(0, np.int64)
        self.last_cell = ""

    def times(self, block: Block) -> np.ndarray:
        """(rows,) int64 of a block.

        Raises `UserError` for a row that is not later than the one before it.
        """
        cells: Any
        if self.column:
            times = block.times(self.column)
            cells = block.column(self.column)
        else:
            times = np.arange(self.rows, self.rows + len(block.table))
            cells = times
        distances = np.diff(times, prepend=self.last)
        first = len(times) - len(distances)  # row of the first distance: 1 in the first block
        self._check(block, distances, first, cells)
        self._count(distances, first, cells)
        self.rows += len(times)
        self.last = times[-1:]
        self.last_cell = str(cells[-1])
        return times

    def _check(self, block: Block, distances: np.ndarray, first: int, cells: Any) -> None:
        wrong = np.flatnonzero(distances <= 0)
        if not len(wrong):
            return
        row = int(wrong[0]) + first
        what = "the same time twice"
        remedy = "keep one of the two"
        if distances[wrong[0]]:
            what = "the time goes back"
            remedy = "sort the rows by time, one for each"
        raise block.error(f"{what}: '{cells[row]}'", row, self.column, remedy)

    def _count(self, distances: np.ndarray, first: int, cells: Any) -> None:
        values, counts = np.unique(distances, return_counts=True)
        self.distances.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(distances) and distances.max() > self.longest:
            row = int(distances.argmax()) + first
            self.longest = int(distances.max())
            self.longest_row = self.rows + row
            self.longest_after = str(cells[row - 1]) if row else self.last_cell

    def step(self) -> int:
        """The most frequent distance, the shorter one of two."""
        return min(self.distances, key=lambda step: (-self.distances[step], step), default=1)

    def report(self, step: int) -> None:
        """Print a note where rows are missing."""
        holes = sum(count for distance, count in self.distances.items() if distance > step)
        if holes:
            length = self.longest / step
            after = f"row {self.longest_row} ({self.longest_after})"
            print(
                f"note: {holes:,} gaps in time, the longest of {length:,.0f} steps after {after};"
            )
            print("      windows run across them as if nothing were missing")
