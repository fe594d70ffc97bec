"""Sort, fill and check the rows of one series after the other, and write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter
from .grid import Grid
from .panel import Panel, Roles

FILL = "fill it in, or see --fill: none leaves it out of the loss, last and zero replace it"
FILL_KNOWN = "fill it in, or run `prepare` with --fill last to use the value before, if any"


@dataclass
class Completing:
    """Completes one series after the other, and writes it together with the rows to forecast."""

    writer: StoreWriter
    path: Path
    roles: Roles
    grid: Grid
    horizon: int
    fill: str | None = None  # what is in --fill
    max_gap: int | None = None  # the longest gap that windows cross, in seconds; None: any

    def __post_init__(self) -> None:
        self.targets = self.roles.places(self.roles.targets)
        self.known = self.roles.places(self.roles.known)
        self.row = 0  # rows so far
        self.extents: list[list[int]] = []  # of each series: first row, end of targets
        self.breaks: list[int] = []
        self.static: list[np.ndarray] = []
        self.num_absent = 0
        self.num_early = 0  # rows before the first target of their series

    def add(self, name: str, times: np.ndarray, values: np.ndarray) -> None:
        """Complete and write a series."""
        order = np.argsort(times, kind="stable")
        times = times[order]
        values = values[order]
        self.check_order(name, times, order)
        num_columns = len(self.roles.values)
        static = values[:, num_columns:]
        self.check_static(name, times, static)
        self.static.append(static[0].copy())  # a view would keep all rows in memory
        values = values[:, :num_columns]
        makes_rows = self.fill in ("last", "zero")
        if makes_rows:
            times, values = self.on_grid(times, values)
        first, end = self.extent(values)
        if makes_rows:  # also by the values of rows that are left out
            self.replace_missing(values)
        last = end + self.horizon
        times = times[first:last]
        values = values[first:last]
        self.check_cells(name, times, values, end - first)
        self.find_breaks(times, end - first)
        self.write(times, values, end - first)

    def where(self, name: str, time: int, column: str = "") -> str:
        """Return the place of a cell, for an error."""
        parts = [str(self.path)]
        if name:
            parts.append(f"series '{name}'")
        has_times = self.roles.time != "none"
        parts.append(str(np.datetime64(int(time), "s")) if has_times else f"row {time + 1}")
        if column:
            parts.append(f"column '{column}'")
        return ", ".join(parts)

    def check_order(self, name: str, times: np.ndarray, order: np.ndarray) -> None:
        """Raise `UserError` if a time comes twice, or if a single series is not in order."""
        is_double = np.diff(times) == 0
        if is_double.any():
            where = self.where(name, times[is_double.argmax()])
            remedy = "keep one row per series and time; if columns name more series, see --series"
            raise UserError("two rows have one time", where, remedy)
        is_late = np.diff(order) < 0
        if is_late.any() and not self.roles.series:
            where = self.where(name, times[is_late.argmax()])
            remedy = "sort the rows by time, or name the columns that tell series apart: --series"
            raise UserError("the rows are not in order of time", where, remedy)

    def check_static(self, name: str, times: np.ndarray, columns: np.ndarray) -> None:
        """Raise `UserError` if a static column (rows, K) changes."""
        is_other = columns != columns[0]  # also if a cell is empty
        if is_other.any():
            row, place = np.argwhere(is_other)[0]
            column = self.roles.static[place]
            where = self.where(name, times[row], column)
            if np.isnan(columns[row, place]):
                raise UserError("an empty cell in a static column", where, "fill it in")
            remedy = f"use --known {column}, or leave it out of --static"
            raise UserError("a static column changes", where, remedy)

    def on_grid(self, times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add rows, with empty cells, where the grid has times and the series has none."""
        absent = self.grid.absent(times)
        rows = np.arange(len(times)) + np.append(0, np.cumsum(absent))
        all_rows = np.arange(rows[-1] + 1)
        all_values = np.full((len(all_rows), values.shape[1]), np.nan, values.dtype)
        all_values[rows] = values
        before = np.searchsorted(rows, all_rows, side="right") - 1  # the row of the table
        all_times = self.grid.after(times[before], all_rows - rows[before])
        all_times[rows] = times
        return all_times, all_values

    def extent(self, values: np.ndarray) -> tuple[int, int]:
        """Return the first row that has a target, and the row after the last one."""
        has_target = ~np.isnan(values[:, self.targets]).all(1)
        rows = np.flatnonzero(has_target)
        if not len(rows):
            return 0, 0
        self.num_early += int(rows[0])
        return int(rows[0]), int(rows[-1]) + 1

    def replace_missing(self, values: np.ndarray) -> None:
        """Fill empty cells (rows, C); those of a target only up to its last value."""
        for column in range(values.shape[1]):
            cells = values[:, column]
            if column in self.targets:
                last = np.flatnonzero(~np.isnan(cells)).max(initial=-1)
                cells = cells[: last + 1]
                if self.fill == "zero":
                    np.nan_to_num(cells, copy=False)
            rows = np.where(np.isnan(cells), 0, np.arange(len(cells)))
            cells[:] = cells[np.maximum.accumulate(rows)]

    def check_cells(self, name: str, times: np.ndarray, values: np.ndarray, end: int) -> None:
        """Raise `UserError` for an empty cell that nothing allows."""
        is_missing = np.isnan(values)
        is_known = np.zeros(values.shape[1], bool)
        is_known[self.known] = True
        required = 0 if self.fill == "none" else end  # rows whose past columns must have values
        is_missing[required:, ~is_known] = False
        if self.fill:
            is_missing[:, self.targets] = False
        if is_missing.any():
            row, column = np.argwhere(is_missing)[0]
            where = self.where(name, times[row], self.roles.values[column])
            remedy = FILL_KNOWN if is_known[column] else FILL
            raise UserError("an empty cell", where, remedy)

    def find_breaks(self, times: np.ndarray, end: int) -> None:
        """Count absent rows, and note where a gap before the end of targets is too long."""
        absent = self.grid.absent(times)
        self.num_absent += int(absent.sum())
        if self.max_gap is not None:
            is_long = (absent + 1) * self.grid.step > self.max_gap
            rows = np.flatnonzero(is_long & (absent > 0)) + 1
            self.breaks += (self.row + rows[rows < end]).tolist()

    def write(self, times: np.ndarray, values: np.ndarray, end: int) -> None:
        """Write a series, with as many rows after its last target as are forecast.

        A series that has ended has none: what is known of its future is not in the table.
        """
        num_new = end + self.horizon - len(times)
        has_ended = bool(self.known) and len(times) == end
        if end and num_new and not has_ended:
            later = self.grid.after(times[-1:], 1 + np.arange(num_new))
            times = np.append(times, later)
            empty = np.full((num_new, values.shape[1]), np.nan, values.dtype)
            values = np.concatenate([values, empty])
        self.writer.append(".rows", values)
        self.writer.append("time", times)
        self.extents.append([self.row, self.row + end])
        self.row += len(times)

    def finish(self, keys: list[str]) -> Panel:
        """Print what was noticed, and return the whole."""
        if self.num_early:
            note = "rows before the first target of their series, left out"
            print(f"note: {note}: {self.num_early:,}")
        if self.num_absent and self.max_gap is None:
            note = "absent rows, across which windows run (see --fill and --max-gap)"
            print(f"note: {note}: {self.num_absent:,}")
        extents = np.array(self.extents)
        if (extents[:, 0] == extents[:, 1]).all():
            columns = ", ".join(self.roles.targets)
            raise UserError("no row has a target", f"{self.path}, {columns}", "see --targets")
        return Panel(
            roles=self.roles,
            grid=self.grid,
            keys=keys,
            firsts=extents[:, 0],
            ends=extents[:, 1],
            breaks=self.breaks,
            static=np.array(self.static),
            values=self.writer.appended(".rows"),
            times=self.writer.appended("time"),
        )
