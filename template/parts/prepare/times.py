"""Find the format of a column of times, and read it."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError

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
WHOLE = re.compile(r"-?(\d{1,18}|[1-8]\d{18})")


def best_formats(cells: pa.Array, given: str | None) -> dict[str, Any]:
    """Return what each of the best formats makes of the distinct cells, as `to_seconds` does.

    They read the most cells, and at least half of them. given: `--time-format`.
    """
    formats = [given, ISO] if given else ["%Y%m%d", ISO, *FORMATS]
    first = cells[:FIRST_CELLS]
    read = {}
    for time_format in formats:
        if to_seconds(first, time_format).null_count < len(first):
            read[time_format] = to_seconds(cells, time_format)
            if time_format == ISO and not read[ISO].null_count:
                break
    fewest = min((seconds.null_count for seconds in read.values()), default=len(cells))
    if 2 * fewest > len(cells):
        return {}
    return {name: seconds for name, seconds in read.items() if seconds.null_count == fewest}


def choose_format(cells: pa.Array, given: str | None, where: str) -> str:
    """Return the format that reads the most cells, or `ISO` if no format fits.

    Raises `UserError` if two formats fit equally well and read a cell as different days.
    """
    best = best_formats(cells, given)
    if not best:
        return ISO
    chosen, *others = best
    for other in others:
        differs = pc.not_equal(best[chosen], best[other])
        place = pc.index(differs, True).as_py()
        if ISO not in best and place >= 0:
            seconds = [best[name][place].as_py() for name in (chosen, other)]
            days = [str(np.datetime64(second, "s"))[:10] for second in seconds]
            remedy = f"add --time-format '{chosen}' or --time-format '{other}'"
            raise UserError(f"'{cells[place]}' may be {' or '.join(days)}", where, remedy)
    return chosen


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


def to_seconds(column: Any, time_format: str) -> pa.ChunkedArray:
    """Return int64 seconds since 1970, or whole numbers; null for missing and invalid cells.

    column: times, or texts that have the format.
    """
    kinds = [pa.int64()] if time_format in UNITS else []
    if time_format == ISO:
        kinds = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64()]
    for kind in kinds:
        with suppress(pa.ArrowInvalid):
            column = column.cast(kind)
            break
    if pa.types.is_string(column.type):
        # Arrow's strptime accepts 31.02. as 2 March, and reads 24 as the year 24.
        seconds = [seconds_of(cell, time_format) for cell in column.to_pylist()]
        return pa.chunked_array([seconds], pa.int64())
    if pa.types.is_integer(column.type):
        return pc.divide(column, UNITS.get(time_format, 1))
    return column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())


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
