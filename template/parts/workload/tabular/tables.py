"""Tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is asked for: types do not depend on the first
rows, and an error names file, row, column and cell.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .engine.errors import UserError
from .formats import ISO, NAMES, Readings, Sample, check_time_format, to_seconds
from .readers import (
    BLOCK_CELLS,
    CODED,
    FLOAT,
    STRING,
    UNREADABLE,
    File,
    is_plain,
    kind_of,
    unreadable,
)
from .scaling import BLOCK_ROWS

FLOAT32_MAX = 3.4e38
TEXT = -np.inf
BEYOND = np.inf
ENDINGS = {".csv", ".tsv", ".parquet", ".pq", ".feather", ".arrow"}
# What others write for a missing cell.
GAPS = {"nan", "none", "null", "n/a", "na", "#n/a", "-", "?"}
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

        flags: some of `FLAGS`, and others; None where one is not given. known: what `written` was
        for earlier files of this kind.
        """
        self.path = path
        self._known = known or {}
        self._given = {name: flags.get(name) for name in (*FLAGS, "time_format")}

        # A flag comes before what is known, and that before the default.
        values = dict(FLAGS)
        for name in FLAGS:
            if name in self._known:
                values[name] = self._known[name]
            if self._given[name] is not None:
                values[name] = self._given[name]

        self.delimiter: str = values["delimiter"]
        if self.delimiter == "tab":
            self.delimiter = "\t"
        self.decimal: str = values["decimal"]
        self.encoding: str = values["encoding"]
        self.marks: list[str] = values["missing"]  # those of the flags alone
        self.missing = (*missing, *self.marks)
        self.gaps = self.missing  # in columns of numbers
        self.time_format = self._given["time_format"]
        self.time_formats: dict[str, str] = {}  # by column
        if self.time_format is None:
            self.time_formats.update(self._known.get("time_formats", {}))
        else:
            check_time_format(self.time_format)
        self._check_signs()

    def _check_signs(self) -> None:
        if len(self.delimiter) == 1 and len(self.decimal) == 1:
            return
        signs = f"--delimiter '{self.delimiter}' and --decimal '{self.decimal}'"
        remedy = "such as --delimiter ';' --decimal ,"
        raise UserError(f"{signs} are not two characters", str(self.path), remedy)

    @property
    def written(self) -> dict[str, Any]:
        """How the files that were read are written, for `known` of later ones."""
        written: dict[str, Any] = {
            "delimiter": self.delimiter,
            "decimal": self.decimal,
            "encoding": self.encoding,
            "missing": self.marks,
        }
        formats = {name: text for name, text in self.time_formats.items() if text != ISO}
        if formats:
            written["time_formats"] = formats
        return written

    def files(self) -> list[Path]:
        """The file, or those of the folder in the order of their names."""
        if not self.path.is_dir():
            return [self.path]
        paths = [path for path in self.path.iterdir() if ENDINGS & {*path.suffixes[-2:]}]
        if not paths:
            what = f"no {', '.join(sorted(ENDINGS))} or .csv.gz file in the folder"
            raise UserError(what, str(self.path), "point --input at the data")
        return sorted(paths)

    def blocks(self, title: str) -> Iterator[Block]:
        """Every row, block by block. Raises `UserError`, with the row, for what is no table."""
        files = self.files()
        starts = [0]
        first = 0  # row of the next block
        held: Any = None  # rows that are read and in no block yet
        for path in files:
            for table in self._file(path).tables(title):
                held = _join(held, table, path, files[0])
                size = max(min(BLOCK_ROWS, BLOCK_CELLS // held.num_columns), 1)
                while held.num_rows >= size:
                    yield Block(self, files, starts, first, held.slice(0, size))
                    held = held.slice(size)
                    first += size

            end = first
            if held is not None:
                end += held.num_rows
            if end == starts[-1]:
                what = "no rows under the header"
                raise UserError(what, str(path), "there is nothing to go by")
            starts.append(end)
        if held.num_rows:
            yield Block(self, files, starts, first, held)

    def _file(self, path: Path) -> File:
        """A file to read; delimiter and decimal mark of a CSV are found where no flag says them."""
        try:
            kind = kind_of(path)
            if kind not in ("parquet", "arrow"):
                self._settle(path, kind)
        except UNREADABLE as error:
            raise unreadable(path, self.encoding, error) from error
        return File(path, kind, self.delimiter, self.encoding, self.missing, path == self.path)

    def _settle(self, path: Path, kind: str) -> None:
        """Find delimiter and decimal mark in the first rows.

        Raises `UserError` for what is no text.
        """
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
        """Take what the rows show, and print it where it is not what was expected."""
        expected = (self.delimiter, self.decimal)
        decimal_is_known = "decimal" in self._known
        if self._given["delimiter"] is None:
            self.delimiter = sample.delimiter(self.delimiter)
        if self._given["decimal"] is None:
            if self.delimiter != expected[0]:
                self.decimal = "."
                decimal_is_known = False
            if self.delimiter != "," and self.decimal == "." and not decimal_is_known:
                self.decimal = sample.decimal(self.delimiter)

        if (self.delimiter, self.decimal) != expected:
            name = NAMES.get(self.delimiter, f"'{self.delimiter}'")
            flags = f"--delimiter {name} --decimal {self.decimal}"
            print(f"note: {flags} found in the first rows of {path}")


def _join(held: pa.Table | None, table: pa.Table, path: Path, first_path: Path) -> pa.Table:
    """The rows held, if any, and those of a table of `path`, in the order of the first columns."""
    tables = [table]
    if held is not None:
        if {*held.column_names} != {*table.column_names}:
            what = f"other columns than in {first_path.name}"
            raise UserError(what, str(path), "give them the same")
        tables = [held, table.select(held.column_names)]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        what = f"other types of columns than in {first_path.name} ({error})"
        raise UserError(what, str(path), "write them alike") from error


def place_of(name: str, names: list[str], path: Path) -> int:
    """Where a column is; raises `UserError` where it is not there, with the one probably meant."""
    if name in names:
        return names.index(name)
    likely = get_close_matches(name, names, 1)
    hint = f"it has {', '.join(names[:20])}"
    if likely:
        hint = f"did you mean '{likely[0]}'?"
    raise UserError(f"no column '{name}'", str(path), hint)


class Block(NamedTuple):
    """Rows of a table."""

    source: Source
    files: list[Path]
    starts: list[int]  # first row of each file
    first: int
    table: pa.Table

    def _file_of(self, row: int) -> int:
        """The number of the file that has a row, counted over all files."""
        return bisect(self.starts, row, hi=len(self.files)) - 1

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """An error in a cell of this block; rows count from 1 in their file, without the header."""
        row += self.first
        number = self._file_of(row)
        row_of_file = row - self.starts[number] + 1
        where = f"{self.files[number]}, row {row_of_file}, column '{column}'"
        return UserError(what, where, remedy)

    # --- texts

    def column(self, name: str) -> pa.ChunkedArray:
        """Texts, numbers or times. Raises `UserError` for a column of anything else."""
        column = self.table[name]
        if column.type == CODED:
            return column.cast(STRING)
        if not is_plain(column.type):
            where = f"{self.files[self._file_of(self.first)]}, column '{name}'"
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
        """(rows,) places in the list of different cells, −1 for a missing one; and that list."""
        encoded = self.table[name].combine_chunks()
        if encoded.type != CODED or not _uses_all(encoded):
            encoded = self.column(name).combine_chunks().cast(STRING).dictionary_encode()
        cells = [cell.strip() for cell in encoded.dictionary.to_pylist()]
        missing = self.source.missing
        places = [-1 if cell in missing else place for place, cell in enumerate(cells)]
        places.append(-1)  # for the index -1

        indices = encoded.indices
        if encoded.null_count:
            indices = indices.fill_null(-1)
        places_of_rows = np.array(places).take(indices.to_numpy())
        for place, cell in enumerate(cells):
            if "\0" in cell:
                row = int((places_of_rows == place).argmax())
                raise self.error(f"{cell!r} holds a NUL byte", row, name, "mend it")
        return places_of_rows, cells

    # --- numbers

    def parse(self, name: str) -> tuple[np.ndarray, bool]:
        """Return (rows,) float64, and whether each cell is a number of float32.

        A cell is NaN where it is missing, `TEXT` where it is no number, `BEYOND` for nan, infinity
        and what is beyond float32.
        """
        column = self.column(name)
        if pa.types.is_temporal(column.type):
            return np.where(column.is_null(), np.nan, TEXT), False
        if pa.types.is_string(column.type):
            numbers = self._numbers_of_texts(column)
        elif column.type == FLOAT:
            numbers = column
        else:
            numbers = column.cast(FLOAT, safe=False)

        if isinstance(numbers, np.ndarray):
            return numbers, False
        values = numbers.to_numpy()
        if largest(values) < FLOAT32_MAX:
            return values, True
        return self._mark_beyond(values, numbers), False

    def _numbers_of_texts(self, column: pa.ChunkedArray) -> pa.ChunkedArray | np.ndarray:
        """Numbers, null where a cell is missing; an array as of `parse` where a cell is none."""
        decimal = self.source.decimal
        if decimal != ".":
            # A point is no decimal mark then.
            without_points = pc.replace_substring(column, ".", "x")
            column = pc.replace_substring(without_points, decimal, ".")
        with suppress(pa.ArrowInvalid):
            return _floats(column)

        # There are spaces around cells, or texts.
        column = pc.utf8_trim_whitespace(column)
        gaps = pc.is_in(column, pa.array(self.source.gaps))
        column = pc.if_else(gaps, pa.scalar(None, STRING), column)
        with suppress(pa.ArrowInvalid):
            return _floats(column)

        # Python reads each different cell once.
        encoded = column.combine_chunks().dictionary_encode()
        numbers = [number(cell) for cell in encoded.dictionary.to_pylist()]
        numbers.append(np.nan)  # for the index -1
        return np.array(numbers)[encoded.indices.fill_null(-1).to_numpy()]

    def _mark_beyond(self, values: np.ndarray, numbers: pa.ChunkedArray) -> np.ndarray:
        """Put `BEYOND` where a cell has a value that float32 cannot hold."""
        beyond = ~(np.abs(values) < FLOAT32_MAX)
        if np.count_nonzero(beyond) <= numbers.null_count:
            return values
        beyond &= numbers.is_valid().to_numpy()
        if "nan" in map(str.lower, self.source.gaps):  # of a Parquet file
            beyond &= ~np.isnan(values)
        return np.where(beyond, BEYOND, values)

    def numbers(
        self, name: str, remedy: str, gap: tuple[str, str] | None = None, takes_nan: bool = False
    ) -> np.ndarray:
        """(rows,) float64, NaN where a cell is missing.

        Raises `UserError` for a cell that is no number of float32; with `gap`, what is wrong and
        what to do, for a missing one as well. takes_nan: a cell `nan` is missing.
        """
        values, is_whole = self.parse(name)
        if is_whole:
            return values
        if takes_nan:
            column = self.column(name)
            for row in np.flatnonzero(values == BEYOND).tolist():
                if str(column[row]).strip().lower() == "nan":
                    values[row] = np.nan

        wrong = ~np.isfinite(values) if gap else np.isinf(values)
        if wrong.any():
            row = int(wrong.argmax())
            raise self._number_error(name, row, values[row], remedy, gap)
        return values

    def _number_error(
        self, name: str, row: int, value: float, remedy: str, gap: tuple[str, str] | None
    ) -> UserError:
        """The error for a cell of which `numbers` makes no number."""
        cell = str(self.column(name)[row]).strip()
        if gap and (np.isnan(value) or cell.lower() == "nan"):
            return self.error(gap[0], row, name, gap[1])
        if cell.lower() in GAPS:
            remedy = f"mend the cell, or say --missing '{cell}'"
        elif has_commas([cell]):
            remedy = "take commas of thousands out, or say --decimal , for decimal ones"
        elif self.source.decimal != "." and number(cell) != TEXT:
            remedy = f"write it with '{self.source.decimal}' like the others, or say --decimal ."
        expected = "number" if value == TEXT else "finite number"
        return self.error(f"{cell!r} is not a {expected}", row, name, remedy)

    # --- times

    def convert(
        self, name: str, how: Callable[[Any], np.ndarray], what: str, remedy: str
    ) -> np.ndarray:
        """What `how` makes of a column.

        Raises `UserError` for the first cell that is no `what` to it.
        """
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
        """(rows,) int64: seconds since 1970, or whole numbers.

        Raises `UserError` for what is neither.
        """
        time_format = self.time_format(name)

        def read(column: pa.ChunkedArray) -> np.ndarray:
            return to_seconds(column, time_format)

        return self.convert(name, read, "time", _time_remedy(time_format))

    def known_times(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The same, 0 where a cell is missing; and (rows,) whether it is not."""
        time_format = self.time_format(name)

        def read(column: pa.ChunkedArray) -> np.ndarray:
            known = self._is_known(column)
            seconds = np.zeros(len(column), np.int64)
            seconds[known] = to_seconds(column.filter(pa.array(known)), time_format)
            return seconds

        seconds = self.convert(name, read, "time", _time_remedy(time_format))
        return seconds, self._is_known(self.column(name))

    def _is_known(self, column: pa.ChunkedArray) -> np.ndarray:
        known = column.is_valid().to_numpy().copy()
        if pa.types.is_string(column.type):
            cells = pc.utf8_trim_whitespace(column)
            known &= ~pc.is_in(cells, pa.array(self.source.missing)).to_numpy()
        return known

    def time_format(self, name: str) -> str:
        """The format of a column's times, found by the first block that asks; `ISO` for no format.

        Reads the whole table where this block's times could be read in two ways. Raises `UserError`
        where all of them could.
        """
        formats = self.source.time_formats
        if name in formats:
            return formats[name]

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
        if not len(column):
            return False
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return False
        if str(column[0]).strip().isdecimal():
            return False
        readings = Readings(self.source.time_formats.get(name, self.source.time_format))
        readings.add(column)
        return 2 * readings.counts[readings.best()] >= readings.cells


def _time_remedy(time_format: str) -> str:
    if time_format:
        return f"other times here are '{time_format}'; fix it, or see --time-format"
    example = "write it as 2016-07-01 00:00:00, or whole seconds"
    return f"{example}; see --time-column and --time-format"


def _uses_all(column: pa.DictionaryArray) -> bool:
    """Whether each value of the dictionary is in a row."""
    count = len(column.dictionary)
    # The first rows often have them all.
    for indices in (column.indices[:1024], column.indices):
        if len(pc.unique(indices.drop_null())) == count:
            return True
    return False


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers of texts.

    Raises ArrowInvalid for a text, at once where the first cells are: each one costs a microsecond.
    """
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
    """Whether all cells are numbers but for commas, of thousands or decimal ones, in some."""
    if not any("," in cell for cell in cells):
        return False
    return all(number(cell.replace(",", "")) != TEXT for cell in cells)
