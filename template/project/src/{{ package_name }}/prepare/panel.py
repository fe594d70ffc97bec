"""Many series in one dataset, as the modules that prepare them exchange them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .grid import Grid

CHUNK = 1 << 20  # rows that are moved at once
MOST_TEXTS = 1000  # different ones in a column


@dataclass(frozen=True)
class Roles:
    """Names of columns, and the texts in them. `prepare/roles.py` chooses them."""

    time: str  # or `none`
    series: list[str]
    targets: list[str]
    known: list[str]  # their future is known
    static: list[str]  # the same in all rows of a series
    values: list[str]  # the columns of the array `rows`: targets, known and past ones
    calendar: list[str]  # parts of the time
    texts: dict[str, dict[str, int]] = field(default_factory=dict)  # by column: codes, from 1

    def places(self, names: list[str]) -> list[int]:
        """Return the places of columns in the array `rows`."""
        return [self.values.index(name) for name in names]


@dataclass
class Panel:
    """The rows of all series, one series after the other, each in order of time."""

    roles: Roles
    grid: Grid
    keys: list[str]  # names of the series, sorted
    firsts: np.ndarray  # (S,) rows in which series begin
    ends: np.ndarray  # (S,) the rows after their last targets, from which forecasts start
    breaks: list[int]  # rows after a gap that windows must not cross
    static: np.ndarray  # (S, K)
    values: np.ndarray  # (N, C), memory-mapped
    times: np.ndarray  # (N,) int64, seconds since 1970, or numbers of rows


def chunks(count: int) -> list[slice]:
    """Return slices of so many rows, which are moved at once."""
    return [slice(first, first + CHUNK) for first in range(0, count, CHUNK)]
