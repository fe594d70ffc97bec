"""Read a time series from a table, check that its rows are in order of time, and describe it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .scaling import BLOCK_ROWS, Scaler

if TYPE_CHECKING:
    from .tables import Block, Source

EMPTY = ("", "NA", "nan", "NaN")
UNSORTED = (
    "sort the rows, and keep one per time (read to the second); if no column is a time, `prepare` "
    "with --time-column none"
)
SAMPLED = 61  # one row of so many shows how much float32 rounds
JITTER = 0.1  # rows may be early or late by this fraction of their usual distance


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
    fill = flags.get("fill", "last")  # synthetic data have no flags
    remedy = "fix it" if only else "fix it, or see --drop"
    last_time = np.empty(0, np.int64)
    last_values = np.full(len(names), np.nan)
    num_empty = 0
    rounding = Rounding(names)

    for block in chain([first], blocks):
        values = np.stack([block.numbers(name, remedy) for name in names], 1)
        block_empty = int(np.isnan(values).sum())
        if block_empty:
            num_empty += block_empty
            values = fill_gaps(block, names, values, last_values if fill else None)
        times = read_times(block, time, last_time)
        stored = values.astype(np.float32)
        writer.append(arrays[0], stored)
        writer.append(arrays[1], times)
        rounding.add(values[::SAMPLED], stored[::SAMPLED])
        last_time = times[-1:]
        last_values = values[-1]

    if num_empty:
        print(f"note: empty cells filled with the last value: {num_empty:,}")
    rounding.note()
    writer.source = {"file": source.path.name, **source.written, "time_column": time, "fill": fill}
    return written_series(writer, names, arrays)


def written_series(writer: StoreWriter, names: list[str], arrays: tuple[str, str]) -> Series:
    """Return the series whose rows were written."""
    values = writer.appended(arrays[0])
    times = writer.appended(arrays[1])
    note_row_numbers(names, values)
    writer.source["rows"] = len(times)
    return Series(names, times, values, find_step(times))


class Rounding:
    """How much float32 rounds the columns of a series, seen in some of their rows."""

    def __init__(self, names: list[str]):
        self.names = names
        self.values = Scaler(len(names))
        self.errors = Scaler(len(names))

    def add(self, values: np.ndarray, stored: np.ndarray) -> None:
        """Count rows (rows, C), as they were read and as they are stored."""
        self.values.add(values)
        self.errors.add(values - stored)

    def note(self) -> None:
        """Print a note for each column that loses precision."""
        for place in np.flatnonzero(self.errors.squares > 1e-6 * self.values.squares):
            column = f"column '{self.names[place]}'"
            what = f"float32 rounds {column} by more than 0.1 % of its standard deviation"
            print(f"note: {what}: subtract a constant first")


def note_row_numbers(names: list[str], values: np.ndarray) -> None:
    """Print a note for each column of values (N, C) that counts the rows."""
    for name, column in zip(names, values.T, strict=True):
        if len(column) > 1 and all((np.diff(part) == 1).all() for part in blocks_of(column)):
            remedy = f"--drop '{name}' leaves it out"
            print(f"note: column '{name}' counts the rows, and is an input: {remedy}")


def choose_columns(
    block: Block, flags: dict[str, Any], only: list[str] | None
) -> tuple[str, list[str]]:
    """Return the name of the time column, `none` if rows count, and the names of the values."""
    from .tables import place_of

    header = block.table.column_names
    path = block.source.path
    given = flags.get("time_column")
    time = given or header[0]
    drop = flags.get("drop", [])
    names = only or [name for name in header if name not in (time, *drop)]
    needed = [] if time == "none" else [time]
    for name in [*drop, *names, *needed]:
        place_of(name, header, path)
    if not names:
        remedy = "add at least one column of numbers next to the time"
        raise UserError("no column of numbers", str(path), remedy)
    for name in names:
        if not given and block.is_time(name):
            what = f"'{time}' is taken for the time of a row, but column '{name}' has times"
            remedy = f"add --time-column '{name}', or leave the column out with --drop '{name}'"
            raise UserError(what, str(path), remedy)
    return time, names


def fill_gaps(
    block: Block, names: list[str], values: np.ndarray, last: np.ndarray | None
) -> np.ndarray:
    """Replace each NaN in values (rows, C) by the last known value, never by a later one.

    last: the values (C,) before the first row; None fills no cell. Raises `UserError` for the first
    cell that is still empty.
    """
    what = "an empty cell"
    remedy = "fill it in, or run `prepare` with --fill last to use the last known value"
    if last is not None:
        padded = np.concatenate([last[None], values])
        rows = np.arange(len(padded))[:, None]
        last_known = np.maximum.accumulate(np.where(np.isnan(padded), 0, rows))
        values = np.take_along_axis(padded, last_known, 0)[1:]
        what = "an empty cell has no earlier value to fill it with"
        remedy = "fill it in, or start the file at a later row"
    for row, column in np.argwhere(np.isnan(values))[:1].tolist():
        raise block.error(what, row, names[column], remedy)
    return values


def read_times(block: Block, column: str, last: np.ndarray) -> np.ndarray:
    """Return times (rows,) int64; row numbers if there is no time column.

    last: the time of the row before, empty for the first block. Raises `UserError` for a row that
    is not later than the row before.
    """
    if column == "none":
        return block.first + np.arange(len(block.table))
    times, is_known = block.times(column, is_sole=True)
    if not is_known.all():
        row = int(is_known.argmin())
        raise block.error("a time is missing", row, column, "fill it in, or see --time-column")

    distances = np.diff(times, prepend=last)
    wrong = np.flatnonzero(distances <= 0)
    if len(wrong):
        row = int(wrong[0]) + len(times) - len(distances)
        what = "the time goes back" if distances[wrong[0]] else "the same time twice"
        cell = block.column(column)[row]
        raise block.error(f"{what}: '{cell}'", row, column, UNSORTED)
    return times


def find_step(times: np.ndarray) -> int:
    """Return the usual distance of rows, in seconds. Print a note if some are further apart."""
    distances = np.diff(times[:BLOCK_ROWS])
    if not len(distances):
        return 1
    step = max(int(np.median(distances)), 1)
    gaps = 0
    longest = 0
    for start in range(0, len(times) - 1, BLOCK_ROWS):
        distances = np.diff(times[start : start + BLOCK_ROWS + 1])
        gaps += int((distances > longest_step(step)).sum())
        longest = max(longest, int(distances.max()))
    if gaps:
        print(f"note: gaps in time: {gaps:,}, the longest of {longest / step:,.0f} steps;")
        print("      windows run across them")
    return step


def longest_step(step: int) -> float:
    """Return the largest distance of rows that follow each other, with jitter."""
    return (1 + 2 * JITTER) * step


# --- what a model is built from


def find_targets(given: str | None, names: list[str], source: Source) -> list[int]:
    """Return the columns that `--targets` names; all of them by default."""
    from .tables import place_of

    wanted = given.split(",") if given else names
    targets = [place_of(name.strip(), names, source.path) for name in wanted]
    if len(set(targets)) < len(targets):
        remedy = "name each column once"
        raise UserError("a column is named twice", f"--targets {given}", remedy)
    return targets


def check_windows(splits: dict[str, list[int]], reach: int, horizon: int, where: str) -> None:
    """Raise `UserError`, with `where`, if no window fits into training or validation.

    reach: the first row with a complete history.
    """
    counts = []
    for first, last in splits.values():
        counts.append(max(last - horizon - max(first, reach) + 1, 0))
    if not (counts[0] and counts[1]):
        what = f"{counts[0]} training and {counts[1]} validation windows fit into the split"
        raise UserError(what, where, "give it more rows, or use a smaller --history")
