"""Find the format of a column of times, and read it.

A format is `ISO`, a unit of whole numbers since 1970, or a text for strptime.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .tables import Block

ISO = "ISO 8601 (2024-01-31 16:00:00)"
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # how many of them are a second
# In dates with points, the day comes first.
DATES = """\
%Y-%m-%d|%Y/%m/%d|%Y.%m.%d|%d.%m.%Y|%d/%m/%Y|%d-%m-%Y|%d.%m.%y|%d/%m/%y|%d-%m-%y|\
%m/%d/%Y|%m-%d-%Y|%m/%d/%y|%m-%d-%y|%y/%m/%d|%y-%m-%d|\
%d %b %Y|%d-%b-%Y|%d-%b-%y|%b %d, %Y"""
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"]
FORMATS = [ISO, *(date + clock for date in DATES.split("|") for clock in CLOCKS)]
MOST_CELLS = 64  # spread over a block, decide on the format

# Casts of Arrow, one after the other, each if it is possible. Its strptime is not used: it accepts
# 31.02. as 2 March, and 24 as the year 24.
CASTS = {
    ISO: [pa.timestamp("us"), pa.timestamp("us", "UTC")],
    **{unit: [pa.int64(), pa.timestamp(unit)] for unit in UNITS},
}


def block_times(block: Block, name: str) -> np.ndarray:
    """Return the times of a column (rows,) datetime64[s], with NaT for missing cells.

    The first block decides the format of a column. Raises `UserError` for a cell that is not a
    time, and for times that can be read in two ways.
    """
    column = block.column(name)
    formats = block.source.style["time_formats"]
    time_format = block.source.flags.get("time_format") or formats.get(name)
    if not time_format:
        where = f"{block.path}, column '{name}'"
        time_format = find_format(column, where)
        if time_format != ISO:
            print(f"note: {where} has times in the format '{time_format}'")
    formats[name] = time_format

    times = read_times(column, time_format)
    row = pc.index(pc.and_(times.is_null(), column.is_valid()), True).as_py()
    if row >= 0:
        what = f"'{column[row]}' is not a time in the format {time_format}"
        raise block.error(what, row, name, "fix it, or see --time-format")
    return times.to_numpy(zero_copy_only=False)


def find_format(cells: pa.Array, where: str) -> str:
    """Return the format that reads the most of the cells; `ISO` if none reads half.

    Raises `UserError`, with `where`, if two formats fit equally well and read a cell differently.
    """
    cells = cells.drop_null()
    cells = cells[:: len(cells) // MOST_CELLS + 1]
    if read_times(cells, ISO).null_count == 0:
        return ISO
    readings = {time_format: read_times(cells, time_format) for time_format in FORMATS}
    chosen = min(FORMATS, key=lambda time_format: readings[time_format].null_count)
    fewest = readings[chosen].null_count
    if 2 * fewest < len(cells):
        for other, times in readings.items():
            if times.null_count == fewest and not times.equals(readings[chosen]):
                what = "the times can be read in two ways"
                remedy = f"add --time-format '{chosen}' or --time-format '{other}'"
                raise UserError(what, where, remedy)
        return chosen

    numbers = [int(text) for text in cells.to_pylist() if text.isdecimal()]
    if 2 * len(numbers) > len(cells):
        # Seconds up to the year 2286; larger numbers count a shorter unit.
        return next((unit for unit in UNITS if max(numbers) < 10**10 * UNITS[unit]), "ns")
    return ISO


def read_times(cells: pa.Array, time_format: str) -> pa.Array:
    """Return times to the second, in UTC; null for missing and invalid cells.

    cells: times, or texts that have the format.
    """
    for kind in CASTS.get(time_format, []):
        with suppress(pa.ArrowInvalid):
            cells = cells.cast(kind)
    if pa.types.is_string(cells.type):
        times = [read_time(cell, time_format) for cell in cells.to_pylist()]
        return pa.array(times, pa.timestamp("s"))  # in UTC, if a time has an offset
    return cells.cast(pa.timestamp("s"), safe=False)


def read_time(cell: Any, time_format: str) -> datetime | None:
    """Return the time in a cell, or None for a missing or unreadable cell."""
    try:
        if time_format in UNITS:
            return datetime.fromtimestamp(int(cell) // UNITS[time_format], UTC)
        if time_format == ISO:
            return datetime.fromisoformat(cell)
        return datetime.strptime(cell, time_format)
    except (TypeError, ValueError, OverflowError, OSError, re.error):
        return None  # `re.error` is raised for a format that has a part twice
