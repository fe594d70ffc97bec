"""Compute the scale of each column, block by block.

This module does not import pyarrow, which reads tables (`tables.py`), so that training starts
without loading it.
"""

from __future__ import annotations

import numpy as np

# Sums are over blocks of this size, so that results do not depend on how a file is divided.
BLOCK_ROWS = 65_536
TINY = np.finfo(np.float32).tiny
ROUNDING = 1e-13  # relative; sums of equal float64 numbers may be off by less


class Scaler:
    """Mean and standard deviation of each column, over blocks of rows; NaN is missing.

    The sums of blocks are merged as in Chan et al. 1983.
    """

    def __init__(self, columns: int):
        self.rows = 0
        self.count = np.zeros(columns)
        self.mean = np.zeros(columns)
        self.squares = np.zeros(columns)

    def add(self, values: np.ndarray) -> None:
        """Add a block of values (n, columns)."""
        by_column = np.array(values.T, np.float64, order="C")  # numpy sums along memory fast
        is_missing = np.isnan(by_column)
        known = len(values) - np.count_nonzero(is_missing, 1)
        by_column[is_missing] = 0
        mean = by_column.sum(1) / np.maximum(known, 1)
        by_column -= mean[:, None]
        by_column[is_missing] = 0
        squares = np.square(by_column, out=by_column).sum(1)

        # Merge the block with those before it.
        fraction = known / np.maximum(self.count + known, 1)
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.count * fraction
        self.mean = self.mean + apart * fraction
        self.count = self.count + known
        self.rows += len(values)

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation; 0 for a column whose values differ by rounding."""
        std = np.sqrt(self.squares / np.maximum(self.count, 1))
        return self.mean, np.where(std > TINY + ROUNDING * np.abs(self.mean), std, 0)
