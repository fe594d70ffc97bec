"""What the columns of a table hold, as `prepare` prints it, in memory that does not grow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

HALF = 500  # so many of the smallest, and of the largest, values of a column are kept
NINES = re.compile(r"-99+(\.9+)?|999+(\.9+)?")  # how people often mark a missing number


class Column:
    """The different values of a column, sorted. If there are many, the middle is left out."""

    def __init__(self) -> None:
        self.values: np.ndarray = np.empty(0)
        self.counts: np.ndarray = np.empty(0)  # how often each of them occurs
        self.missing = 0
        self.more = ""
        self.last = np.nan  # the last known value, if missing ones are filled

    def add(self, cells: np.ndarray) -> None:
        """Add cells (rows,), which are NaN if they are missing."""
        known = cells[~np.isnan(cells)]
        self.missing += len(cells) - len(known)
        new, new_counts = np.unique(known, return_counts=True)
        values, places = np.unique(np.append(self.values, new), return_inverse=True)
        counts = np.bincount(places, np.append(self.counts, new_counts))
        if len(values) > 2 * HALF:
            self.more = "+"
            ends = np.r_[:HALF, -HALF:0]
            values = values[ends]
            counts = counts[ends]
        self.values = values
        self.counts = counts

    def marks(self) -> Iterator[tuple[float, float]]:
        """Yield the first and the last value, with its count, if it may mark a missing number.

        It repeats, and is far from all others, measured in the range of those.
        """
        values = self.values.tolist()
        if len(values) < 4:
            return  # such as flags
        spread = values[-2] - values[1]
        for end, next_to_it in ((0, 1), (-1, -2)):
            far = max(10, 4 * HALF / len(values))  # a few numbers may be labels
            if NINES.fullmatch(f"{values[end]:.7g}"):
                far = 0.9
            is_far = abs(values[end] - values[next_to_it]) > far * spread
            if is_far and values[end] and self.counts[end] > 1:
                yield values[end], self.counts[end]


def print_columns(columns: dict[str, Column]) -> None:
    """Print a line for each column, and a note for each value that may mark a missing one."""
    print(f"{'columns:':26}{'min':>12}{'max':>12}{'distinct':>10}{'missing':>10}")
    for name, column in columns.items():
        low = min(column.values, default=np.nan)
        high = max(column.values, default=np.nan)
        distinct = f"{len(column.values):,}{column.more}"
        print(f"  {name:24.24}{low:12.6g}{high:12.6g}{distinct:>10}{column.missing:10,}")
    for name, column in columns.items():
        for value, count in column.marks():
            mark = str(value).removesuffix(".0")
            what = f"column '{name}' has {mark} in {count:,.0f} rows, far from all other values"
            print(f"note: {what}: if it means a missing one, add --missing={mark}")
