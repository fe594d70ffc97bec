"""Read tables in blocks of rows, from CSV, Parquet, Feather and Arrow files, or folders of them.

A cell of a CSV file stays a text until its number is needed. So types do not depend on the first
rows, and an error can name the file, row, column and cell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet
from tqdm import tqdm

from ..engine.errors import UserError, note
from ..engine.runs import check_input
from .content import content_of
from .delimiters import find_delimiter
from .folders import list_files

# Sizes of a block, which bound the memory that reading takes.
BLOCK_BYTES = 2 << 20  # of a CSV file
BLOCK_CELLS = 1 << 20  # of a Parquet file
FLOAT32_MAX = 3.4e38
STRING = pa.string()
MISSING = ["", "NA", "na", "nan", "NaN", "null", "NULL"]  # cells without a value
COLUMNAR = ("a Parquet file", "an Arrow file", "an Arrow stream")
PACKED = r"(\.(gz|gzip|bz2|zst|lz4))?"
# Other files of a folder are ignored.
TABLE = re.compile(rf"(.*)\.(csv|tsv|parquet|pqt?|feather|arrows?|ipc){PACKED}", re.IGNORECASE)
# Characters that nobody sees, and that make equal names different.
HIDDEN = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
UNREADABLE = (OSError, pa.ArrowException, ValueError, TypeError, LookupError)
FIX_FILE = (
    "copy or export it again; in a CSV file, check quotes, --delimiter, --encoding (such as "
    "latin-1), and that each line has as many cells as the header"
)

# How files are written. Delimiter and decimal mark are detected in the first CSV file, unless they
# are given.
STYLE = (
    "delimiter",
    "decimal",
    "encoding",
    "missing",
    "keep_na",
    "time_format",
    "timezone",
    "dtype",
)
# What may be above a header: blank lines, Excel's `sep=;`, and comments. A comment above a row that
# has a number or a time is a header itself.
ABOVE = re.compile(
    r'(?i)\ufeff*(\s*\n|"?sep=.*\n|(#|%|//).*\n'
    r'(?!(.*[,;\t|])?["\s]*[-+.]?\d[-+.:/\deTZ "\r]*[,;\t|\n]))*'
)
csv.field_size_limit(BLOCK_BYTES)  # of a cell that is looked at to detect the decimal mark
# How people write numbers: no-break and thin spaces or apostrophes between thousands, a minus sign
# or a dash; and characters that nobody sees.
PLAIN_SIGNS = str.maketrans(
    "\u00a0\u2007\u2009\u202f'’\u2212\u2010\u2011\u2013\uff0d",
    "      -----",
    "\u00ad\u200b\u200e\u200f\u2060\ufeff",
)
NEGATIVE = re.compile(r"^\( *(.*?) *\)$|^(.*?) *-$|^- +")  # (12), 12- and - 12
NUMBER = re.compile(
    r"[-+]?([1-9]\d{0,2}([ ,])\d{3}(\2\d{3})*(\.\d*)?|\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
)
SWAP_MARKS = str.maketrans(",.", ".,")

KEPT = 0.9  # the fraction of different values that float32 must keep
FAR = 1e4  # float32 leaves three digits of a column whose mean is so many standard deviations


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
        named = [""] if self.style["keep_na"] else MISSING
        self.missing = [*named, *marks]
        self.gaps = [gap for gap in map(self.number, marks) if gap < np.inf]

    def number(self, cell: str, decimal: str = "") -> float:
        """Return the number in a cell: NaN for a missing one, infinity for any other text.

        decimal: the decimal mark; by default that of the file.
        """
        if (decimal or self.style["decimal"]) == ",":
            cell = cell.translate(SWAP_MARKS)
        try:
            return float(cell.replace("_", "x"))  # Python reads 1_2 as 12
        except ValueError:
            text = NEGATIVE.sub(r"-\1\2", cell.translate(PLAIN_SIGNS))
            if NUMBER.fullmatch(text):
                return float(re.sub("[ ,]", "", text))
        # With --keep-na, these words are names in texts only.
        return np.nan if cell in MISSING else np.inf

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows, block by block. Raises `UserError` for files that are not a table."""
        names: Iterable[str] = ()  # of the columns of the first file
        for path in self.files:
            row = 0
            try:
                for batch in tqdm(self._batches(path), path.name, leave=False, disable=None):
                    batch.validate(full=True)  # a damaged one could end the process
                    block = RowBlock(self, path, row, len(batch), columns_of(batch, path))
                    row += len(batch)
                    if len(batch) and block.columns:
                        names = names or block.columns.keys()
                        new = block.columns.keys() - names
                        if new and not block.first:
                            print(f"note: {path}: columns that the first file lacks: {sorted(new)}")
                        yield block
            except UNREADABLE as error:
                what = f"cannot read the file ({error})".partition("\n")[0]
                raise UserError(what, str(path), FIX_FILE) from error
        if not names:
            raise UserError("a table without rows", str(self.path), "check --input")

    def _batches(self, path: Path) -> Iterable[pa.RecordBatch]:
        """Read a file by what it is; in a CSV file, every cell is a text."""
        kind, content = content_of(path, open(path, "rb"), *COLUMNAR)  # noqa: SIM115
        if kind == "a Parquet file":
            file = parquet.ParquetFile(path, pre_buffer=False)
            num_rows = BLOCK_CELLS // (file.metadata.num_columns + 1) + 1
            return file.iter_batches(num_rows, use_threads=False)
        if kind == "an Arrow stream":
            return ipc.open_stream(pa.OSFile(str(path)))
        if kind == "an Arrow file":
            reader = ipc.open_file(pa.OSFile(str(path)))
            return map(reader.get_batch, range(reader.num_record_batches))

        read = self._read_header(path)
        parse = arrow_csv.ParseOptions(delimiter=self.style["delimiter"], newlines_in_values=True)
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(read.column_names, STRING),
            null_values=self.missing,
            strings_can_be_null=True,
        )
        return arrow_csv.open_csv(content, read, parse, convert)

    def _read_header(self, path: Path) -> arrow_csv.ReadOptions:
        """Return where the rows of a CSV file begin, and the names of their columns.

        Detect delimiter and decimal mark in the first file.
        """
        with open(path, "rb") as file:
            content = content_of(path, file)[1].read(BLOCK_BYTES)
        # Reading the table reports invalid characters.
        text = content.decode(self.encoding, "replace")
        if "\0" in text:
            remedy = "export a workbook as CSV; if it is text in UTF-16, add --encoding utf-16"
            raise UserError("a NUL byte, as in a binary file", str(path), remedy)

        table = ABOVE.sub("", text, 1)
        style = self.style
        if not style["delimiter"]:
            style["delimiter"] = find_delimiter(table)
        rows = csv.reader(table.splitlines(keepends=True), delimiter=style["delimiter"])
        names = next(rows, [])
        if "\ufffd" in "".join(names):
            what = f"column names are not in {self.encoding}"
            raise UserError(what, f"{path}, line 1", "add --encoding, such as latin-1")
        if not style["decimal"]:
            style["decimal"] = "."
            if style["delimiter"] != ",":
                style["decimal"] = self._find_decimal(rows, path)
                found = f"delimiter {style['delimiter']!r} and decimal mark {style['decimal']!r}"
                print(f"note: {found} found in {path}")
        return arrow_csv.ReadOptions(
            use_threads=False,
            block_size=BLOCK_BYTES,
            encoding=self.encoding,
            skip_rows=text.count("\n") - table.count("\n"),
            column_names=names,
            skip_rows_after_names=1,
        )

    def _find_decimal(self, rows: Iterable[list[str]], path: Path) -> str:
        """Return the decimal mark of a file whose delimiter is no comma, by its columns of numbers.

        A column tells it if all its cells are numbers with one mark only. Raises `UserError` if
        columns differ, or if numbers have another value with each mark, such as 1.101 and 48,137.
        """
        marks = set()
        unclear = ""
        for column in zip_longest(*rows, fillvalue=""):
            cells = sorted({cell.strip() for cell in column}.difference(self.missing))
            values = {mark: [self.number(cell, mark) for cell in cells] for mark in ".,"}
            fitting = [mark for mark in values if cells and max(values[mark]) < np.inf]
            if len(fitting) == 1:
                marks.update(fitting)
            elif fitting and values["."] != values[","]:
                unclear = cells[-1]
        if len(marks) > 1 or (unclear and not marks):
            what = "columns have different decimal marks"
            if not marks:
                what = f"'{unclear}' may have a decimal mark, or separate thousands"
            raise UserError(what, str(path), "add --decimal ',' or --decimal '.'")
        return marks.pop() if marks else "."


# --- files


def find_files(path: Path) -> list[Path]:
    """Return the file, or the files of the folder in the order of their names."""
    check_input(path)
    if not path.is_dir():
        return [path]
    files = list_files(path, lambda file: TABLE.fullmatch(file.name))
    if not files:
        what = "no .csv, .tsv, .csv.gz, Parquet, Feather or Arrow file in the folder"
        raise UserError(what, str(path), "point --input at the data")
    return files


# --- columns


def columns_of(batch: pa.RecordBatch, path: Path) -> dict[str, pa.Array]:
    """Return the columns by name. Raises `UserError` if a name is empty, or that of two columns."""
    names = [" ".join(HIDDEN.sub("", name).split()) for name in batch.schema.names]
    # A delimiter at the end of each line makes a column without a name and without cells.
    while names and not names[-1] and batch[len(names) - 1].null_count == len(batch):
        names.pop()
    columns = dict(zip(names, batch.columns, strict=False))
    if len(columns) < len(names) or "" in columns:
        what = f"two columns have one name, or one has none: {', '.join(names)[:200]}"
        remedy = "name each column once; if it is a pandas index, export index=False"
        raise UserError(what, f"{path}, line 1", remedy)
    return columns


def place_of(name: str, names: Iterable[str], path: Path) -> int:
    """Return the index of a column; raises `UserError`, with similar names, if it is missing."""
    names = list(names)
    if name in names:
        return names.index(name)
    similar = ", ".join(get_close_matches(name, names, n=5, cutoff=0))
    raise UserError(f"no column {name!r}", str(path), f"did you mean one of {similar}?")


@dataclass(frozen=True)
class RowBlock:
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
        place_of(name, self.columns, self.path)
        return self.columns[name]

    def column(self, name: str) -> pa.Array:
        """Return times, or all else as stripped texts, with null for missing cells.

        Raises `UserError` for a column of another type, such as lists, and for a quote in a TSV
        file that takes the next rows into its cell. With other delimiters, which texts of several
        lines may have, that is a note.
        """
        column = self._column(name)
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            return column
        try:
            texts = pc.utf8_trim_whitespace(column.cast(STRING))
        except pa.ArrowException as error:
            remedy = f"store one number, text or time per cell, or add --drop '{name}'"
            raise self.error(f"a cell of type {column.type}", 0, name, remedy) from error
        delimiter = self.source.style["delimiter"]
        if delimiter:
            # A stray quote begins a cell that has all rows up to the next quote.
            has_lines = pc.match_substring(texts, "\n")
            has_rows = pc.and_(has_lines, pc.match_substring(texts, delimiter))
            row = pc.index(has_rows, True).as_py()
            if row >= 0 and delimiter == "\t":
                raise self.error("an open quote", row, name, "quote the cell and double its quotes")
            if row >= 0:
                where = f"{self.path}, column '{name}'"
                note(f"{where}: cells of several lines: if they are other rows, a quote is open")
        is_missing = pc.is_in(texts, pa.array(self.source.missing))
        return pc.if_else(is_missing, None, texts)

    def parse(self, name: str) -> np.ndarray:
        """Return numbers (rows,) float64: NaN for missing cells, infinity if it is no number."""
        column = self._column(name)
        try:
            if self.source.style["decimal"] == "," and column.type == STRING:
                # A cell that has a point is then no number for Arrow.
                column = pc.replace_substring(pc.replace_substring(column, ".", "x"), ",", ".")
            cells = column.cast(pa.float64(), safe=False)
            values = cells.to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            # Some cells are texts or times, or Arrow cannot read them, such as ` 1` or `1,000`.
            # Python reads each distinct cell once.
            cells = self.column(name).cast(STRING).dictionary_encode()
            numbers = map(self.source.number, cells.dictionary.to_pylist())
            values = np.array([*numbers, np.nan])[cells.indices.fill_null(-1)]
        for gap in self.source.gaps:
            values = np.where(values == gap, np.nan, values)
        return values

    def choose_type(self, name: str) -> None:
        """Store numbers as float64 if float32 keeps too few digits, as of Julian dates."""
        values = self.parse(name)
        known = values[np.abs(values) < FLOAT32_MAX]
        rounded = np.float32(known)
        is_rounded = (rounded != known).any()
        is_far = is_rounded and abs(known.mean()) > FAR * (known.std() or 1)
        # A single 0 among Julian dates makes their deviation large, but other values still merge.
        if is_far or len(np.unique(rounded)) < KEPT * len(np.unique(known)):
            self.source.style["dtype"] = "float64"

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
