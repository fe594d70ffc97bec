"""A file of a table, read by pyarrow piece by piece: CSV, Parquet, Feather, Arrow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc, parquet
from tqdm import tqdm

from .engine.errors import UserError
from .formats import DELIMITERS, NAMES, SECONDS
from .scaling import BLOCK_ROWS

BLOCK_CELLS = 4 << 20  # of a block of a wide table, which has fewer rows
STRING = pa.string()
FLOAT = pa.float64()
CODED = pa.dictionary(pa.int32(), STRING)
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"PK\3\4": "zip",
}
UNREADABLE = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError, LookupError)


@dataclass
class File:
    """A file, and how its cells are written where it is a CSV."""

    path: Path
    kind: str  # as of `kind_of`
    delimiter: str
    encoding: str
    missing: tuple[str, ...]
    is_alone: bool  # no other file has the same columns
    # Rows of another length than the header, and errors of rows that cannot be decoded.
    _refused: list[Any] = field(default_factory=list)

    def tables(self, title: str) -> Iterator[pa.Table]:
        """Its columns by their stripped names. Raises `UserError` for what is no table."""
        try:
            with self._bar(title) as bar, pa.OSFile(str(self.path)) as file:
                num_rows = 0
                for batch in self._batches(file):
                    names = [name.strip() for name in batch.schema.names]
                    self._check(names)
                    yield pa.Table.from_arrays([_plain(column) for column in batch.columns], names)
                    num_rows += batch.num_rows
                    seconds = bar.format_dict["elapsed"] or 1
                    bar.set_postfix_str(f"{num_rows / seconds:,.0f} rows/s", False)
                    bar.update(max(file.tell() - bar.n, 0))
        except UNREADABLE as error:
            raise self._error(error) from error

    def _bar(self, title: str) -> tqdm:
        size = self.path.stat().st_size
        return tqdm(None, title, size, unit="B", unit_scale=True, disable=None, leave=False)

    def _batches(self, file: Any) -> Iterator[pa.RecordBatch]:
        """The file as it is read; of a CSV, every cell is a text."""
        if self.kind == "parquet":
            coded = _coded(parquet.ParquetFile(file)) if self.is_alone else []
            whole = parquet.ParquetFile(file, read_dictionary=coded, pre_buffer=False)
            size = max(min(BLOCK_ROWS, BLOCK_CELLS // whole.metadata.num_columns), 1)
            yield from whole.iter_batches(size, use_threads=False)
        elif self.kind == "arrow":
            reader = ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from self._csv_batches(file)

    def _csv_batches(self, file: Any) -> Iterator[pa.RecordBatch]:
        reader = self._open_csv(file)
        last = None
        while True:
            with _undecodable_in(self._refused):
                batch = next(reader, None)
            if batch is None:
                break
            yield batch
            last = batch
        if last and str(last.column(-1)[-1]).endswith("\n"):
            raise pa.ArrowInvalid("a quote is opened and never closed")

    def _open_csv(self, file: Any) -> Any:
        """A reader of batches in which every cell is a text."""

        def refuse(row: Any) -> str:
            self._refused.append(row)
            return "error"

        read = csv.ReadOptions(use_threads=False, encoding=self.encoding)
        parse = csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        parse.invalid_row_handler = refuse
        convert = csv.ConvertOptions(null_values=self.missing, strings_can_be_null=True)
        # Open it once for the names of the columns, then with their types.
        for opened in (pa.OSFile(str(self.path)), file):
            if self.kind == "gzip":
                opened = pa.CompressedInputStream(opened, "gzip")
            with _undecodable_in(self._refused):
                reader = csv.open_csv(opened, read, parse, convert)
            convert.column_types = dict.fromkeys(reader.schema.names, STRING)
        return reader

    def _error(self, error: Exception) -> UserError:
        """The line for what ended the reading."""
        refused = self._refused[0] if self._refused else error
        if isinstance(refused, Exception):
            return unreadable(self.path, self.encoding, refused)
        what = f"{refused.actual_columns} cells where the header has {refused.expected_columns}"
        if refused.text.count('"') % 2:
            what = "a quote is opened and never closed"
        remedy = "fix the line"
        others = [mark for mark in DELIMITERS if mark in refused.text and mark != self.delimiter]
        if refused.expected_columns == 1 and others:
            remedy += f", or say what separates cells: --delimiter {_name_of(others[0])}"
        return UserError(what, f"{self.path}, row {refused.number - 1}", remedy)

    def _check(self, names: list[str]) -> None:
        """Raise `UserError` for columns that cannot be told apart."""
        where = f"{self.path}, line 1"
        if len(names) == 1:
            for mark in DELIMITERS:
                if mark in names[0]:
                    expected = "commas" if self.delimiter == "," else repr(self.delimiter)
                    remedy = f"say --delimiter {_name_of(mark)}"
                    raise UserError(f"no {expected} between the names", where, remedy)

        remedy = "name it; from pandas, export with index=False"
        for place, name in enumerate(names):
            if not name:
                raise UserError(f"column {place + 1} has no name", where, remedy)
            if name in names[:place]:
                raise UserError(f"two columns are named '{name}'", where, remedy)


def _name_of(delimiter: str) -> str:
    """A delimiter as `--delimiter` takes it."""
    return NAMES.get(delimiter, repr(delimiter))


def unreadable(path: Path, encoding: str, error: Exception) -> UserError:
    """The line for a file that cannot be read."""
    reason = getattr(error, "strerror", "") or error
    what = f"cannot read the file ({reason})".partition("\n")[0]
    remedy = "check --input and --encoding; mend or fetch the file again"
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in what:
        what = f"not {encoding.upper()} text"
        remedy = "name it, such as --encoding latin-1"
    elif "Empty CSV" in what:
        what = "no rows under the header" if path.stat().st_size else "the file is empty"
        remedy = "it needs a header line and rows"
    return UserError(what, str(path), remedy)


@contextmanager
def _undecodable_in(errors: list[Any]) -> Iterator[None]:
    """Collect errors of decoding in pyarrow's callbacks; Python would print them as tracebacks."""
    before = sys.unraisablehook

    def collect(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, UnicodeDecodeError):
            errors.append(unraisable.exc_value)
        else:
            before(unraisable)

    sys.unraisablehook = collect
    try:
        yield
    finally:
        sys.unraisablehook = before


def kind_of(path: Path) -> str:
    """What a file is, by how it begins; empty where that says nothing, as for a CSV."""
    with open(path, "rb") as file:
        beginning = file.read(max(map(len, MAGIC)))
    for magic, kind in MAGIC.items():
        if beginning.startswith(magic):
            return kind
    return ""


def _coded(file: parquet.ParquetFile) -> list[str]:
    """Columns of texts that are stored as numbers of a few values.

    They take less than 4 bytes a row, which is what the length of a text alone would take.
    """
    schema = file.schema_arrow
    about = file.metadata
    if not about.num_row_groups or about.num_columns != len(schema):
        return []
    names = []
    for place in range(len(schema)):
        chunk = about.row_group(0).column(place)
        is_small = chunk.total_uncompressed_size < 4 * chunk.num_values
        if is_small and schema.field(place).type == STRING:
            names.append(chunk.path_in_schema)
    return names


def _plain(column: pa.Array) -> pa.Array:
    """The same values as texts, few different ones as their dictionary; numbers; or times.

    What is none of these, such as a list, stays as it is: `Block.column` refuses it.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column if kind == CODED else _plain(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        # As a CSV has it, without a fraction where there is none.
        seconds = column.cast(SECONDS, safe=False)
        is_whole = seconds.cast(kind, safe=False).equals(column)
        return seconds if is_whole else column
    if not is_plain(kind):
        with suppress(pa.ArrowException):
            return column.cast(FLOAT if pa.types.is_decimal(kind) else STRING)
    return column


def is_plain(kind: pa.DataType) -> bool:
    """Whether `Block` can make texts, numbers or times of such cells."""
    checks = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(check(kind) for check in checks)
