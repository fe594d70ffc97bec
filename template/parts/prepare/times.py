"""Read a column of times.

A format is `ISO`, a unit of whole numbers since 1970, or a text for strptime. It is never guessed:
01/02/2024 is a day in January or in February.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .tables import Block

ISO = "ISO 8601 (2024-01-31 16:00:00)"
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # how many of them are a second

# Casts of Arrow, one after the other, each if it is possible. Its strptime is not used: it accepts
# 31.02. as 2 March, and 24 as the year 24.
CASTS = {
    ISO: [pa.timestamp("us"), pa.timestamp("us", "UTC")],
    **{unit: [pa.int64(), pa.timestamp(unit)] for unit in UNITS},
}


def block_times(block: Block, name: str, remedy: str) -> np.ndarray:
    """Return the times of a column (rows,) datetime64[s].

    Raises `UserError` for a cell that is not a time in the format of `--time-format`.
    """
    column = block.column(name)
    time_format = block.source.style["time_format"] or ISO
    times = read_times(column, time_format)
    row = pc.index(times.is_null(), True).as_py()
    if row >= 0:
        cell = column[row].as_py() or ""
        raise block.error(f"'{cell}' is not a time in the format {time_format}", row, name, remedy)
    return times.to_numpy(zero_copy_only=False)


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
