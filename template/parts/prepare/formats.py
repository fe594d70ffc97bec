"""How the cells of a table are written: delimiter and decimal mark of a CSV, formats of times."""

from __future__ import annotations

import csv
import io
import re
from codecs import getincrementaldecoder
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError

SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
NAMES = {"\t": "tab"}  # of delimiters, as `--delimiter` takes them
GZIP = b"\x1f\x8b"
CONTROL = re.compile("[\0-\x08\x0e-\x1f]")
BINARY = 1 / 20  # a text has a smaller fraction of control characters

COMMA_NUMBER = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")

ISO = ""  # the format of ISO 8601, and of whole seconds
# With points, the day comes first.
DATES = """
%Y-%m-%d|%Y/%m/%d|%Y.%m.%d|%d.%m.%Y|%d/%m/%Y|%d-%m-%Y|%d.%m.%y|%d/%m/%y|%d-%m-%y
%m/%d/%Y|%m-%d-%Y|%m/%d/%y|%m-%d-%y|%y/%m/%d|%y-%m-%d
%d %b %Y|%d-%b-%Y|%d-%b-%y|%b %d, %Y
"""
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
FORMATS = [date + clock for date in re.split(r"[|\n]", DATES.strip()) for clock in CLOCKS]

ISO_CELL = r"^(\d{4}-\d\d-\d\d.*|-?\d+)$"
FIRST_CELLS = 64  # a format that reads none of them is not tried on the others
SECONDS = pa.timestamp("s")
ISO_TYPES = (SECONDS, pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64())
EXAMPLE = datetime(2024, 1, 31)


# --- a CSV, by its first rows


def open_file(path: Path) -> Any:
    """Open a file for reading; it may be gzipped, whatever its name is."""
    file = pa.OSFile(str(path))
    beginning = file.read(len(GZIP))
    file.seek(0)
    if beginning == GZIP:
        return pa.CompressedInputStream(file, "gzip")
    return file


def read_sample(path: Path, encoding: str) -> str:
    """The first complete lines. Raises LookupError for an unknown encoding.

    Characters that are not in the encoding are replaced: reading the table reports them.
    """
    with open_file(path) as file:
        content = file.read(SAMPLE_BYTES)
    text = getincrementaldecoder(encoding)("replace").decode(content)
    if len(content) == SAMPLE_BYTES:
        text = text.rpartition("\n")[0]
    return text.removeprefix("\ufeff")


def is_binary(text: str) -> bool:
    """Whether this is a picture, a workbook or another file that is not text."""
    return len(CONTROL.findall(text)) > BINARY * len(text)


def rows_of(text: str, delimiter: str) -> list[list[str]]:
    """The first rows that are not blank, header included."""
    lines = io.StringIO(text.replace("\0", ""), "")
    reader = csv.reader(lines, delimiter=delimiter)
    return [row for row in islice(reader, SAMPLE_ROWS) if row]


def guess_delimiter(text: str, expected: str) -> str:
    """`expected` if it separates cells, else what gives most rows the header's length."""
    for mark in (expected, *DELIMITERS):
        lengths = [len(row) for row in rows_of(text, mark)]
        if lengths and lengths[0] > 1 and 2 * lengths.count(lengths[0]) > len(lengths):
            return mark
    return expected


def guess_decimal(text: str, delimiter: str) -> str:
    """A comma if a column has numbers with one and nothing else, and none has a point.

    `1,234` alone does not decide: the comma may separate thousands.
    """
    mark = "."
    for column in zip(*rows_of(text, delimiter)[1:], strict=False):
        cells = [cell.strip() for cell in column if cell.strip()]
        if any(POINT_NUMBER.fullmatch(cell) for cell in cells):
            return "."
        has_commas = any("," in cell and not THOUSANDS.fullmatch(cell) for cell in cells)
        if has_commas and all(COMMA_NUMBER.fullmatch(cell) for cell in cells):
            mark = ","
    return mark


# --- times


def check_time_format(time_format: str) -> None:
    """Raise `UserError` unless the format has a whole date."""
    read = None
    with suppress(ValueError):
        read = datetime.strptime(EXAMPLE.strftime(time_format), time_format)
    if read is None or read.date() != EXAMPLE.date():
        what = f"'{time_format}' is no format of a date"
        raise UserError(what, "--time-format", "such as %d.%m.%Y or '%m/%d/%Y %H:%M'")


def best_formats(cells: pa.Array, formats: list[str]) -> list[str]:
    """The formats that read most of the cells (different texts), and at least half of them."""
    counts = {}
    for time_format in formats:
        counts[time_format] = count_read(cells[:FIRST_CELLS], time_format)
        if counts[time_format]:
            counts[time_format] = count_read(cells, time_format)
        if counts[time_format] == len(cells) and time_format == ISO:
            break
    most = max(counts.values())
    if 2 * most < len(cells):
        return []
    return [time_format for time_format, count in counts.items() if count == most]


def count_read(cells: pa.Array, time_format: str) -> int:
    """How many of the cells a format reads."""
    if time_format == ISO:
        return pc.sum(pc.match_substring_regex(cells, ISO_CELL)).as_py() or 0
    return len(cells) - read_format(cells, time_format).null_count


def choose_format(cells: pa.Array, formats: list[str], where: str) -> str:
    """The best format, `ISO` if none is.

    Raises `UserError` where another one is as good and reads a cell differently.
    """
    best = best_formats(cells, formats)
    if not best or ISO in best:
        return best[0] if best else ISO
    first = read_format(cells, best[0])
    for time_format in best[1:]:
        other = read_format(cells, time_format)
        place = pc.index(pc.not_equal(first, other), True).as_py()
        if place >= 0:
            days = [str(read[place].cast(SECONDS).cast(pa.date32())) for read in (first, other)]
            remedy = f"say --time-format '{best[0]}' or --time-format '{time_format}'"
            raise UserError(f"'{cells[place]}' may be {' or '.join(days)}", where, remedy)
    return best[0]


def to_seconds(column: pa.ChunkedArray, time_format: str) -> pa.ChunkedArray:
    """int64 seconds since 1970, or whole numbers; null where a cell is.

    Raises ArrowInvalid or ValueError for a cell that is no time.
    """
    if pa.types.is_string(column.type):
        if time_format != ISO:
            seconds = read_format(column, time_format)
            if seconds.null_count > column.null_count:
                raise ValueError
            return seconds
        column = _read_iso(column)
    if pa.types.is_temporal(column.type):
        column = column.cast(SECONDS, safe=False)
    return column.cast(pa.int64())


def _read_iso(column: pa.ChunkedArray) -> pa.ChunkedArray:
    for kind in ISO_TYPES:
        with suppress(pa.ArrowInvalid):
            return column.cast(kind)
    raise ValueError


def read_format(texts: Any, time_format: str) -> Any:
    """int64 seconds, null where a text does not have the format."""
    times = pc.strptime(texts, format=time_format, unit="s", error_is_null=True)
    # It reads 31.02. as 2 March and 24 as the year 24: such cells are left to Python.
    is_odd = pc.or_(pc.less_equal(pc.day(times), 3), pc.less(pc.year(times), 1000))
    is_wrong = np.zeros(len(texts), bool)
    for row in np.flatnonzero(pc.fill_null(is_odd, False)).tolist():
        is_wrong[row] = not _is_date(texts[row].as_py(), time_format)
    return pc.if_else(pa.array(is_wrong), None, times.cast(pa.int64()))


def _is_date(cell: str, time_format: str) -> bool:
    try:
        datetime.strptime(cell, time_format)
    except ValueError:
        return False
    return True
