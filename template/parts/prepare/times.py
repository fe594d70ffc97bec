"""Find the format of a column of times, and read it.

A format is `ISO`, a unit of whole numbers since 1970, or a text for strptime.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError

ISO = "ISO 8601 (2024-01-31 16:00:00)"
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # how many of them are a second
LATEST = 10**10  # seconds, in the year 2286: larger numbers count a shorter unit
# In dates with points, the day comes first.
DATES = """
%Y-%m-%d|%Y/%m/%d|%Y.%m.%d|%d.%m.%Y|%d/%m/%Y|%d-%m-%Y|%d.%m.%y|%d/%m/%y|%d-%m-%y
%m/%d/%Y|%m-%d-%Y|%m/%d/%y|%m-%d-%y|%y/%m/%d|%y-%m-%d
%d %b %Y|%d-%b-%Y|%d-%b-%y|%b %d, %Y
"""
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
FORMATS = [date + clock for date in re.split(r"[|\n]", DATES.strip()) for clock in CLOCKS]

# What Arrow reads. Its strptime is not used: it accepts 31.02. as 2 March, and 24 as the year 24.
KINDS = {
    ISO: [pa.timestamp("us"), pa.timestamp("us", "UTC")],
    **{unit: [pa.int64()] for unit in UNITS},
}

MOST_CELLS = 256  # spread over a block, decide on the format
LIKE_TIME = re.compile(r"\d\W|\W\d")  # trying all formats on a column of names takes 0.1 s


def find_format(cells: pa.Array, where: str, given: str | None = None) -> str:
    """Return the format that reads the most of the cells; empty if none reads half.

    given: the only format to try. Raises `UserError`, with `where`, if two formats fit equally well
    and read a cell differently.
    """
    cells = cells.drop_null()
    cells = cells[:: max(len(cells) // MOST_CELLS, 1)]
    formats = [given] if given else [ISO, *FORMATS]
    if not given:
        num_others = to_seconds(cells, ISO).null_count
        numbers = to_seconds(cells, "s").drop_null().to_numpy()
        are_numbers = 2 * len(numbers) > len(cells)
        # Numbers like 20240131 are dates.
        if num_others == 0 or (are_numbers and 2 * num_others < len(cells)):
            return ISO
        if are_numbers:
            largest = np.abs(numbers).max()
            return next((unit for unit in UNITS if largest < LATEST * UNITS[unit]), "ns")

    fewest = len(cells) // 2
    best: dict[str, pa.Array] = {}
    if any(map(LIKE_TIME.search, cells.to_pylist())):
        for time_format in formats:
            seconds = to_seconds(cells, time_format)
            if seconds.null_count < fewest:
                fewest = seconds.null_count
                best.clear()
            if seconds.null_count == fewest:
                best[time_format] = seconds
    chosen = next(iter(best), "")
    for other in best:
        place = pc.index(pc.not_equal(best[chosen], best[other]), True).as_py()
        if place >= 0:
            what = f"'{cells[place]}' can be read in two ways"
            remedy = f"add --time-format '{chosen}' or --time-format '{other}'"
            raise UserError(what, where, remedy)
    return chosen


def to_seconds(cells: pa.Array, time_format: str) -> pa.Array:
    """Return int64 seconds since 1970, or whole numbers; null for missing and invalid cells.

    cells: times, or texts that have the format.
    """
    kinds = KINDS.get(time_format, []) if pa.types.is_string(cells.type) else []
    for kind in kinds:
        with suppress(pa.ArrowInvalid):
            cells = cells.cast(kind)
            break
    if pa.types.is_string(cells.type):
        return pa.array([seconds_of(cell, time_format) for cell in cells.to_pylist()], pa.int64())
    if pa.types.is_integer(cells.type):
        return pc.divide(cells, UNITS[time_format])
    return cells.cast(pa.timestamp("s"), safe=False).cast(pa.int64())


def seconds_of(cell: str | None, time_format: str) -> int | None:
    """Return seconds since 1970 or a whole number, or None for a missing or unreadable cell."""
    if cell is None:
        return None
    try:
        if time_format in UNITS:
            return int(np.int64(cell)) // UNITS[time_format]
        is_iso = time_format == ISO
        time = datetime.fromisoformat(cell) if is_iso else datetime.strptime(cell, time_format)
    except (ValueError, OverflowError, re.error):  # a part twice is no regular expression
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp())
