"""Local times of a time zone: read in UTC, and found again in predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .tables import RowBlock

LOCAL = pa.timestamp("s")


def check_zone(name: str) -> None:
    """Raise `UserError` if there is no time zone of this name."""
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("s", name)))
    except pa.ArrowInvalid as error:
        remedy = "use a name such as Europe/Berlin; a system without any needs its package tzdata"
        raise UserError(f"no time zone '{name}'", "--timezone", remedy) from error


def to_utc(block: RowBlock, name: str, local: np.ndarray, series: np.ndarray | None) -> np.ndarray:
    """Return seconds since 1970 (rows,) int64 for the local times of a column, also as seconds.

    A time that clocks repeat in autumn is the second one if it is not later than the row before in
    its series. series: the number of the series of each row (rows,). Raises `UserError` for a time
    that clocks skip in spring.
    """
    zone = block.source.style["timezone"]
    early = from_local(local, zone, "earliest")
    late = from_local(local, zone, "latest")
    is_skipped = late - early == 1
    if is_skipped.any():
        row = int(is_skipped.argmax())
        what = f"'{block.column(name)[row]}' is a time that clocks skip in {zone}"
        raise block.error(what, row, name, "fix it, or check --timezone")

    # The last time of those that clocks repeat, by series, also of the blocks before.
    last_of = block.source.flags.setdefault("repeated", {})
    for row in np.flatnonzero(late > early).tolist():
        number = 0 if series is None else int(series[row])
        if early[row] <= last_of.get(number, early[row] - 1):
            early[row] = late[row]
        last_of[number] = early[row]
    return early


def from_local(local: np.ndarray, zone: str, which: Any) -> np.ndarray:
    """Return seconds since 1970 (rows,) for local times (rows,), also as seconds.

    which: `earliest` or `latest` of the times that clocks repeat. Of a time that they skip, these
    are the last second before and the first one after.
    """
    times = pc.assume_timezone(pa.array(local, LOCAL), zone, ambiguous=which, nonexistent=which)
    return np.array(times.cast(pa.int64()))


def to_local(times: np.ndarray, zone: str) -> np.ndarray:
    """Return local clocks (rows,) int64 at seconds since 1970."""
    local = pc.local_timestamp(pa.array(times, pa.timestamp("s", zone)))
    return np.array(local.cast(pa.int64()))
