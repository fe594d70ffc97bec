"""Read tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is needed. So types do not depend on the first
rows, and an error can name the file, row, column and cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.runs import check_input
from .scaling import BLOCK_ROWS
from .times import (
    FIRST_CELLS,
    ISO,
    LIKE_TIME,
    MEANINGS,
    UNITS,
    best_formats,
    choose_format,
    guess_unit,
    to_seconds,
)

BLOCK_CELLS = 4 << 20  # a limit, so that blocks of wide tables have fewer rows
FLOAT32_MAX = 3.4e38
TEXT = np.finfo(np.float64).min  # marks a cell that is not a number
STRING = pa.string()
FLOAT = pa.float64()
KEPT = re.compile("u?int|date|timestamp")  # types that need no conversion
# Other files of a folder are ignored.
TABLE = re.compile(
    r"[^.].*\.(csv|tsv|parquet|pq|feather|arrow)(\.(gz|bz2|lz4|zst))?", re.IGNORECASE
)
UNREADABLE = (OSError, EOFError, pa.ArrowException, ValueError, LookupError)
RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
OPEN_QUOTE = "a quote is opened and never closed"

# How a CSV file is written, unless flags or its first rows differ.
STYLE: dict[str, Any] = {"delimiter": ",", "decimal": ".", "encoding": "utf-8", "missing": []}
SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
NAMES = {"\t": "tab"}  # delimiters that `--delimiter` takes by name
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")

# Frequent marks of a missing cell, to suggest `--missing`.
GAPS = {"nan", "none", "null", "n/a", "na", "#n/a", "-", "?"}
# Signs in cells that are meant as numbers: commas, percent, currencies.
MARKS = re.compile("[,%‰$¢£¥\u20a0-\u20c0]")
COMMAS = "remove thousands separators, or add --decimal , if the commas are decimal marks"


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
        Raises `UserError` if there is no such file.
        """
        known = known or {}
        self.path = path
        self.files = find_files(path)
        self.flags = flags
        self.style = {
            name: flags.get(name) or known.get(name, value) for name, value in STYLE.items()
        }
        self.missing = {*missing, *self.style["missing"]}
        self.starts: list[tuple[int, Path]] = []  # the first row of each file that was read
        self.time_format = flags.get("time_format")
        by_column = {} if self.time_format else known.get("time_formats", {})
        self.time_formats: dict[str, str] = dict(by_column)

    @property
    def written(self) -> dict[str, Any]:
        """How the files are written, to pass as `known` for later files."""
        formats = {name: text for name, text in self.time_formats.items() if text != ISO}
        return {**self.style, "time_formats": formats}

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, block by block. Raises `UserError` for files that are not a table."""
        waiting: Any = None  # rows of the next block; maybe none, but with its columns
        decimal = ""  # of these rows
        first = 0
        for path, table in self._tables():
            if waiting is None:
                waiting = table.slice(0, 0)
            is_full = len(waiting) >= rows_at_once(waiting.num_columns)
            if is_full or (waiting and decimal != self.style["decimal"]):
                yield Block(self, decimal, first, waiting)
                first += len(waiting)
                waiting = waiting.slice(len(waiting))
            waiting = join(waiting, table, path, self.files[0])
            decimal = self.style["decimal"]
        if not waiting:
            raise UserError("no rows under the header", str(self.path), "check --input")
        yield Block(self, decimal, first, waiting)

    def _tables(self) -> Iterator[tuple[Path, pa.Table]]:
        """Yield the files in pieces, with stripped column names."""
        num_rows = 0
        bar = tqdm(desc="reading", unit=" rows", unit_scale=True, leave=False, disable=None)
        for path in self.files:
            self.starts.append((num_rows, path))
            read = READERS.get(path.suffix.lower(), self._csv_batches)
            try:
                for batch in read(path):
                    names = [name.strip() for name in batch.schema.names]
                    check_names(names, path)
                    yield path, pa.Table.from_arrays([*map(plain, batch.columns)], names)
                    num_rows += len(batch)
                    bar.update(len(batch))
            except UNREADABLE as error:
                raise self._explain(error, path) from error
        bar.close()

    def _csv_batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield batches of a CSV file, with every cell as a text."""
        self._detect_style(path)
        read = arrow_csv.ReadOptions(use_threads=False, encoding=self.style["encoding"])
        parse = arrow_csv.ParseOptions(delimiter=self.style["delimiter"], newlines_in_values=True)
        names = arrow_csv.open_csv(path, read, parse).schema.names
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, STRING),
            null_values=[*self.missing],
            strings_can_be_null=True,
        )
        batch = None
        for batch in arrow_csv.open_csv(path, read, parse, convert):
            yield batch
        if batch:
            # A quote that is never closed takes all following rows into its cell.
            following = str(batch.column(-1)[-1]).partition("\n")[2]
            if following.endswith("\n") and self.style["delimiter"] in following:
                raise pa.ArrowInvalid(OPEN_QUOTE)

    def _detect_style(self, path: Path) -> None:
        """Detect delimiter and decimal mark in the first rows; print them if unexpected."""
        with pa.input_stream(str(path)) as file:  # decompresses `.gz` files
            content = file.read(SAMPLE_BYTES)
        # Reading the table reports invalid characters.
        text = content.decode(self.style["encoding"], "replace").removeprefix("\ufeff")
        if len(content) == SAMPLE_BYTES:
            text = text.rpartition("\n")[0]
        if "\0" in text:
            what = "a NUL byte, as in a workbook, an image or another binary file"
            remedy = "export it as CSV or Parquet; if it is text in UTF-16, add --encoding utf-16"
            raise UserError(what, str(path), remedy)

        expected = self.style
        delimiter = self.flags.get("delimiter")
        if not delimiter:
            # The mark that splits the header into the most cells; of equals, first the expected.
            marks = (expected["delimiter"], *DELIMITERS)
            delimiter = max(marks, key=lambda mark: len(sample_rows(text, mark)[0]))
        decimal = self.flags.get("decimal") or guess_decimal(text, delimiter, expected["decimal"])
        self.style = {**expected, "delimiter": delimiter, "decimal": decimal}
        if self.style != expected:
            flags = f"--delimiter {NAMES.get(delimiter, repr(delimiter))} --decimal {decimal}"
            print(f"note: {flags} found in the first rows of {path}")

    def _explain(self, error: Exception, path: Path) -> UserError:
        """Return the error for a file that cannot be read."""
        text = str(error)
        where = str(path)
        what = f"cannot read the file ({text})".partition("\n")[0]
        remedy = "check --input, --encoding and --delimiter, or get the file again"
        ragged = RAGGED.search(text)
        if ragged:
            what = f"{ragged[3]} cells where the header has {ragged[2]}"
            if ragged[4].count('"') % 2:
                what = OPEN_QUOTE
            where = f"{path}, row {int(ragged[1]) - 1}"
            remedy = "fix the line, or see --delimiter"
        elif "straddling object" in text:
            what = "a row of more than 1 MB"
            remedy = "look for a quote that is never closed, or a line end that is missing"
        elif isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
            what = f"not {self.style['encoding'].upper()} text"
            remedy = "add its encoding, such as --encoding latin-1"
        return UserError(what, where, remedy)


# --- files


def find_files(path: Path) -> list[Path]:
    """Return the file, or the files of the folder in the order of their names."""
    check_input(path)
    if not path.is_dir():
        return [path]
    paths = [file for file in path.iterdir() if TABLE.fullmatch(file.name)]
    if not paths:
        what = "no .csv, .tsv, .parquet, .pq, .feather, .arrow or .csv.gz file in the folder"
        raise UserError(what, str(path), "point --input at the data")
    return sorted(paths)


def sample_rows(text: str, delimiter: str) -> list[list[str]]:
    """Return the cells of the first rows, which begin with the header."""
    lines = io.StringIO(text.lstrip(), "")
    return list(islice(csv.reader(lines, delimiter=delimiter), SAMPLE_ROWS)) or [[]]


def guess_decimal(text: str, delimiter: str, expected: str) -> str:
    """Return a point if a number has one, else a comma if a number has one, else `expected`.

    Numbers like `1,234` are ambiguous, because the comma may separate thousands.
    """
    cells = [cell.strip() for row in sample_rows(text, delimiter) for cell in row]
    if any(map(POINT_NUMBER.fullmatch, cells)):
        return "."
    with_comma = filter(COMMA_NUMBER.fullmatch, cells)
    return expected if all(map(THOUSANDS.fullmatch, with_comma)) else ","


def rows_at_once(num_columns: int) -> int:
    """Return the number of rows of a block."""
    return max(min(BLOCK_ROWS, BLOCK_CELLS // num_columns), 1)


def parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """A Parquet file. Raises `ArrowInvalid` if it has another number of rows than it claims."""
    file = parquet.ParquetFile(path, pre_buffer=False)
    metadata = file.metadata
    num_rows = 0
    for batch in file.iter_batches(rows_at_once(metadata.num_columns), use_threads=False):
        num_rows += len(batch)
        yield batch
    if num_rows != metadata.num_rows:
        raise pa.ArrowInvalid(f"it has {num_rows:,} rows and claims {metadata.num_rows:,}")


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    reader = ipc.open_file(pa.OSFile(str(path)))
    return map(reader.get_batch, range(reader.num_record_batches))


# How to read a file, by its ending; all others are CSV files.
READERS = {
    ".parquet": parquet_batches,
    ".pq": parquet_batches,
    ".feather": arrow_batches,
    ".arrow": arrow_batches,
}


def check_names(names: list[str], path: Path) -> None:
    """Raise `UserError` for columns that have no name, or the same name."""
    for place, name in enumerate(names, 1):
        if not name or names.count(name) > 1:
            what = f"two columns are named '{name}'" if name else f"column {place} has no name"
            remedy = "give each column its own name; if it is a pandas index, export index=False"
            raise UserError(what, f"{path}, line 1", remedy)


def join(waiting: pa.Table, table: pa.Table, path: Path, first_path: Path) -> pa.Table:
    """Append the rows of a table from `path` to the waiting rows, with columns in their order."""
    if {*waiting.column_names} != {*table.column_names}:
        what = f"columns differ from those of {first_path.name}"
        raise UserError(what, str(path), "give all files the same columns")
    tables = [waiting, table.select(waiting.column_names)]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        what = f"column types differ from those of {first_path.name} ({error})"
        raise UserError(what, str(path), "give all files the same types") from error


def plain(column: pa.Array) -> pa.Array:
    """Convert a column to texts, numbers or times.

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
    return column


# --- columns


def place_of(name: str, names: list[str], path: Path) -> int:
    """Return the index of a column; raises `UserError`, with the closest name, if it is missing."""
    if name in names:
        return names.index(name)
    likely = get_close_matches(name, names, 1)
    hint = f"did you mean '{likely[0]}'?" if likely else f"choose one of {', '.join(names[:20])}"
    raise UserError(f"no column '{name}'", str(path), hint)


class Block(NamedTuple):
    """Rows of a table. Methods take `missing`: further texts that count as missing."""

    source: Source
    decimal: str
    first: int  # row of the table
    table: pa.Table

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """Return an error for a cell; rows count from 1 in their file, without the header."""
        row += self.first
        start, path = [file for file in self.source.starts if file[0] <= row][-1]
        return UserError(what, f"{path}, row {row - start + 1}, column '{column}'", remedy)

    def column(self, name: str, missing: tuple[str, ...] = ()) -> pa.ChunkedArray:
        """Return times, or all else as stripped texts, with null for missing cells.

        Raises `UserError` for a column of another type, such as lists.
        """
        column = self.table[name]
        if pa.types.is_temporal(column.type):
            return column
        if column.type != STRING and not pa.types.is_primitive(column.type):
            where = f"{self.source.path}, column '{name}'"
            remedy = f"store one number, text or time per cell, or add --drop '{name}'"
            raise UserError(f"cells of type {column.type}", where, remedy)
        with suppress(pa.ArrowException):  # whole numbers with gaps may be stored as floats
            column = column.cast(pa.int64()) if column.type == FLOAT else column
        texts = pc.ascii_trim_whitespace(column.cast(STRING))
        marks = pa.array([*self.source.missing, *missing], STRING)
        return pc.if_else(pc.is_in(texts, marks), None, texts)

    def parse(self, name: str, missing: tuple[str, ...] = ()) -> np.ndarray:
        """Return numbers (rows,) float64: NaN for missing cells, `TEXT` for texts and times.

        A NaN that does not count as missing becomes −infinity.
        """
        marks = {*self.source.missing, *missing}
        try:
            cells = self._with_points(self.table[name]).cast(FLOAT, safe=False)
            values = cells.to_numpy()
            is_known = cells.is_valid().to_numpy()
        except pa.ArrowException:
            # Some cells are texts or times, or Arrow cannot read them. Python reads each distinct
            # cell once.
            places, texts = encode(self._with_points(self.column(name, missing)))
            values = np.array([*map(number, texts), np.nan])[places]
            is_known = places >= 0
        is_nan = is_known & np.isnan(values)
        if is_nan.any() and "nan" not in marks:
            values = np.where(is_nan, -np.inf, values)
        numbers = [mark for mark in map(number, marks) if mark > TEXT]
        return np.where(np.isin(values, numbers), np.nan, values) if numbers else values

    def _with_points(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Write decimal marks as points. A cell that had a point is then not a number."""
        if self.decimal == "." or column.type != STRING:
            return column
        without_points = pc.replace_substring(column, ".", "x")
        return pc.replace_substring(without_points, self.decimal, ".")

    def numbers(self, name: str, remedy: str, missing: tuple[str, ...] = ()) -> np.ndarray:
        """Return numbers (rows,) float64, with NaN for missing cells.

        Raises `UserError` for a cell that is not a float32 number.
        """
        values = self.parse(name, missing)
        is_wrong = np.abs(values) >= FLOAT32_MAX
        if is_wrong.any():
            row = int(is_wrong.argmax())
            cell = str(self.column(name)[row])
            if cell.lower() in GAPS:
                remedy = f"fix the cell, or add --missing '{cell}'"
            else:
                _, remedy = marked_number([cell]) or (cell, remedy)
            expected = "number" if values[row] == TEXT else "finite number"
            raise self.error(f"{cell!r} is not a {expected}", row, name, remedy)
        return values

    def times(self, name: str, is_sole: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds since 1970 or whole numbers (rows,) int64; and is_known (rows,) bool.

        The first block decides the format of a column. is_sole: this is the only column of times,
        so `--time-format` must fit. Raises `UserError` for a cell that is not a time, and for times
        that can be read in two ways.
        """
        column = self.column(name)
        if column.type == STRING and name not in self.source.time_formats:
            self.source.time_formats[name] = self._find_format(name, column, is_sole)
        time_format = self.source.time_formats.get(name, ISO)
        seconds = to_seconds(column, time_format)
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

    def _find_format(self, name: str, column: pa.ChunkedArray, is_sole: bool) -> str:
        """Return the format of a column of texts. Print it if whole numbers are no seconds."""
        given = self.source.time_format
        where = f"{self.source.path}, column '{name}'"
        cells = column.unique().drop_null()
        time_format = choose_format(cells, given, where)
        if time_format == ISO and given and is_sole:
            what = f"'{cells[0]}' does not have the format '{given}'"
            raise UserError(what, where, "correct --time-format, or remove it")
        if time_format == ISO and not given:
            time_format = guess_unit(cells)
            if time_format in MEANINGS:
                print(f"note: column '{name}' is read as {MEANINGS[time_format]}")
        return time_format

    def is_time(self, name: str) -> bool:
        """Whether at least half of a column's distinct cells are times, and not bare numbers."""
        column = self.column(name)
        if column.type != STRING:
            return pa.types.is_temporal(column.type)
        cells = column.unique().drop_null()
        first = cells[:FIRST_CELLS].to_pylist()
        is_likely = self.source.time_format or any(map(LIKE_TIME.match, first))
        if not first or first[0].isdecimal() or not is_likely:
            return False
        return bool(best_formats(cells, self.source.time_format))


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
    numbers = [cell for cell in cells if number(MARKS.sub("", cell)) != TEXT]
    marked = [cell for cell in numbers if number(cell) == TEXT]
    if not marked or 2 * len(numbers) < len(cells):
        return None
    signs = "".join(MARKS.findall(marked[0])).replace(",", "")
    return marked[0], f"remove '{signs}' from the cells" if signs else COMMAS
