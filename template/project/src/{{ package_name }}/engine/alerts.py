"""What a run warns about. Each function returns a text, or None."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Settings

DAY = 24 * 3600.0
MONTH = 30 * DAY  # seconds
YEAR = 365 * DAY


def plain_duration(seconds: float) -> str:
    """A time for a reader, in one unit: `1:02:03`, `12 days`, `3 months`, `5,660 years`."""
    if seconds < 2 * DAY:
        return str(timedelta(seconds=round(seconds)))
    if seconds < 2 * MONTH:
        return f"{seconds / DAY:.0f} days"
    if seconds < 2 * YEAR:
        return f"{seconds / MONTH:.0f} months"
    return f"{seconds / YEAR:,.0f} years"


def long_run(seconds_left: float, settings: Settings) -> str | None:
    """Warn about a run that takes longer than a month."""
    if seconds_left <= MONTH:
        return None
    training = settings.training
    length = f"training.epochs ({training.epochs:,})"
    if training.max_steps:
        length = f"training.max_steps ({training.max_steps:,})"
    left = f"this run takes another {plain_duration(seconds_left)} at this pace"
    return f"{left}: lower {length}, or let `train --minutes N` choose the number of steps"
