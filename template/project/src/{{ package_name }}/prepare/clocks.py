"""Local times and dates: read in UTC, and written in their time zone.

A series keeps its times as seconds since 1970 in UTC. Local times are converted with `--timezone`;
without it, they are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.errors import UserError
from .tables import RowBlock
from .times import read_dates

LOCAL = pa.timestamp("s")


def check_zone(name: str) -> None:
    """Raise `UserError` if there is no time zone of this name."""
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("s", name)))
    except pa.ArrowInvalid as error:
        remedy = "use a name such as Europe/Berlin; a system without any needs its package tzdata"
        raise UserError(f"no time zone '{name}'", "--timezone", remedy) from error


def default_time(block: RowBlock, apart: Iterable[str] = ()) -> str:
    """Return the column that is the time by default: the first one that is not `apart`.

    In a file with types, it is the first column of times, such as an index of pandas.
    """
    dropped = block.source.flags.get("drop", [])
    names = [name for name in block.columns if name not in (*dropped, *apart)]
    times = [name for name in names if pa.types.is_temporal(block.columns[name].type)]
    return [*times, *names, *block.columns][0]


def utc_times(
    block: RowBlock, name: str, remedy: str, series: np.ndarray, repeated: dict[int, int]
) -> np.ndarray:
    """Return the times of a column (rows,) int64, in seconds since 1970.

    Local times become UTC if there is `--timezone`. A time that clocks repeat in autumn is the
    second one if it is not later than the row before in its series. If times have an offset, the
    time zone of the source is UTC by default.

    series: the number of the series of each row (rows,). repeated: for each series, its last time
    of those that clocks repeat; a dict that is empty before the first block. Raises `UserError` for
    a time that clocks skip in spring.
    """
    dates = read_dates(block, name, remedy)
    times = dates.to_numpy(zero_copy_only=False).astype("M8[s]")
    has_offset = getattr(dates.type, "tz", None)
    style = block.source.style
    zone = style["timezone"] or (has_offset and "UTC")
    style["timezone"] = zone
    if zone:
        check_zone(zone)
    if has_offset or not zone:
        return times.astype(np.int64)

    early = from_local(times, zone, "earliest")
    late = from_local(times, zone, "latest")
    is_skipped = late - early == 1
    if is_skipped.any():
        row = int(is_skipped.argmax())
        what = f"'{block.column(name)[row]}' is a time that clocks skip in {zone}"
        raise block.error(what, row, name, "fix it, or check --timezone")
    for row in np.flatnonzero(late > early).tolist():
        if early[row] <= repeated.get(series[row], early[row] - 1):
            early[row] = late[row]
        repeated[series[row]] = early[row]
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


def as_dates(times: np.ndarray, source: dict[str, Any]) -> pa.Array:
    """Return times as dates in the time zone of a store's `source`; row numbers stay numbers."""
    if source.get("time_column") == "none":
        return pa.array(times)
    return pa.array(times, pa.timestamp("s", source.get("timezone")))
