"""Detect how a table is written: delimiter and decimal mark of a CSV file, formats of times."""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError

SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
NAMES = {"\t": "tab"}  # delimiters that `--delimiter` takes by name

COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")

ISO = ""  # stands for ISO 8601 and for whole seconds
# Units of whole numbers, as `--time-format` takes them, and how many of them are a second.
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LATEST = 10**10  # seconds, in the year 2286: larger numbers count a shorter unit
YEARS = range(1500, 2200)
MEANINGS = {
    "%Y": "years",
    "%Y%m": "years and months",
    "ms": "milliseconds since 1970",
    "us": "microseconds since 1970",
    "ns": "nanoseconds since 1970",
}
# In dates with points, the day comes first.
DATES = """
%Y-%m-%d|%Y/%m/%d|%Y.%m.%d|%d.%m.%Y|%d/%m/%Y|%d-%m-%Y|%d.%m.%y|%d/%m/%y|%d-%m-%y
%m/%d/%Y|%m-%d-%Y|%m/%d/%y|%m-%d-%y|%y/%m/%d|%y-%m-%d
%d %b %Y|%d-%b-%Y|%d-%b-%y|%b %d, %Y
"""
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
FORMATS = [date + clock for date in re.split(r"[|\n]", DATES.strip()) for clock in CLOCKS]

# How times begin, in ISO 8601 and the other formats: trying all of them takes 0.1 s a column.
LIKE_TIME = re.compile(r"\d{1,4}([-/ ]|\.\d{1,2}\.)|\d{8}T|[^\W\d]{3,}\.? \d")
FIRST_CELLS = 64  # a format that reads none of these cells is not tried on the others
SECONDS = pa.timestamp("s")
ISO_TYPES = (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64())
WHOLE = re.compile(r"-?(\d{1,18}|[1-8]\d{18})")


# --- the style of a CSV file, detected in its first rows


def read_sample(path: Path, encoding: str) -> str:
    """Return the first complete lines of a file. Raises LookupError for an unknown encoding.

    Invalid characters are replaced here, because reading the table reports them later.
    """
    with pa.input_stream(str(path)) as file:  # decompresses `.gz` files
        content = file.read(SAMPLE_BYTES)
    text = content.decode(encoding, "replace")
    if len(content) == SAMPLE_BYTES:
        text = text.rpartition("\n")[0]
    return text.removeprefix("\ufeff")


def guess_delimiter(text: str, expected: str) -> str:
    """Return the mark that splits the header into the most cells; of equals, first `expected`."""

    def count_cells(mark: str) -> int:
        rows = csv.reader(io.StringIO(text.lstrip(), ""), delimiter=mark)
        return len(next(rows, []))

    return max((expected, *DELIMITERS), key=count_cells)


def guess_decimal(text: str, delimiter: str, expected: str) -> str:
    """Return a point if a number has one, else a comma if a number has one, else `expected`.

    Numbers like `1,234` are ambiguous, because the comma may separate thousands.
    """
    rows = csv.reader(io.StringIO(text, ""), delimiter=delimiter)
    cells = [cell.strip() for row in islice(rows, SAMPLE_ROWS) for cell in row]
    if any(POINT_NUMBER.fullmatch(cell) for cell in cells):
        return "."
    with_comma = filter(COMMA_NUMBER.fullmatch, cells)
    return expected if all(map(THOUSANDS.fullmatch, with_comma)) else ","


# --- times


def best_formats(cells: pa.Array, formats: list[str]) -> list[str]:
    """Return the formats that read the most cells (distinct texts), and at least half of them."""
    first = cells[:FIRST_CELLS]
    unread = {}  # number of cells, by format
    for time_format in formats:
        if read_texts(first, time_format).null_count < len(first):
            unread[time_format] = read_texts(cells, time_format).null_count
        if unread.get(ISO) == 0:
            break
    fewest = min(unread.values(), default=len(cells))
    if 2 * fewest > len(cells):
        return []
    return [time_format for time_format, count in unread.items() if count == fewest]


def choose_format(cells: pa.Array, formats: list[str], where: str) -> str:
    """Return the format that reads the most cells, or `ISO` if no format fits.

    Raises `UserError` if two formats fit equally well and read a cell as different days.
    """
    best = best_formats(cells, formats) or [ISO]
    if ISO in best:
        return best[0]
    first = read_texts(cells, best[0])
    for time_format in best[1:]:
        other = read_texts(cells, time_format)
        place = pc.index(pc.not_equal(first, other), True).as_py()
        if place >= 0:
            days = [str(read[place].cast(SECONDS).cast(pa.date32())) for read in (first, other)]
            remedy = f"add --time-format '{best[0]}' or --time-format '{time_format}'"
            raise UserError(f"'{cells[place]}' may be {' or '.join(days)}", where, remedy)
    return best[0]


def guess_unit(cells: pa.Array) -> str:
    """Return the unit or format of whole numbers, by their size; `ISO` if the cells are others."""
    try:
        numbers = cells.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return ISO
    if not len(numbers):
        return ISO
    low = int(numbers.min())
    high = int(numbers.max())
    if low in YEARS and high in YEARS:
        return "%Y"
    months = numbers % 100
    if low // 100 in YEARS and high // 100 in YEARS and months.min() >= 1 and months.max() <= 12:
        return "%Y%m"
    largest = max(-low, high)
    return next((unit for unit, second in UNITS.items() if largest < LATEST * second), "ns")


def to_seconds(column: pa.ChunkedArray, time_format: str) -> pa.ChunkedArray:
    """Return int64 seconds since 1970, or whole numbers; null for missing and invalid cells."""
    if pa.types.is_string(column.type):
        column = read_texts(column, time_format)
    if pa.types.is_integer(column.type) and time_format in UNITS:
        column = column.cast(pa.timestamp(time_format))
    if pa.types.is_temporal(column.type):
        column = column.cast(SECONDS, safe=False)
    return column.cast(pa.int64(), safe=False)


def read_texts(texts: Any, time_format: str) -> pa.ChunkedArray:
    """Return times or whole numbers, with null for texts that do not have the format."""
    if time_format == ISO:
        for kind in ISO_TYPES:
            with suppress(pa.ArrowInvalid):
                return texts.cast(kind)
    if time_format in UNITS:
        with suppress(pa.ArrowInvalid):
            return texts.cast(pa.int64()).cast(pa.timestamp(time_format))
    # Arrow's strptime accepts 31.02. as 2 March, and reads 24 as the year 24.
    cells = [seconds_of(cell, time_format) for cell in texts.to_pylist()]
    return pa.chunked_array([cells], pa.int64())


def seconds_of(cell: str | None, time_format: str) -> int | None:
    """Return seconds since 1970 or a whole number, or None for a missing or unreadable cell."""
    if cell is None:
        return None
    is_whole = WHOLE.fullmatch(cell)
    if is_whole and (time_format == ISO or time_format in UNITS):
        return int(cell) // UNITS.get(time_format, 1)
    try:
        time = (
            datetime.fromisoformat(cell)
            if time_format == ISO
            else datetime.strptime(cell, time_format)
        )
    except (ValueError, re.error):  # a format with a part twice is no regular expression
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp())
