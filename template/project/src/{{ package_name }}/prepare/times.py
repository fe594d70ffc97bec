"""Read a column of times.

A format is ISO 8601, a unit of numbers since 1970, or a text for strptime. It is never guessed:
01/02/2024 is a day in January or in February.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .tables import RowBlock

ISO = "ISO 8601 (2024-01-31 16:00:00)"
OFFSET = "ISO 8601 with an offset (2024-01-31 16:00:00+01:00)"
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # how many of them are a second
YEAR_10_000 = 253_402_300_800  # in seconds since 1970; other units have larger numbers

# Arrow's strptime is not used: it accepts 31.02. as 2 March, and 24 as the year 24.
TYPES = {ISO: pa.timestamp("us"), OFFSET: pa.timestamp("us", "UTC")}


def read_dates(block: RowBlock, name: str, remedy: str) -> pa.Array:
    """Return the times of a column. If they have offsets or units, their type has a time zone.

    Raises `UserError` for a cell that is not a time in the format of `--time-format`. Without that
    flag, all times of a table have an offset if its first one has.
    """
    column = block.column(name)
    source = block.source
    found = OFFSET if read_time(str(column[:1].cast("string")[0]), OFFSET) else ISO
    time_format = source.style["time_format"] or source.flags.setdefault("iso", found)
    if time_format in UNITS:
        seconds = np.floor(block.parse(name) / UNITS[time_format])
        is_time = np.abs(seconds) < YEAR_10_000
        dates = np.where(is_time, seconds, 0).astype("M8[s]")
        times = pa.array(dates, pa.timestamp("s", "UTC"), mask=~is_time)
    else:
        times = parse_times(column, time_format)
    row = pc.index(times.is_null(), True).as_py()
    if row >= 0:
        cell = column[row].as_py() or ""
        raise block.error(f"'{cell}' is not a time in the format {time_format}", row, name, remedy)
    return times


def parse_times(cells: pa.Array, time_format: str) -> pa.Array:
    """Return times; null for missing and invalid cells.

    cells: times, or texts that have the format.
    """
    if not pa.types.is_string(cells.type):
        has_offset = getattr(cells.type, "tz", None) is not None
        is_wrong = time_format in TYPES and has_offset != (time_format == OFFSET)
        return pa.nulls(len(cells)) if is_wrong else cells
    with suppress(pa.ArrowInvalid, KeyError):
        return cells.cast(TYPES[time_format])
    times = [read_time(cell, time_format) for cell in cells.to_pylist()]
    return pa.array(times)  # of any offsets: their type has the first one


def read_time(cell: str | None, time_format: str) -> datetime | None:
    """Return the time in a cell, or None for a missing or unreadable cell."""
    try:  # a missing cell is a TypeError
        if time_format not in TYPES:
            return datetime.strptime(cell, time_format)  # type: ignore[arg-type]
        time = datetime.fromisoformat(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, re.error):
        return None  # `re.error` is raised for a format that has a part twice
    return time if bool(time.tzinfo) == (time_format == OFFSET) else None
