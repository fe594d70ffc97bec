"""A series in memory: read from a CSV file, checked, and resampled into bars of other time frames."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .engine.errors import UserError

FLOAT32_MAX = 3.4e38
EMPTY = ("", "NA", "nan", "NaN")
RULES = ("first", "max", "min", "last", "sum")
BY_NAME = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}  # others: last
REDUCE = {"max": np.maximum, "min": np.minimum, "sum": np.add}


@dataclass(frozen=True)
class Series:
    """Rows in the order of time; a row is known `step` seconds after its time, when its bar closes."""

    names: list[str]
    times: np.ndarray  # (N,) int64, seconds since 1970, or row numbers
    values: np.ndarray  # (N, C) float32
    step: int

    def __len__(self) -> int:
        return len(self.times)


def resample(series: Series, step: int, how: dict[str, str]) -> Series:
    """Bars of `step` seconds, each with the time of its beginning; only bars that the data close.

    how: the rule of a column, where it is not that of its name.
    """
    if step == series.step:
        return series
    bars, begins = np.unique(series.times // step, return_index=True)
    ends, columns = np.append(begins[1:], len(series)) - 1, []
    for name, column in zip(series.names, series.values.T, strict=True):
        rule = how.get(name) or BY_NAME.get(name.lower(), "last")
        reduce = REDUCE.get(rule)
        at = begins if rule == "first" else ends
        columns.append(reduce.reduceat(column, begins) if reduce else column[at])
    whole = bars * step + step <= series.times[-1] + series.step
    return Series(series.names, bars[whole] * step, np.stack(columns, 1)[whole], step)


class Source(NamedTuple):
    """A CSV file, plain or gzipped."""

    path: Path
    delimiter: str = ","

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, stripped cells) of the header and of each row; blank lines are skipped."""
        from tqdm import tqdm

        line = width = 0
        try:
            size = self.path.stat().st_size
            bar = tqdm(None, "reading", size, unit="B", unit_scale=True, disable=None)
            with open(self.path, "rb") as raw, bar:
                packed = raw.peek(2)[:2] == b"\x1f\x8b"
                plain = gzip.GzipFile(fileobj=raw) if packed else raw
                text = io.TextIOWrapper(plain, "utf-8-sig", newline="")
                reader = csv.reader(text, delimiter=self.delimiter, strict=True)
                for row in reader:
                    line, width = reader.line_num, width or len(row)
                    if row and len(row) != width:
                        what = f"{len(row)} cells where the header has {width}"
                        raise UserError(what, f"{self.path}, line {line}", "mend the line")
                    if row:
                        yield line, [cell.strip() for cell in row]
                    bar.update(raw.tell() - bar.n)
        except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
            readable = not isinstance(error, UnicodeDecodeError)
            what = f"not a readable CSV file ({error})" if readable else "not UTF-8 text"
            raise UserError(what, f"{self.path}, after line {line}", "mend or convert the file") from error
        except OSError as error:
            what = f"cannot read the file ({error.strerror or error})"
            raise UserError(what, str(self.path), "check --input") from error

    def series(
        self, time_column: str | None, drop: list[str], fill: str | None, only: list[str] | None = None
    ) -> Series:
        """The whole file, or some columns of it. Raises `UserError`, with row and column, for no series."""
        rows = self.rows()
        header = self._header(next(rows, (0, []))[1])
        time = "" if time_column == "none" else time_column or header[0]
        names = only or [name for name in header if name != time and name not in drop]
        for name in drop:
            place_of(name, header, self.path)
        columns = [place_of(name, header, self.path) for name in names]
        place = place_of(time, header, self.path) if time else -1
        if not names:
            raise UserError("no column of numbers", str(self.path), "it needs a time and one or more numbers")
        cells, values = [], []
        for line, row in rows:
            cells.append(row[place])
            values.append([self._number(row[at], line, header[at], fill, not only) for at in columns])
        if not values:
            raise UserError("no rows under the header", str(self.path), "there is nothing to learn from")
        table = np.array(values, np.float64)
        self._fill(table, names)
        times, step = self._times(cells, time) if time else (np.arange(len(table)), 1)
        return Series(names, times, table.astype(np.float32), step)

    def _header(self, names: list[str]) -> list[str]:
        if not names:
            raise UserError("the file is empty", str(self.path), "it needs a header line and rows")
        if self.delimiter == "," and len(names) == 1 and {";", "\t"} & {*names[0]}:
            mark = "';'" if ";" in names[0] else "tab"
            remedy = f"write commas, or prepare with --delimiter {mark}"
            raise UserError("no commas between the names", f"{self.path}, line 1", remedy)
        for place, name in enumerate(names):
            if not name or name in names[:place]:
                what = f"two columns are named '{name}'" if name else f"column {place + 1} has no name"
                raise UserError(what, f"{self.path}, line 1", "name it; from pandas, export with index=False")
        return names

    def _number(self, cell: str, line: int, column: str, fill: str | None, may_drop: bool) -> float:
        if fill and cell in EMPTY:
            return math.nan
        try:
            if abs(value := float(cell)) < FLOAT32_MAX:
                return value
            what = f"'{cell}' is not a finite number"
        except ValueError:
            what = f"'{cell}' is not a number"
        remedy = f"mend it, or --drop '{column}'" if may_drop else "mend it"  # `predict` has no --drop
        if cell in EMPTY:
            what, remedy = "an empty cell", "--fill last takes the last known value instead"
        raise UserError(what, f"{self.path}, line {line}, column '{column}'", remedy)

    def _fill(self, table: np.ndarray, names: list[str]) -> None:
        """Fills gaps with the value before them, never with a later one."""
        for name, column in zip(names, table.T, strict=True):
            gaps = np.isnan(column)
            if gaps[0]:
                where, remedy = f"{self.path}, first row, column '{name}'", "cut the file where it begins"
                raise UserError("nothing to fill an empty cell with", where, remedy)
            if gaps.any():
                column[:] = column[np.maximum.accumulate(np.where(gaps, 0, np.arange(len(column))))]
                filled = f"{gaps.sum():,} empty cells ({gaps.mean():.1%})"
                print(f"note: column '{name}': {filled} filled with the last value")

    def _times(self, cells: list[str], column: str) -> tuple[np.ndarray, int]:
        """Seconds since 1970 of each row, and the step between most rows."""
        try:
            whole = cells[0].lstrip("-").isdecimal()
            times = np.array(cells, np.int64 if whole else "datetime64[s]").astype(np.int64)
        except (ValueError, OverflowError) as error:
            remedy = "2016-07-01 00:00:00, or seconds; see --time-column"
            raise UserError(f"not a time ({error})", f"{self.path}, column '{column}'", remedy) from error
        steps = np.diff(times)
        for row in np.flatnonzero(steps <= 0)[:1]:
            what, remedy = "the same time twice", "keep one of the two"
            if steps[row]:
                what, remedy = "the time goes back", "sort the rows by time, one for each"
            where = f"{self.path}, row {row + 2}, '{cells[row + 1]}' after '{cells[row]}'"
            raise UserError(what, where, remedy)
        found, counts = np.unique(steps, return_counts=True)
        step = int(found[counts.argmax()]) if len(found) else 1
        if (gaps := np.flatnonzero(steps > step)).size:
            longest = gaps[steps[gaps].argmax()]
            length, after = steps[longest] / step, f"row {longest + 1} ({cells[longest]})"
            print(f"note: {gaps.size:,} gaps in time, the longest of {length:,.0f} steps after {after};")
            print("      windows run across them as if nothing were missing")
        return times, step


def place_of(name: str, names: list[str], path: Path) -> int:
    """Where a column is; raises `UserError` where it is not there, with the one that was probably meant."""
    if name in names:
        return names.index(name)
    likely = get_close_matches(name, names, 1)
    hint = f"did you mean '{likely[0]}'?" if likely else f"it has {', '.join(names[:20])}"
    raise UserError(f"no column '{name}'", str(path), hint)
