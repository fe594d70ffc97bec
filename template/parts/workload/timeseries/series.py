"""A series: read from a table, checked, and resampled into bars of other time frames, block by block."""

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
BY_NAME = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}  # others: last
REDUCE = {"max": np.maximum, "min": np.minimum, "sum": np.add}


@dataclass(frozen=True)
class Series:
    """Rows in the order of time, in memory or mapped; a row is known `step` seconds after its time, when its
    bar closes."""

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
            part = slice(start, min(start + BLOCK_ROWS, last))
            yield self.times[part], self.values[part]


def resample(writer: StoreWriter, name: str, series: Series, step: int, how: dict[str, str]) -> Series:
    """Bars of `step` seconds, each with the time of its beginning; only bars that the data close.

    how: the rule of a column, where it is not that of its name.
    """
    if step == series.step:
        return series
    rules = [how.get(column) or BY_NAME.get(column.lower(), "last") for column in series.names]
    known, done = series.times[-1] + series.step, 0
    left: tuple[np.ndarray, ...] = (
        np.empty(0, np.int64),
        np.empty((0, len(rules)), np.float32),
    )  # rows of the bar that may go on
    for part in series.blocks():
        done += len(part[0])
        times, values = (np.concatenate(both) for both in zip(left, part, strict=True))
        bars, begins = np.unique(times // step, return_index=True)
        ends, columns = np.append(begins[1:], len(times)) - 1, []
        for rule, column in zip(rules, values.T, strict=True):
            reduce, at = REDUCE.get(rule), begins if rule == "first" else ends
            columns.append(reduce.reduceat(column, begins) if reduce else column[at])
        whole = bars * step + step <= known
        whole[-1] &= done == len(series)
        writer.append(f".{name} times", bars[whole] * step)
        writer.append(f".{name} values", np.stack(columns, 1)[whole])
        left = times[begins[-1] :], values[begins[-1] :]
    times, values = (writer.appended(f".{name} {part}") for part in ("times", "values"))
    return Series(series.names, times, values, step)


def read_series(
    writer: StoreWriter,
    source: Source,
    time: str | None,
    drop: list[str],
    fill: str | None,
    only: list[str] | None = None,
) -> Series:
    """The whole table, or some columns of it. Raises `UserError`, with row and column, for no series."""
    blocks = source.blocks("reading")
    first = next(blocks)
    time, names = _columns(first, time, drop, only)
    remedy = "mend it" if only else "mend it, or --drop '{}'"  # `predict` has no --drop
    gap = None if fill else ("an empty cell", "--fill last takes the last known value instead")
    filler, clock = _LastValues(names), _Clock(time)
    for block in chain([first], blocks):
        values = np.stack([block.numbers(name, remedy.format(name), gap) for name in names], 1)
        writer.append(".values", filler.fill(block, values).astype(np.float32))
        writer.append(".times", clock.times(block))
    filler.report(clock.rows)
    step = clock.step()
    clock.report(step)
    return Series(names, writer.appended(".times"), writer.appended(".values"), step)


def _columns(
    block: Block, time: str | None, drop: list[str], only: list[str] | None
) -> tuple[str, list[str]]:
    """The names of the column of times, empty where rows count, and of the columns of values."""
    from .tables import place_of

    header, path = block.table.column_names, block.source.path
    time = "" if time == "none" else time or header[0]
    names = only or [name for name in header if name != time and name not in drop]
    for name in [*drop, *names, *([time] if time else [])]:
        place_of(name, header, path)
    if not names:
        raise UserError("no column of numbers", str(path), "it needs a time and one or more numbers")
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
            at = np.maximum.accumulate(np.where(np.isnan(padded), 0, np.arange(len(padded))[:, None]))
            values = np.take_along_axis(padded, at, 0)[1:]
            unknown = np.isnan(values[0])
            if unknown.any():
                what, column = "nothing to fill an empty cell with", self.names[int(unknown.argmax())]
                raise block.error(what, 0, column, "cut the file where it begins")
        self.last = values[-1]
        return values

    def report(self, rows: int) -> None:
        """A note for each column that had gaps."""
        for name, count in zip(self.names, self.counts.tolist(), strict=True):
            if count:
                filled = f"{count:,} empty cells ({count / rows:.1%})"
                print(f"note: column '{name}': {filled} filled with the last value")


class _Clock:
    """Times of rows, which must increase, and the distances between them."""

    def __init__(self, column: str):
        """column: empty where rows count."""
        self.column, self.rows = column, 0
        self.distances = Counter[int]()
        self.longest = 0, 0, ""  # distance, its row, and the time before it
        self.last, self.last_cell = np.empty(0, np.int64), ""

    def times(self, block: Block) -> np.ndarray:
        """(rows,) int64 of a block. Raises `UserError` for a row that is not later than the one before it."""
        rows = len(block.table)
        times = block.times(self.column) if self.column else np.arange(self.rows, self.rows + rows)
        cells = block.column(self.column) if self.column else times
        distances = np.diff(times, prepend=self.last)
        first = len(times) - len(distances)  # row of the first distance: 1 in the first block
        self._check(block, distances, first, cells)
        values, counts = np.unique(distances, return_counts=True)
        self.distances.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(distances) and distances.max() > self.longest[0]:
            row = int(distances.argmax()) + first
            cell = str(cells[row - 1]) if row else self.last_cell
            self.longest = int(distances.max()), self.rows + row, cell
        self.rows += rows
        self.last, self.last_cell = times[-1:], str(cells[-1])
        return times

    def _check(self, block: Block, distances: np.ndarray, first: int, cells: Any) -> None:
        for place in np.flatnonzero(distances <= 0)[:1].tolist():
            row = place + first
            what, remedy = "the same time twice", "keep one of the two"
            if distances[place]:
                what, remedy = "the time goes back", "sort the rows by time, one for each"
            raise block.error(f"{what}: '{cells[row]}'", row, self.column, remedy)

    def step(self) -> int:
        """The most frequent distance, the shorter one of two."""
        return min(self.distances, key=lambda step: (-self.distances[step], step), default=1)

    def report(self, step: int) -> None:
        """A note where rows are missing."""
        holes = sum(count for distance, count in self.distances.items() if distance > step)
        if holes:
            length, after = self.longest[0] / step, f"row {self.longest[1]} ({self.longest[2]})"
            print(f"note: {holes:,} gaps in time, the longest of {length:,.0f} steps after {after};")
            print("      windows run across them as if nothing were missing")
