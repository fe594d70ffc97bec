"""Compute the scale of each column, block by block.

This module does not import pyarrow, which reads tables (`tables.py`), so that training starts
without loading it.
"""

from __future__ import annotations

import numpy as np

from .splits import Lines

# Sums are over blocks of this size, so that results do not depend on how a file is divided.
BLOCK_ROWS = 65_536


class Scaler:
    """Mean, standard deviation and range of each column, over blocks of rows; NaN is missing.

    The sums of blocks are merged as in Chan et al. 1983.
    """

    def __init__(self, columns: int):
        self.rows = 0
        self.count = np.zeros(columns)
        self.mean = np.zeros(columns)
        self.squares = np.zeros(columns)
        self.low = np.full(columns, np.inf)
        self.high = np.full(columns, -np.inf)

    def add(self, values: np.ndarray) -> None:
        """Add a block of values (n, columns)."""
        by_column = np.array(values.T, np.float64, order="C")  # numpy sums along memory fast
        self.rows += len(values)
        self.low = np.fmin(self.low, np.fmin.reduce(by_column, 1, initial=np.inf))
        self.high = np.fmax(self.high, np.fmax.reduce(by_column, 1, initial=-np.inf))

        is_missing = np.isnan(by_column)
        known = len(values) - is_missing.sum(1)
        by_column[is_missing] = 0
        mean = by_column.sum(1) / np.maximum(known, 1)
        by_column -= mean[:, None]
        by_column[is_missing] = 0
        squares = np.square(by_column).sum(1)

        # Merge the block with those before it.
        fraction = known / np.maximum(self.count + known, 1)
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.count * fraction
        self.mean = self.mean + apart * fraction
        self.count = self.count + known

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation; for a constant column, its value and 1."""
        spread = np.sqrt(self.squares / np.maximum(self.count, 1))
        is_constant = self.low == self.high
        is_tiny = spread < np.finfo(np.float32).tiny
        std = np.where(is_constant | is_tiny, 1.0, spread)
        mean = np.where(is_constant, self.low, self.mean)
        return mean, std

    def columns(self, names: list[str]) -> Lines:
        """Return the lines that `splits.print_summary` prints for these columns."""
        missing = 1 - self.count / self.rows
        lines: Lines = []
        for name, low, high, fraction in zip(names, self.low, self.high, missing, strict=True):
            kind = "constant" if low == high else "number"
            lines.append((name, kind, f"{low:.6g}", f"{high:.6g}", f"{fraction:.1%}"))
        return lines
