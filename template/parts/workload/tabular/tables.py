"""Tables from the files that people have, in blocks of rows: CSV, Parquet, Feather, Arrow, folders of them.

A cell of a CSV file stays a text until its number is asked for: types do not depend on the first rows,
and an error names file, row, column and cell.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .engine.errors import UserError
from .formats import ISO, NAMES, Readings, Sample, check_time_format, to_seconds
from .readers import BLOCK_CELLS, CODED, FLOAT, STRING, UNREADABLE, File, is_plain, kind_of, unreadable
from .scaling import BLOCK_ROWS

FLOAT32_MAX = 3.4e38
TEXT, BEYOND = -np.inf, np.inf
ENDINGS = {".csv", ".tsv", ".parquet", ".pq", ".feather", ".arrow"}
GAPS = {"nan", "none", "null", "n/a", "na", "#n/a", "-", "?"}  # what others write for a missing cell
FLAGS: dict[str, Any] = {"delimiter": ",", "decimal": ".", "encoding": "utf-8", "missing": []}


class Source:
    """A table in a file, or in files of a folder that have the same columns."""

    def __init__(
        self,
        path: Path,
        missing: tuple[str, ...],
        flags: dict[str, Any],
        known: dict[str, Any] | None = None,
    ):
        """missing: cells without a value, in addition to those of the flags.

        flags: some of `FLAGS`, and others; None where one is not given. known: what `written` was for
        earlier files of this kind.
        """
        self.path, self._known = path, known or {}
        self._given = {name: flags.get(name) for name in (*FLAGS, "time_format")}
        found = FLAGS | {name: value for name, value in self._known.items() if name in FLAGS}
        found |= {name: value for name, value in self._given.items() if value is not None}
        self.delimiter: str = {"tab": "\t"}.get(found["delimiter"], found["delimiter"])
        self.decimal: str = found["decimal"]
        self.encoding: str = found["encoding"]
        self.marks: list[str] = found["missing"]  # those of the flags alone
        self.missing = (*missing, *self.marks)
        self.gaps = self.missing  # in columns of numbers
        self.time_format: str | None = found.get("time_format")  # that of the flag
        self.time_formats: dict[str, str] = {}  # by column
        if self.time_format is None:
            self.time_formats |= self._known.get("time_formats", {})
        else:
            check_time_format(self.time_format)
        if len(self.delimiter) != 1 or len(self.decimal) != 1:
            what = f"--delimiter '{self.delimiter}' and --decimal '{self.decimal}' are not two characters"
            raise UserError(what, str(path), "such as --delimiter ';' --decimal ,")

    @property
    def written(self) -> dict[str, Any]:
        """How the files that were read are written, for `known` of later ones."""
        found = {name: getattr(self, name) for name in ("delimiter", "decimal", "encoding")}
        formats = {name: one for name, one in self.time_formats.items() if one != ISO}
        more = {"time_formats": formats} if formats else {}
        return {**found, "missing": self.marks, **more}

    def files(self) -> list[Path]:
        """The file, or those of the folder in the order of their names."""
        if not self.path.is_dir():
            return [self.path]
        found = sorted(path for path in self.path.iterdir() if ENDINGS & {*path.suffixes[-2:]})
        if not found:
            what = f"no {', '.join(sorted(ENDINGS))} or .csv.gz file in the folder"
            raise UserError(what, str(self.path), "point --input at the data")
        return found

    def blocks(self, title: str) -> Iterator[Block]:
        """Every row, block by block. Raises `UserError`, with the row, for what is no table."""
        files, starts, before = self.files(), [0], 0
        held: Any = None
        for path in files:
            for table in self._file(path).tables(title):
                if held is not None and {*held.column_names} != {*table.column_names}:
                    raise UserError(f"other columns than in {files[0].name}", str(path), "give them the same")
                both = [table] if held is None else [held, table.select(held.column_names)]
                try:
                    held = pa.concat_tables(both, promote_options="permissive")
                except pa.ArrowException as error:
                    what = f"other types of columns than in {files[0].name} ({error})"
                    raise UserError(what, str(path), "write them alike") from error
                size = max(min(BLOCK_ROWS, BLOCK_CELLS // held.num_columns), 1)
                while held.num_rows >= size:
                    yield Block(self, files, starts, before, held.slice(0, size))
                    held, before = held.slice(size), before + size
            if held is None or before + held.num_rows == starts[-1]:
                raise UserError("no rows under the header", str(path), "there is nothing to go by")
            starts.append(before + held.num_rows)
        if held.num_rows:
            yield Block(self, files, starts, before, held)

    def _file(self, path: Path) -> File:
        """A file to read; of a CSV, delimiter and decimal mark are found where no flag says them."""
        try:
            kind = kind_of(path)
            if kind not in ("parquet", "arrow"):
                self._settle(path, kind)
        except UNREADABLE as error:
            raise unreadable(path, self.encoding, error) from error
        return File(path, kind, self.delimiter, self.encoding, self.missing, path == self.path)

    def _settle(self, path: Path, kind: str) -> None:
        """Finds delimiter and decimal mark in the first rows. Raises `UserError` for what is no text."""
        if kind == "UTF-16" and "16" not in self.encoding:
            raise UserError("the file is UTF-16", str(path), "say --encoding utf-16")
        with pa.OSFile(str(path)) as file:
            opened = pa.CompressedInputStream(file, "gzip") if kind == "gzip" else file
            sample = Sample.read(opened, self.encoding)
        if kind == "zip" or sample.is_binary():
            what = "an Excel workbook or another archive" if kind == "zip" else "a binary file"
            remedy = "export it as CSV or Parquet; of a text in UTF-16, say --encoding"
            raise UserError(f"{what}, where a table is expected", str(path), remedy)
        self._guess(sample, path)

    def _guess(self, sample: Sample, path: Path) -> None:
        """Says what it finds where that is not what is expected."""
        before = self.delimiter, self.decimal
        is_known = "decimal" in self._known
        if self._given["delimiter"] is None:
            self.delimiter = sample.delimiter(self.delimiter)
        if self._given["decimal"] is None:
            if self.delimiter != before[0]:
                self.decimal, is_known = ".", False
            if self.delimiter != "," and self.decimal == "." and not is_known:
                self.decimal = sample.decimal(self.delimiter)
        if before != (self.delimiter, self.decimal):
            name = NAMES.get(self.delimiter, f"'{self.delimiter}'")
            print(f"note: --delimiter {name} --decimal {self.decimal} found in the first rows of {path}")


def place_of(name: str, names: list[str], path: Path) -> int:
    """Where a column is; raises `UserError` where it is not there, with the one that was probably meant."""
    if name in names:
        return names.index(name)
    likely = get_close_matches(name, names, 1)
    hint = f"did you mean '{likely[0]}'?" if likely else f"it has {', '.join(names[:20])}"
    raise UserError(f"no column '{name}'", str(path), hint)


class Block(NamedTuple):
    """Rows of a table."""

    source: Source
    files: list[Path]
    starts: list[int]  # first row of each file
    first: int
    table: pa.Table

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """A mistake in a cell of this block; rows count from 1 in their file, without the header."""
        row += self.first
        number = bisect(self.starts, row, hi=len(self.files)) - 1
        where = f"{self.files[number]}, row {row - self.starts[number] + 1}, column '{column}'"
        return UserError(what, where, remedy)

    def column(self, name: str) -> pa.ChunkedArray:
        """Texts, numbers or times. Raises `UserError` for a column of anything else."""
        column = self.table[name]
        if column.type == CODED:
            return column.cast(STRING)
        if not is_plain(column.type):
            number = bisect(self.starts, self.first, hi=len(self.files)) - 1
            where = f"{self.files[number]}, column '{name}'"
            remedy = f"store one number, text or time a cell, or --drop '{name}'"
            raise UserError(f"cells of type {column.type}", where, remedy)
        return column

    def without_gaps(self, name: str) -> pa.ChunkedArray:
        """The same, of the rows that have a value."""
        column = self.column(name)
        if pa.types.is_string(column.type):
            gaps = pc.is_in(pc.utf8_trim_whitespace(column), pa.array(self.source.missing))
            column = column.filter(pc.invert(gaps))
        return column.drop_null()

    def texts(self, name: str) -> tuple[np.ndarray, list[str]]:
        """(rows,) places in the list of different cells, −1 where one is missing; and that list."""
        encoded = self.table[name].combine_chunks()
        if encoded.type != CODED or not _uses_all(encoded):
            encoded = self.column(name).combine_chunks().cast(STRING).dictionary_encode()
        cells = [cell.strip() for cell in encoded.dictionary.to_pylist()]
        places = [-1 if cell in self.source.missing else place for place, cell in enumerate(cells)]
        indices = encoded.indices.fill_null(-1) if encoded.null_count else encoded.indices
        found = np.array([*places, -1]).take(indices.to_numpy())
        for place, cell in enumerate(cells):
            if "\0" in cell:
                row = int((found == place).argmax())
                raise self.error(f"{cell!r} holds a NUL byte", row, name, "mend it")
        return found, cells

    def parse(self, name: str) -> tuple[np.ndarray, bool]:
        """(rows,) float64: NaN where a cell is missing, `TEXT` where it is none, `BEYOND` for nan, infinity
        and what is beyond float32. And whether there is none of these."""
        column, decimal = self.column(name), self.source.decimal
        if pa.types.is_temporal(column.type):
            return np.where(column.is_null(), np.nan, TEXT), False
        if not pa.types.is_string(column.type):
            numbers = column if column.type == FLOAT else column.cast(FLOAT, safe=False)
        else:
            if decimal != ".":  # a point is none then
                column = pc.replace_substring(pc.replace_substring(column, ".", "x"), decimal, ".")
            try:
                numbers = _floats(column)
            except pa.ArrowInvalid:  # spaces around cells, or texts
                column = pc.utf8_trim_whitespace(column)
                gaps = pc.is_in(column, pa.array(self.source.gaps))
                column = pc.if_else(gaps, pa.scalar(None, STRING), column)
                try:
                    numbers = _floats(column)
                except pa.ArrowInvalid:
                    encoded = column.combine_chunks().dictionary_encode()
                    known = [*map(number, encoded.dictionary.to_pylist()), np.nan]
                    return np.array(known)[encoded.indices.fill_null(-1).to_numpy()], False
        values = numbers.to_numpy()
        if largest(values) < FLOAT32_MAX:
            return values, True
        beyond = ~(np.abs(values) < FLOAT32_MAX)
        if np.count_nonzero(beyond) > numbers.null_count:
            beyond &= numbers.is_valid().to_numpy()
            if "nan" in map(str.lower, self.source.gaps):  # of a Parquet file
                beyond &= ~np.isnan(values)
            values = np.where(beyond, BEYOND, values)
        return values, False

    def numbers(
        self, name: str, remedy: str, gap: tuple[str, str] | None = None, takes_nan: bool = False
    ) -> np.ndarray:
        """(rows,) float64, NaN where a cell is missing. Raises `UserError` for a cell that is no number of
        float32; with `gap`, what is wrong and what to do, for a missing one as well.

        takes_nan: a cell `nan` is missing.
        """
        values, whole = self.parse(name)
        if takes_nan and not whole:
            column = self.column(name)
            for row in np.flatnonzero(values == BEYOND).tolist():
                if str(column[row]).strip().lower() == "nan":
                    values[row] = np.nan
        wrong = np.zeros(0) if whole else ~np.isfinite(values) if gap else np.isinf(values)
        if not wrong.any():
            return values
        row = int(wrong.argmax())
        cell = str(self.column(name)[row]).strip()
        if gap and (np.isnan(values[row]) or cell.lower() == "nan"):
            raise self.error(gap[0], row, name, gap[1])
        if cell.lower() in GAPS:
            remedy = f"mend the cell, or say --missing '{cell}'"
        elif has_commas([cell]):
            remedy = "take commas of thousands out, or say --decimal , for decimal ones"
        elif self.source.decimal != "." and number(cell) != TEXT:
            remedy = f"write it with '{self.source.decimal}' like the others, or say --decimal ."
        what = f"{cell!r} is not a {'number' if values[row] == TEXT else 'finite number'}"
        raise self.error(what, row, name, remedy)

    def convert(self, name: str, how: Callable[[Any], np.ndarray], what: str, remedy: str) -> np.ndarray:
        """What `how` makes of a column. Raises `UserError` for the first cell that is no `what` to it."""
        column = self.column(name)
        try:
            return how(column)
        except (pa.ArrowException, ValueError) as error:
            for row in range(len(column)):
                try:
                    how(column.slice(row, 1))
                except (pa.ArrowException, ValueError):
                    break
            cell = column[row].as_py() or ""
            raise self.error(f"'{cell}' is not a {what}", row, name, remedy) from error

    def times(self, name: str) -> np.ndarray:
        """(rows,) int64: seconds since 1970, or whole numbers. Raises `UserError` for what is neither."""
        return self.known_times(name, no_gaps=True)[0]

    def known_times(self, name: str, no_gaps: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The same, 0 where a cell is missing; and (rows,) whether it is not."""
        time_format = self.time_format(name)
        missing = pa.array(self.source.missing)

        def is_known(column: pa.ChunkedArray) -> np.ndarray:
            known = column.is_valid().to_numpy().copy()
            if pa.types.is_string(column.type):
                known &= ~pc.is_in(pc.utf8_trim_whitespace(column), missing).to_numpy()
            return known

        def read(column: pa.ChunkedArray) -> np.ndarray:
            if no_gaps:
                return to_seconds(column, time_format)
            known = is_known(column)
            seconds = np.zeros(len(column), np.int64)
            seconds[known] = to_seconds(column.filter(pa.array(known)), time_format)
            return seconds

        remedy = "write it as 2016-07-01 00:00:00, or whole seconds; see --time-column and --time-format"
        if time_format:
            remedy = f"other times here are '{time_format}'; fix it, or see --time-format"
        seconds = self.convert(name, read, "time", remedy)
        return seconds, np.ones(len(seconds), bool) if no_gaps else is_known(self.column(name))

    def time_format(self, name: str) -> str:
        """The format of a column's times, found by the first block that asks; `ISO` where it needs none.

        Reads the whole table where this block's times could be read in two ways. Raises `UserError` where
        all of them could.
        """
        formats = self.source.time_formats
        if name not in formats:
            readings = Readings(self.source.time_format)
            readings.add(self.without_gaps(name))
            if readings.conflict():
                readings = Readings(self.source.time_format)
                for block in self.source.blocks("checking"):
                    readings.add(block.without_gaps(name))
            conflict = readings.conflict()
            if conflict:
                one, other, (cell, first, second) = conflict
                where = f"{self.source.path}, column '{name}'"
                remedy = f"say --time-format '{one}' or --time-format '{other}'"
                raise UserError(f"'{cell}' may be {first} or {second}", where, remedy)
            formats[name] = readings.best()
        return formats[name]

    def is_time(self, name: str) -> bool:
        """Whether at least half of a column's cells are times, none of them a bare number."""
        column = self.without_gaps(name)
        if not len(column) or pa.types.is_integer(column.type) or str(column[0]).strip().isdecimal():
            return False
        if pa.types.is_floating(column.type):
            return False
        readings = Readings(self.source.time_formats.get(name, self.source.time_format))
        readings.add(column)
        return 2 * readings.counts[readings.best()] >= readings.cells


def _uses_all(column: pa.DictionaryArray) -> bool:
    """Whether each value of the dictionary is in a row."""
    count = len(column.dictionary)
    parts = (column.indices[:1024], column.indices)  # the first rows often have them all
    return any(len(pc.unique(part.drop_null())) == count for part in parts)


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Raises ArrowInvalid for a text, at once where the first cells are: each one costs a microsecond."""
    column.slice(0, 16).cast(FLOAT)
    return column.cast(FLOAT)


def largest(values: np.ndarray) -> float:
    """Of (n,) numbers, without a sign; NaN where one of them is. Two passes, and no other array."""
    return max(values.max(initial=0), -values.min(initial=0))


def number(cell: str) -> float:
    """A cell's number, or `TEXT` or `BEYOND`."""
    try:
        value = float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return TEXT
    return value if abs(value) < FLOAT32_MAX else BEYOND


def has_commas(cells: list[str]) -> bool:
    """Whether all cells are numbers but for commas, of thousands or decimal ones, and some have them."""
    return any("," in cell for cell in cells) and all(number(cell.replace(",", "")) != TEXT for cell in cells)
