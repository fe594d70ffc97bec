"""Read tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is needed. So types do not depend on the first
rows, and an error can name the file, row, column and cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.runs import check_input
from ..engine.settings.sources import near
from .formats import (
    FIRST_CELLS,
    FORMATS,
    ISO,
    LIKE_TIME,
    MEANINGS,
    NAMES,
    UNITS,
    best_formats,
    choose_format,
    guess_decimal,
    guess_delimiter,
    guess_unit,
    read_sample,
    to_seconds,
)
from .scaling import BLOCK_ROWS

BLOCK_CELLS = 4 << 20  # a limit, so that blocks of wide tables have fewer rows
FLOAT32_MAX = 3.4e38
TEXT = np.finfo(np.float64).min  # marks a cell that is not a number
STRING = pa.string()
FLOAT = pa.float64()
KEPT = re.compile("u?int|date|timestamp")  # types that need no conversion
PARQUET = {".parquet", ".pq"}
ARROW = {".feather", ".arrow"}
# Other files of a folder are ignored.
TABLE = re.compile(
    r"[^.].*\.(csv|tsv|parquet|pq|feather|arrow)(\.(gz|bz2|lz4|zst))?", re.IGNORECASE
)
# How a CSV file is written, unless flags or its first rows differ.
STYLE: dict[str, Any] = {"delimiter": ",", "decimal": ".", "encoding": "utf-8", "missing": []}
# Frequent marks of a missing cell, to suggest `--missing`.
GAPS = {"nan", "none", "null", "n/a", "na", "#n/a", "-", "?"}
UNREADABLE = (OSError, EOFError, pa.ArrowException, ValueError, LookupError)
RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
OPEN_QUOTE = "a quote is opened and never closed"
# Signs in cells that are meant as numbers: commas, percent, currencies.
MARKS = re.compile("[,%‰$¢£¥\u20a0-\u20c0]")
COMMAS = "remove thousands separators, or add --decimal , if the commas are decimal marks"


def rows_at_once(num_columns: int) -> int:
    """Return the number of rows of a block."""
    return max(min(BLOCK_ROWS, BLOCK_CELLS // num_columns), 1)


class Source:
    """A table in one file, or in the files of a folder, which must have the same columns."""

    def __init__(
        self,
        path: Path,
        missing: tuple[str, ...],
        flags: dict[str, Any],
        known: dict[str, Any] | None = None,
    ):
        """Combine the defaults, `known` and the flags; later ones win.

        missing: marks of a missing cell, in addition to `--missing`. flags: values of the flags of
        `add_input`, None if not given. known: `written` of earlier files of this kind.
        """
        known = known or {}
        self.path = path
        self.given = {name: value for name, value in flags.items() if value is not None}
        stated = {**STYLE, **known, **self.given}
        self.style = {name: stated[name] for name in STYLE}
        self.missing = [*missing, *self.style["missing"]]
        self.starts: list[tuple[int, Path]] = []  # the first row of each file that was read

        # Candidates for columns of times: ISO includes whole seconds.
        self.formats = ["%Y%m%d", ISO, *FORMATS]
        self.time_formats: dict[str, str] = dict(known.get("time_formats", {}))  # by column
        if "time_format" in self.given:
            self.formats = [flags["time_format"], ISO]
            self.time_formats = {}

    @property
    def places(self) -> list[tuple[int, str]]:
        """The first row and the name of each file that was read."""
        return [(first, path.name) for first, path in self.starts]

    @property
    def written(self) -> dict[str, Any]:
        """How the files are written, to pass as `known` for later files."""
        formats = {name: text for name, text in self.time_formats.items() if text != ISO}
        return {**self.style, "time_formats": formats}

    def files(self) -> list[Path]:
        """Return the file, or the files of the folder in the order of their names."""
        check_input(self.path)
        if not self.path.is_dir():
            return [self.path]
        paths = [path for path in self.path.iterdir() if TABLE.fullmatch(path.name)]
        if not paths:
            what = "no .csv, .tsv, .parquet, .pq, .feather, .arrow or .csv.gz file in the folder"
            raise UserError(what, str(self.path), "point --input at the data")
        return sorted(paths)

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, block by block. Raises `UserError` for files that are not a table."""
        files = self.files()
        starts = self.starts
        first = 0  # row of the next block
        waiting: Any = None  # rows that are in no block yet
        source = self  # with the style of these rows
        with tqdm(desc="reading", unit=" rows", unit_scale=True, leave=False, disable=None) as bar:
            for path in files:
                starts.append((first + len(waiting or ()), path))
                for table in self._tables(path):
                    if waiting and source.style["decimal"] != self.style["decimal"]:
                        yield Block(source, starts, first, waiting)
                        first += len(waiting)
                        waiting = waiting.slice(len(waiting))
                    source = copy(self)
                    waiting = _join(waiting, table, path, files[0])
                    bar.update(len(table))
                    size = rows_at_once(waiting.num_columns)
                    while len(waiting) >= size:
                        yield Block(self, starts, first, waiting.slice(0, size))
                        waiting = waiting.slice(size)
                        first += size
        if waiting:
            yield Block(self, starts, first, waiting)
        elif not first:
            raise UserError("no rows under the header", str(self.path), "check --input")

    def _tables(self, path: Path) -> Iterator[pa.Table]:
        """Yield a file in pieces, with stripped column names."""
        is_csv = path.suffix.lower() not in PARQUET | ARROW
        missing = [] if is_csv else self.missing  # the reader of CSV files knows them
        try:
            for batch in self._batches(path):
                names = [name.strip() for name in batch.schema.names]
                check_names(names, path)
                columns = [_plain(column, missing) for column in batch.columns]
                yield pa.Table.from_arrays(columns, names)
        except UNREADABLE as error:
            raise self._explain(error, path) from error

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        ending = path.suffix.lower()
        if ending in PARQUET:
            return _parquet_batches(path)
        if ending in ARROW:
            reader = ipc.open_file(pa.OSFile(str(path)))
            return map(reader.get_batch, range(reader.num_record_batches))
        return self._csv_batches(path)

    def _csv_batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield batches of a CSV file, with every cell as a text."""
        self._guess_style(path)
        read = csv.ReadOptions(use_threads=False, encoding=self.style["encoding"])
        parse = csv.ParseOptions(delimiter=self.style["delimiter"], newlines_in_values=True)
        names = csv.open_csv(path, read, parse).schema.names

        types = dict.fromkeys(names, STRING)
        convert = csv.ConvertOptions(
            column_types=types, null_values=self.missing, strings_can_be_null=True
        )
        last_batch = None
        for batch in csv.open_csv(path, read, parse, convert):
            yield batch
            last_batch = batch
        if last_batch:
            # A quote that is never closed takes all following rows into its cell.
            following = str(last_batch.column(-1)[-1]).partition("\n")[2]
            if following.endswith("\n") and self.style["delimiter"] in following:
                raise pa.ArrowInvalid(OPEN_QUOTE)

    def _guess_style(self, path: Path) -> None:
        """Detect delimiter and decimal mark in the first rows; print them if unexpected."""
        sample = read_sample(path, self.style["encoding"])
        if "\0" in sample:
            what = "a NUL byte, as in a workbook, an image or another binary file"
            remedy = "export it as CSV or Parquet; if it is text in UTF-16, add --encoding utf-16"
            raise UserError(what, str(path), remedy)

        expected = self.style
        guessed = guess_delimiter(sample, expected["delimiter"])
        delimiter = self.given.get("delimiter", guessed)
        guessed = guess_decimal(sample, delimiter, expected["decimal"])
        decimal = self.given.get("decimal", guessed)
        self.style = {**expected, "delimiter": delimiter, "decimal": decimal}
        if self.style != expected:
            flags = f"--delimiter {NAMES.get(delimiter, repr(delimiter))} --decimal {decimal}"
            print(f"note: {flags} found in the first rows of {path}")

    def _explain(self, error: Exception, path: Path) -> UserError:
        """Return the error for a file that cannot be read."""
        text = str(error)
        ragged = RAGGED.search(text)
        if ragged:
            what = f"{ragged[3]} cells where the header has {ragged[2]}"
            if ragged[4].count('"') % 2:
                what = OPEN_QUOTE
            where = f"{path}, row {int(ragged[1]) - 1}"
            return UserError(what, where, "fix the line, or see --delimiter")
        if "straddling object" in text:
            remedy = "a quote that is never closed, or a line end that is missing"
            return UserError("a row of more than 1 MB", str(path), f"look for {remedy}")
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
            remedy = "add its encoding, such as --encoding latin-1"
            return UserError(f"not {self.style['encoding'].upper()} text", str(path), remedy)
        what = f"cannot read the file ({text})".partition("\n")[0]
        return UserError(
            what, str(path), "check --input, --encoding and --delimiter, or get the file again"
        )


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """A Parquet file. Raises `ArrowInvalid` if it has another number of rows than it claims."""
    file = parquet.ParquetFile(path, pre_buffer=False)
    size = rows_at_once(file.metadata.num_columns)
    num_rows = 0
    for batch in file.iter_batches(size, use_threads=False):
        num_rows += len(batch)
        yield batch
    if num_rows != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"it has {num_rows:,} rows and claims {file.metadata.num_rows:,}")


def check_names(names: list[str], path: Path) -> None:
    """Raise `UserError` for columns that have no name, or the same name."""
    for place, name in enumerate(names, 1):
        if not name or names.count(name) > 1:
            what = f"two columns are named '{name}'" if name else f"column {place} has no name"
            remedy = "give each column its own name; if it is a pandas index, export index=False"
            raise UserError(what, f"{path}, line 1", remedy)


def _join(waiting: pa.Table | None, table: pa.Table, path: Path, first_path: Path) -> pa.Table:
    """Append the rows of a table from `path` to the waiting rows, with columns in their order."""
    if waiting is None:
        return table
    if {*waiting.column_names} != {*table.column_names}:
        what = f"columns differ from those of {first_path.name}"
        raise UserError(what, str(path), "give all files the same columns")
    tables = [waiting, table.select(waiting.column_names)]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        what = f"column types differ from those of {first_path.name} ({error})"
        raise UserError(what, str(path), "give all files the same types") from error


def _plain(column: pa.Array, missing: list[str]) -> pa.Array:
    """Convert a column to texts, numbers or times, with null for the texts `missing`.

    Other types, such as lists, stay as they are; `Block.column` rejects them.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if KEPT.match(str(column.type)):
        return column
    with suppress(pa.ArrowException):
        if pa.types.is_floating(column.type):
            return column.cast(FLOAT)
        column = column.cast(STRING).cast("binary")
        column = column.cast(STRING)  # fails unless the texts are UTF-8
        return without(column, missing) if missing else column
    return column


def without(texts: Any, missing: list[str]) -> Any:
    """Return the stripped texts, with null for those in `missing`."""
    texts = pc.ascii_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, pa.array(missing, STRING)), None, texts)


def place_of(name: str, names: list[str], path: Path) -> int:
    """Return the index of a column; raises `UserError`, with the closest name, if it is missing."""
    if name in names:
        return names.index(name)
    likely = near(name, names)
    hint = f"did you mean '{likely}'?" if likely else f"choose one of {', '.join(names[:20])}"
    raise UserError(f"no column '{name}'", str(path), hint)


class Block(NamedTuple):
    """Rows of a table."""

    source: Source
    starts: list[tuple[int, Path]]  # first row of each file
    first: int
    table: pa.Table

    def with_missing(self, cells: tuple[str, ...]) -> Block:
        """Return the same rows, with further texts that count as missing."""
        source = copy(self.source)
        source.missing = [*source.missing, *cells]
        return self._replace(source=source)

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """Return an error for a cell; rows count from 1 in their file, without the header."""
        row += self.first
        start, path = [file for file in self.starts if file[0] <= row][-1]
        return UserError(what, f"{path}, row {row - start + 1}, column '{column}'", remedy)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return stripped texts, numbers or times, with null for missing cells.

        Raises `UserError` for a column of another type.
        """
        column = self.table[name]
        missing = self.source.missing
        if column.type == STRING:
            return without(column, missing)
        if not pa.types.is_primitive(column.type):
            where = f"{self.source.path}, column '{name}'"
            remedy = f"store one number, text or time per cell, or add --drop '{name}'"
            raise UserError(f"cells of type {column.type}", where, remedy)
        marks = pa.array(map(number, missing), FLOAT)
        with suppress(pa.ArrowException):  # a time is no number
            return pc.if_else(pc.is_in(column.cast(FLOAT, safe=False), marks), None, column)
        return column

    # --- numbers

    def parse(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers (rows,) float64, `TEXT` for other cells; and is_known (rows,) bool."""
        decimal = self.source.style["decimal"]
        column = self.table[name]
        if column.type != STRING:
            column = self.column(name)
        elif decimal != ".":
            # With another decimal mark, a cell with a point is not a number.
            without_points = pc.replace_substring(self.column(name), ".", "x")
            column = pc.replace_substring(without_points, decimal, ".")
        with suppress(pa.ArrowException):
            numbers = column.cast(FLOAT, safe=False)
            return numbers.to_numpy(), numbers.is_valid().to_numpy()

        # Some cells are texts or times, or Arrow cannot read them. Python reads each distinct cell
        # once.
        if decimal == ".":
            column = self.column(name)
        places, cells = encode(column)
        values = [number(cell) for cell in cells]
        values.append(np.nan)  # for the place -1
        return np.array(values)[places], places >= 0

    def numbers(self, name: str, remedy: str) -> np.ndarray:
        """Return numbers (rows,) float64, with NaN for missing cells.

        Raises `UserError` for a cell that is not a float32 number.
        """
        values, is_known = self.parse(name)
        if "nan" in self.source.missing:
            is_known = is_known & ~np.isnan(values)
        is_wrong = is_known & ~(np.abs(values) < FLOAT32_MAX)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            cell = str(self.column(name)[row])
            if cell.lower() in GAPS:
                remedy = f"fix the cell, or add --missing '{cell}'"
            else:
                _, remedy = marked_number([cell]) or (cell, remedy)
            expected = "number" if values[row] == TEXT else "finite number"
            raise self.error(f"{cell!r} is not a {expected}", row, name, remedy)
        return np.where(is_known, values, np.nan)

    # --- times

    def times(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds since 1970 or whole numbers (rows,) int64; and is_known (rows,) bool.

        The first block decides the format of a column. Raises `UserError` for a cell that is not a
        time, and for times that can be read in two ways.
        """
        column = self.column(name)
        known = self.source.time_formats
        cells = column
        if pa.types.is_floating(column.type):
            is_whole = pc.equal(pc.floor(column), column)
            cells = pc.if_else(is_whole, column, None).cast(pa.int64(), safe=False)
        if pa.types.is_integer(cells.type) and known.get(name) not in UNITS:
            cells = cells.cast(STRING)
        if name not in known and cells.type == STRING:
            known[name] = self._time_format(name, cells.unique().drop_null())
        time_format = known.get(name, ISO)
        seconds = to_seconds(cells, time_format)
        is_known = column.is_valid().to_numpy()
        is_wrong = is_known & seconds.is_null().to_numpy()
        if is_wrong.any():
            row = int(is_wrong.argmax())
            wanted = time_format or "2024-01-31 16:00:00"
            if time_format in UNITS:
                wanted = str(1706716800 * UNITS[time_format])
            remedy = f"write it as '{wanted}', or see --time-format and other flags of `prepare`"
            raise self.error(f"'{column[row]}' is not a time", row, name, remedy)
        return seconds.fill_null(0).to_numpy(), is_known

    def is_time(self, name: str) -> bool:
        """Whether at least half of a column's distinct cells are times, and not bare numbers."""
        column = self.column(name)
        if column.type != STRING:
            return pa.types.is_temporal(column.type)
        cells = column.unique().drop_null()
        first = cells[:FIRST_CELLS].to_pylist()
        is_likely = "time_format" in self.source.given or any(map(LIKE_TIME.match, first))
        if not first or first[0].isdecimal() or not is_likely:
            return False
        return bool(best_formats(cells, self.source.formats))

    def _time_format(self, name: str, cells: pa.Array) -> str:
        """Return the format of a column's distinct cells; print it if whole numbers are no seconds.

        Raises `UserError` for times that can be read in two ways.
        """
        where = f"{self.source.path}, column '{name}'"
        time_format = choose_format(cells, self.source.formats, where)
        if time_format == ISO and "time_format" not in self.source.given:
            time_format = guess_unit(cells)
            if time_format in MEANINGS:
                print(f"note: column '{name}' is read as {MEANINGS[time_format]}")
        return time_format

    def sole_times(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the same as `times`, for the only column of times: `--time-format` must fit."""
        times = self.times(name)
        given = self.source.given.get("time_format")
        if given and self.source.time_formats.get(name) == ISO:
            cell = self.column(name).drop_null()[0]
            what = f"'{cell}' does not have the format '{given}'"
            where = f"{self.source.path}, column '{name}'"
            raise UserError(what, where, "correct --time-format, or remove it")
        return times


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return indices (rows,) into the list of distinct cells, −1 if missing; and that list."""
    encoded = column.cast(STRING).combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


def number(cell: str) -> float:
    """Return the number in a cell, or `TEXT`."""
    try:
        return float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return TEXT


def marked_number(cells: list[str]) -> tuple[str, str] | None:
    """Find cells that are numbers except for commas, a currency sign or a percent sign.

    Return the first one and how to fix it, if at least half of the cells would then be numbers.
    """
    marked = []
    num_numbers = 0
    for cell in cells:
        if number(MARKS.sub("", cell)) != TEXT:
            num_numbers += 1
            if number(cell) == TEXT:
                marked.append(cell)
    if not marked or 2 * num_numbers < len(cells):
        return None
    signs = "".join(MARKS.findall(marked[0])).replace(",", "")
    return marked[0], f"remove '{signs}' from the cells" if signs else COMMAS
