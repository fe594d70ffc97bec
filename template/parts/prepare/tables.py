"""Read tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is needed. So types do not depend on the first
rows, and an error can name the file, row, column and cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.runs import check_input
from .times import ISO, find_format, to_seconds

# Sizes of a block, which bound the memory that reading takes.
BLOCK_BYTES = 2 << 20  # of a CSV file
BLOCK_CELLS = 1 << 20  # of a Parquet file
FLOAT32_MAX = 3.4e38
STRING = pa.string()
MISSING = ["", "NA", "na", "nan", "NaN", "null", "NULL"]  # cells without a value
# Other files of a folder are ignored.
TABLE = re.compile(
    r"[^.].*\.(csv|tsv|parquet|pq|feather|arrow)(\.(gz|bz2|lz4|zst))?", re.IGNORECASE
)
UNREADABLE = (OSError, EOFError, pa.ArrowException, ValueError, TypeError, LookupError)

# How files are written, unless flags or the first rows of a CSV file differ.
STYLE: dict[str, Any] = {
    "delimiter": ",",
    "decimal": ".",
    "encoding": "utf-8",
    "missing": [],
    "time_formats": {},  # by column
}
SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
# Not `1,234`, whose comma may separate thousands.
COMMA_NUMBER = re.compile(r"[+-]?(?![1-9]\d{0,2},\d{3}$)\d+,\d+([eE][+-]?\d+)?")


class Source:
    """A table in one file, or in the files of a folder."""

    def __init__(self, path: Path, flags: dict[str, Any], known: dict[str, Any] | None = None):
        """Combine the defaults, `known` and the flags; later ones win.

        flags: values of the flags of `add_input`, None if not given. known: `style` of earlier
        files of this kind. Raises `UserError` if there is no such file.
        """
        known = known or {}
        self.path = path
        self.files = find_files(path)
        self.flags = flags
        self.style = {
            name: flags.get(name) or known.get(name, value) for name, value in STYLE.items()
        }
        self.missing = [*MISSING, *self.style["missing"]]
        self.time_formats: dict[str, str] = {}
        if not flags.get("time_format"):
            self.time_formats |= self.style["time_formats"]
        self.style["time_formats"] = self.time_formats

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, block by block. Raises `UserError` for files that are not a table."""
        is_empty = True
        bar = tqdm(desc="reading", unit=" rows", unit_scale=True, leave=False, disable=None)
        for path in self.files:
            read = READERS.get(path.suffix.lower(), self._csv_batches)
            row = 0
            try:
                for batch in read(path):
                    names = [name.strip() for name in batch.schema.names]
                    check_names(names, path)
                    if len(batch):
                        is_empty = False
                        columns = dict(zip(names, batch.columns, strict=True))
                        yield Block(self, path, self.style["decimal"], row, len(batch), columns)
                    row += len(batch)
                    bar.update(len(batch))
            except UNREADABLE as error:
                what = f"cannot read the file ({error})".partition("\n")[0]
                remedy = "check --encoding (such as latin-1), --delimiter and quotes"
                raise UserError(what, str(path), remedy) from error
        bar.close()
        if is_empty:
            raise UserError("no rows under the header", str(self.path), "check --input")

    def _csv_batches(self, path: Path) -> Iterable[pa.RecordBatch]:
        """Read a CSV file, with every cell as a text."""
        header = self._detect_style(path)
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, encoding=self.style["encoding"]
        )
        parse = arrow_csv.ParseOptions(delimiter=self.style["delimiter"], newlines_in_values=True)
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(header, STRING),
            null_values=self.missing,
            strings_can_be_null=True,
        )
        return arrow_csv.open_csv(path, read, parse, convert)

    def _detect_style(self, path: Path) -> list[str]:
        """Return the header. Detect delimiter and decimal mark; print them if unexpected."""
        with pa.input_stream(str(path)) as file:  # decompresses `.gz` files
            content = file.read(SAMPLE_BYTES)
        # Reading the table reports invalid characters.
        text = content.decode(self.style["encoding"], "replace").removeprefix("\ufeff")
        if "\0" in text:
            remedy = "export a workbook as CSV; if it is text in UTF-16, add --encoding utf-16"
            raise UserError("a NUL byte, as in a binary file", str(path), remedy)

        expected = self.style
        delimiter = self.flags.get("delimiter")
        if not delimiter:
            # The mark that splits the header into the most cells; of equals, first the expected.
            marks = (expected["delimiter"], *DELIMITERS)
            delimiter = max(marks, key=lambda mark: len(sample_rows(text, mark)[0]))
        rows = sample_rows(text, delimiter)
        cells = [cell.strip() for row in rows for cell in row]
        decimal = expected["decimal"]
        if not self.flags.get("decimal"):
            if any(map(POINT_NUMBER.fullmatch, cells)):
                decimal = "."
            elif any(map(COMMA_NUMBER.fullmatch, cells)):
                decimal = ","
        self.style = {**expected, "delimiter": delimiter, "decimal": decimal}
        if self.style != expected:
            print(f"note: delimiter {delimiter!r} and decimal mark {decimal!r} found in {path}")
        return rows[0]


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


def parquet_batches(path: Path) -> Iterable[pa.RecordBatch]:
    file = parquet.ParquetFile(path, pre_buffer=False)
    num_rows = max(BLOCK_CELLS // file.metadata.num_columns, 1)
    return file.iter_batches(num_rows, use_threads=False)


def arrow_batches(path: Path) -> Iterable[pa.RecordBatch]:
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
    """Raise `UserError` for a column that has no name, or the name of another one."""
    for name in names:
        if not name or names.count(name) > 1:
            what = f"two columns with the name '{name}', or one without a name"
            remedy = "give each column its own name; if it is a pandas index, export index=False"
            raise UserError(what, f"{path}, line 1", remedy)


# --- columns


def place_of(name: str, names: Iterable[str], path: Path) -> int:
    """Return the index of a column; raises `UserError`, with the closest name, if it is missing."""
    names = list(names)
    if name in names:
        return names.index(name)
    likely = get_close_matches(name, names, 1)
    hint = f"did you mean '{likely[0]}'?" if likely else f"choose one of {', '.join(names[:20])}"
    raise UserError(f"no column '{name}'", str(path), hint)


@dataclass(frozen=True)
class Block:
    """Rows that follow each other in a file."""

    source: Source
    path: Path
    decimal: str
    first: int  # row of the file, from 0
    num_rows: int
    columns: dict[str, pa.Array]

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """Return an error for a cell; rows count from 1 in their file, without the header."""
        where = f"{self.path}, row {self.first + row + 1}, column '{column}'"
        return UserError(what, where, remedy)

    def _column(self, name: str) -> pa.Array:
        place_of(name, self.columns, self.path)
        return self.columns[name]

    def column(self, name: str) -> pa.Array:
        """Return times, or all else as stripped texts, with null for missing cells.

        Raises `UserError` for a column of another type, such as lists.
        """
        column = self._column(name)
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            return column
        try:
            if pa.types.is_floating(column.type):
                with suppress(pa.ArrowException):  # whole numbers with gaps may be stored as floats
                    column = column.cast(pa.int64())
            texts = pc.ascii_trim_whitespace(column.cast(STRING))
        except pa.ArrowException as error:
            where = f"{self.path}, column '{name}'"
            remedy = f"store one number, text or time per cell, or add --drop '{name}'"
            raise UserError(f"cells of type {column.type}", where, remedy) from error
        is_missing = pc.is_in(texts, pa.array(self.source.missing))
        return pc.if_else(is_missing, None, texts)

    def parse(self, name: str) -> np.ndarray:
        """Return numbers (rows,) float64: NaN for missing cells, infinity if it is no number."""
        try:
            cells = self._with_points(self._column(name)).cast(pa.float64(), safe=False)
            values = cells.to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            # Some cells are texts or times, or Arrow cannot read them. Python reads each distinct
            # cell once.
            places, texts = encode(self._with_points(self.column(name)))
            values = np.array([*map(number, texts), np.nan])[places]
        gaps = [value for value in map(number, self.source.missing) if abs(value) < np.inf]
        return np.where(np.isin(values, gaps), np.nan, values) if gaps else values

    def _with_points(self, column: pa.Array) -> pa.Array:
        """Write decimal marks as points. A cell that had a point is then not a number."""
        if self.decimal == "." or column.type != STRING:
            return column
        without_points = pc.replace_substring(column, ".", "x")
        return pc.replace_substring(without_points, self.decimal, ".")

    def numbers(self, name: str, remedy: str) -> np.ndarray:
        """Return numbers (rows,) float64, with NaN for missing cells.

        Raises `UserError` for a cell that is not a float32 number.
        """
        values = self.parse(name)
        is_wrong = np.abs(values) >= FLOAT32_MAX
        if is_wrong.any():
            row = int(is_wrong.argmax())
            cell = str(self.column(name)[row])
            raise self.error(f"{cell!r} is not a finite number", row, name, remedy)
        return values

    def times(self, name: str) -> np.ndarray:
        """Return times (rows,) datetime64[s], with NaT for missing cells.

        The first block decides the format of a column. Raises `UserError` for a cell that is not a
        time, and for times that can be read in two ways.
        """
        column = self.column(name)
        formats = self.source.time_formats
        where = f"{self.path}, column '{name}'"
        if name not in formats:
            given = self.source.flags.get("time_format")
            formats[name] = given or find_format(column, where) or ISO
            if formats[name] not in (ISO, "s"):
                print(f"note: {where} has times in the format '{formats[name]}'")
        seconds = to_seconds(column, formats[name])
        row = pc.index(pc.and_(seconds.is_null(), column.is_valid()), True).as_py()
        if row >= 0:
            what = f"'{column[row]}' is not a time in the format {formats[name]}"
            raise self.error(what, row, name, "fix it, or see --time-format")
        return seconds.cast(pa.timestamp("s")).to_numpy(zero_copy_only=False)


def encode(column: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Return indices (rows,) into the list of distinct cells, −1 if missing; and that list."""
    encoded = column.cast(STRING).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


def number(cell: str) -> float:
    """Return the number in a cell, or infinity."""
    try:
        return float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return np.inf
