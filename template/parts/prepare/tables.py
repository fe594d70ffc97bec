"""Read tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is needed. So types do not depend on the first
rows, and an error can name the file, row, column and cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
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

# Sizes of a block, which bound the memory that reading takes.
BLOCK_BYTES = 2 << 20  # of a CSV file
BLOCK_CELLS = 1 << 20  # of a Parquet file
FLOAT32_MAX = 3.4e38
STRING = pa.string()
MISSING = ["", "NA", "na", "nan", "NaN", "null", "NULL"]  # cells without a value
# Other files of a folder are ignored.
TABLE = re.compile(r"[^.].*\.(csv|tsv|parquet|pq|feather|arrow)(\.gz)?", re.IGNORECASE)
UNREADABLE = (OSError, pa.ArrowException, ValueError, TypeError, LookupError)

# How files are written. Delimiter and decimal mark are detected in the first CSV file, unless they
# are given.
STYLE = ("delimiter", "decimal", "encoding", "missing", "time_format")
SAMPLE_BYTES = 64 << 10  # from the beginning of a file
DELIMITERS = ",;\t|"
# Not `1,234`, whose comma may separate thousands.
COMMA_NUMBER = re.compile(r"[+-]?(?![1-9]\d{0,2},\d{3}$)\d+,\d+([eE][+-]?\d+)?")


class Source:
    """A table in one file, or in the files of a folder."""

    def __init__(self, path: Path, flags: dict[str, Any], known: dict[str, Any] | None = None):
        """Look for the file, or the files of the folder. Raises `UserError` if there is none.

        flags: those of the command, None if not given. known: those of earlier files of this kind,
        which flags override.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        self.path = path
        self.files = find_files(path)
        self.flags = {**(known or {}), **given}
        self.style: dict[str, Any] = {name: self.flags.get(name) for name in STYLE}
        self.encoding = self.style["encoding"] or "utf-8"
        marks = self.style["missing"] or []
        self.missing = [*MISSING, *marks]
        self.gaps = [gap for gap in map(number, marks) if gap < np.inf]

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, block by block. Raises `UserError` for files that are not a table."""
        is_empty = True
        for path in self.files:
            row = 0
            try:
                for batch in tqdm(self._batches(path), path.name, leave=False, disable=None):
                    block = Block(self, path, row, len(batch), columns_of(batch, path))
                    row += len(batch)
                    if len(batch):
                        is_empty = False
                        yield block
            except UNREADABLE as error:
                what = f"cannot read the file ({error})".partition("\n")[0]
                remedy = "check --encoding (such as latin-1), --delimiter and quotes"
                raise UserError(what, str(path), remedy) from error
        if is_empty:
            raise UserError("no rows under the header", str(self.path), "check --input")

    def _batches(self, path: Path) -> Iterable[pa.RecordBatch]:
        """Read a file by its ending; in a CSV file, every cell is a text."""
        ending = path.suffix.lower()
        if ending in (".parquet", ".pq"):
            file = parquet.ParquetFile(path, pre_buffer=False)
            num_rows = BLOCK_CELLS // file.metadata.num_columns + 1
            return file.iter_batches(num_rows, use_threads=False)
        if ending in (".feather", ".arrow"):
            reader = ipc.open_file(pa.OSFile(str(path)))
            return map(reader.get_batch, range(reader.num_record_batches))

        header = self._read_header(path)
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, encoding=self.encoding
        )
        parse = arrow_csv.ParseOptions(delimiter=self.style["delimiter"], newlines_in_values=True)
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(header, STRING),
            null_values=self.missing,
            strings_can_be_null=True,
        )
        return arrow_csv.open_csv(path, read, parse, convert)

    def _read_header(self, path: Path) -> list[str]:
        """Return the header of a CSV file. Detect delimiter and decimal mark in the first one."""
        with pa.input_stream(str(path)) as file:  # decompresses `.gz` files
            content = file.read(SAMPLE_BYTES)
        # Reading the table reports invalid characters.
        text = content.decode(self.encoding, "replace").lstrip("\ufeff\r\n")
        if "\0" in text:
            remedy = "export a workbook as CSV; if it is text in UTF-16, add --encoding utf-16"
            raise UserError("a NUL byte, as in a binary file", str(path), remedy)

        style = self.style
        if not style["delimiter"]:
            header = re.sub('"[^"]*"', "", text.partition("\n")[0])  # without quoted names
            style["delimiter"] = max(DELIMITERS, key=header.count)
        lines = io.StringIO(text, "")
        rows = list(csv.reader(lines, delimiter=style["delimiter"])) or [[]]
        if not style["decimal"]:
            cells = [cell.strip() for row in rows for cell in row]
            has_commas = style["delimiter"] != "," and any(map(COMMA_NUMBER.fullmatch, cells))
            style["decimal"] = "," if has_commas else "."
            if style["delimiter"] != ",":
                found = f"delimiter {style['delimiter']!r} and decimal mark {style['decimal']!r}"
                print(f"note: {found} found in {path}")
        return rows[0]


# --- files


def find_files(path: Path) -> list[Path]:
    """Return the file, or the files of the folder in the order of their names."""
    check_input(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if TABLE.fullmatch(file.name))
    if not files:
        what = "no .csv, .tsv, .parquet, .pq, .feather, .arrow or .csv.gz file in the folder"
        raise UserError(what, str(path), "point --input at the data")
    return files


# --- columns


def columns_of(batch: pa.RecordBatch, path: Path) -> dict[str, pa.Array]:
    """Return the columns by name. Raises `UserError` if a name is empty, or that of two columns."""
    names = [name.strip() for name in batch.schema.names]
    columns = dict(zip(names, batch.columns, strict=True))
    if len(columns) < len(names) or "" in columns:
        what = f"two columns have one name, or one has none: {', '.join(names)[:200]}"
        remedy = "give each column its own name; if it is a pandas index, export index=False"
        raise UserError(what, f"{path}, line 1", remedy)
    return columns


def place_of(name: str, names: Iterable[str], path: Path) -> int:
    """Return the index of a column; raises `UserError`, with similar names, if it is missing."""
    names = list(names)
    if name in names:
        return names.index(name)
    similar = ", ".join(get_close_matches(name, names, n=5, cutoff=0))
    raise UserError(f"no column '{name}'", str(path), f"did you mean one of {similar}?")


@dataclass(frozen=True)
class Block:
    """Rows that follow each other in a file."""

    source: Source
    path: Path
    first: int  # row of the file, from 0
    num_rows: int
    columns: dict[str, pa.Array]

    def error(self, what: str, row: int, column: str, remedy: str) -> UserError:
        """Return an error for a cell; rows count from 1 in their file, without the header."""
        where = f"{self.path}, row {self.first + row + 1}, column '{column}'"
        return UserError(what, where, remedy)

    def _column(self, name: str) -> pa.Array:
        if name not in self.columns:
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
            texts = pc.ascii_trim_whitespace(column.cast(STRING))
        except pa.ArrowException as error:
            remedy = f"store one number, text or time per cell, or add --drop '{name}'"
            raise self.error(f"a cell of type {column.type}", 0, name, remedy) from error
        is_missing = pc.is_in(texts, pa.array(self.source.missing))
        return pc.if_else(is_missing, None, texts)

    def parse(self, name: str) -> np.ndarray:
        """Return numbers (rows,) float64: NaN for missing cells, infinity if it is no number."""
        try:
            cells = self._with_points(self._column(name)).cast(pa.float64(), safe=False)
            values = cells.to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            # Some cells are texts or times, or Arrow cannot read them, such as ` 1` or `+1`. Python
            # reads each distinct cell once.
            cells = self._with_points(self.column(name).cast(STRING)).dictionary_encode()
            numbers = [*map(number, cells.dictionary.to_pylist()), np.nan]
            values = np.array(numbers)[cells.indices.fill_null(-1)]
        for gap in self.source.gaps:
            values = np.where(values == gap, np.nan, values)
        return values

    def _with_points(self, column: pa.Array) -> pa.Array:
        """Write decimal marks as points. A cell that had a point is then not a number."""
        if self.source.style["decimal"] != "," or column.type != STRING:
            return column
        return pc.replace_substring(pc.replace_substring(column, ".", "x"), ",", ".")

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


def number(cell: str) -> float:
    """Return the number in a cell, or infinity."""
    try:
        return float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return np.inf
