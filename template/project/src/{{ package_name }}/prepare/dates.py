"""Read dates, and turn them into numbers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np

from ..engine.errors import UserError

PARTS = ("year", "month", "weekday", "elapsed days")  # a Monday is 0; days since 1970
ISO = "ISO 8601"
FORMATS = (
    *(ISO, "%d.%m.%Y", "%d.%m.%y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y"),
    *("%m/%d/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d-%b-%Y", "%b %d, %Y"),
)


def date_parts(cells: Iterable[str], date_format: str) -> np.ndarray:
    """Return `PARTS` of each cell (cells, 4) float64; infinity if it is no date in this format."""
    rows = []
    for cell in cells:
        parts = [np.inf] * len(PARTS)
        with suppress(ValueError, OverflowError):
            if date_format == ISO:
                time = datetime.fromisoformat(cell)
            else:
                time = datetime.strptime(cell, date_format)
            time = time.replace(tzinfo=time.tzinfo or UTC)
            parts = [time.year, time.month, time.weekday(), time.timestamp() / 86_400]
        rows.append(parts)
    return np.array(rows, float).reshape(-1, len(PARTS))


def fitting_formats(cells: Iterable[str], formats: Iterable[str] = FORMATS) -> list[str]:
    """Return the formats that fit all cells: several if days may be months."""
    return [known for known in formats if np.isfinite(date_parts(cells, known)).all()]


def have_format(cells: list[str], given: str, are_numbers: bool) -> bool:
    """Return whether cells are dates in the given format; numbers such as 20240131 have its width.

    So 45 is no clock in the format %H%M.
    """
    if not given or not cells or not fitting_formats(cells, [given]):
        return False
    width = len(datetime(2000, 1, 1).strftime(given))
    return not are_numbers or {*map(len, cells)} == {width}


def to_times(cells: list[str], given: str | None) -> np.ndarray:
    """Return a number for each cell, which is a number or a date. Raises `UserError` for others.

    given: the format of dates, if it is known; or the unit of numbers, which keeps their order.
    """
    if "%" not in (given or ""):
        with suppress(ValueError):
            return np.array(cells, float)
    formats = fitting_formats(cells, [given] if given else FORMATS)
    if len(formats) != 1:
        what = f"the format of times such as '{cells[0]}' is not clear"
        raise UserError(what, "--time-column", "add --time-format, such as %d/%m/%Y")
    return date_parts(cells, formats[0])[:, -1]
