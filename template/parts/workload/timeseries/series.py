"""A series: read from a table, checked, and resampled into bars of other time frames, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .engine.errors import UserError
from .engine.store import StoreWriter
from .scaling import BLOCK_ROWS

if TYPE_CHECKING:
    from .tables import Source

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
    from .tables import place_of

    names, last, rows, longest = only or [], np.empty(0), 0, (0, 0, "")
    steps, gaps, before = Counter[int](), np.zeros(0, int), ""
    for block in source.blocks("reading"):
        if not rows:
            header = block.table.column_names
            time = "" if time == "none" else time or header[0]
            names = only or [name for name in header if name != time and name not in drop]
            for name in [*drop, *names, *([time] if time else [])]:
                place_of(name, header, source.path)
            if not names:
                what = "no column of numbers"
                raise UserError(what, str(source.path), "it needs a time and one or more numbers")
            last, gaps = np.full(len(names), np.nan), np.zeros(len(names), int)
            times = np.empty(0, np.int64)
        remedy = "mend it" if only else "mend it, or --drop '{}'"  # `predict` has no --drop
        gap = None if fill else ("an empty cell", "--fill last takes the last known value instead")
        values = np.stack([block.numbers(name, remedy.format(name), gap) for name in names], 1)
        if (empty := np.isnan(values)).any():  # the value before it, never a later one
            gaps, padded = gaps + empty.sum(0), np.concatenate([last[None], values])
            at = np.maximum.accumulate(np.where(np.isnan(padded), 0, np.arange(len(padded))[:, None]))
            values = np.take_along_axis(padded, at, 0)[1:]
            if np.isnan(values[0]).any():
                column = names[int(np.isnan(values[0]).argmax())]
                what = "nothing to fill an empty cell with"
                raise block.error(what, 0, column, "cut the file where it begins")
        last = values[-1]
        writer.append(".values", values.astype(np.float32))
        ends = times[-1:]
        times = block.times(time) if time else np.arange(rows, rows + len(values))
        writer.append(".times", times)
        apart = np.diff(times, prepend=ends)
        first = len(times) - len(apart)
        cells = block.column(time) if time else times
        for row in np.flatnonzero(apart <= 0)[:1]:
            back = bool(apart[row])
            what = "the time goes back" if back else "the same time twice"
            remedy = "sort the rows by time, one for each" if back else "keep one of the two"
            raise block.error(f"{what}: '{cells[int(row) + first]}'", int(row) + first, str(time), remedy)
        steps.update(
            dict(zip(*(part.tolist() for part in np.unique(apart, return_counts=True)), strict=True))
        )
        if len(apart) and apart.max() > longest[0]:
            row = int(apart.argmax()) + first
            longest = int(apart.max()), rows + row, str(cells[row - 1]) if row else before
        rows, before = rows + len(values), str(cells[-1])
    for name, count in zip(names, gaps.tolist(), strict=True):
        if count:
            filled = f"{count:,} empty cells ({count / rows:.1%})"
            print(f"note: column '{name}': {filled} filled with the last value")
    step = min(steps, key=lambda step: (-steps[step], step)) if steps else 1
    if holes := sum(count for apart, count in steps.items() if apart > step):
        length, after = longest[0] / step, f"row {longest[1]} ({longest[2]})"
        print(f"note: {holes:,} gaps in time, the longest of {length:,.0f} steps after {after};")
        print("      windows run across them as if nothing were missing")
    return Series(names, writer.appended(".times"), writer.appended(".values"), step)
