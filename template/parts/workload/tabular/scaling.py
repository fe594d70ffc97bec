"""The scale of each column, learnt in blocks of rows; and values standardised and stored as halves.

Without pyarrow, which reads tables (`tables.py`): a training starts without loading it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .engine.errors import UserError

# Sums are taken over blocks, so that results do not depend on how a file is cut.
BLOCK_ROWS = 65_536
# Rows that are put together or written at a time: they stay in the processor's cache.
PIECE_ROWS = 16_384
SIDE_BY_SIDE = 64  # rows, see `_side_by_side`


class Scaler:
    """Mean, spread and range by column of rows that come in blocks; NaN is missing.

    Merges the sums of blocks as in Chan et al. 1983.
    """

    def __init__(self, columns: int):
        self.rows = 0
        self.count = np.zeros(columns)
        self.mean = np.zeros(columns)
        self.squares = np.zeros(columns)
        self.low = np.full(columns, np.inf)
        self.high = np.full(columns, -np.inf)

    def add(self, values: np.ndarray) -> None:
        """values (n, columns)."""
        gaps = np.isnan(values)
        has_gaps = gaps.any()
        known = np.full(values.shape[1], len(values))
        low = values
        high = values
        values = values.astype(np.float64, "C")
        if has_gaps:
            known = (~gaps).sum(0)
            low = np.where(gaps, np.inf, low)
            high = np.where(gaps, -np.inf, high)
            values[gaps] = 0

        # The same sum as `values.sum(0)`, faster; of a single column not the same.
        total = np.einsum("nc->c", values) if values.shape[1] > 1 else values.sum(0)
        mean = total / np.maximum(known, 1)

        wide, last_rows = _side_by_side(values)
        wide -= np.tile(mean, SIDE_BY_SIDE)
        last_rows -= mean
        if has_gaps:
            values[gaps] = 0
        self._merge(known, mean, np.einsum("nc,nc->c", values, values))
        self.rows += len(values)
        self.low = np.minimum(self.low, _extreme(np.minimum, low, np.inf))
        self.high = np.maximum(self.high, _extreme(np.maximum, high, -np.inf))

    def _merge(self, known: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> None:
        """Add a block's count of values, mean and sum of squares, (columns,) each."""
        share = known / np.maximum(self.count + known, 1)
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.count * share
        self.mean = self.mean + apart * share
        self.count = self.count + known

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation; of a constant column its value, and 1."""
        spread = np.sqrt(self.squares / np.maximum(self.count, 1))
        is_constant = self.low == self.high
        is_tiny = spread < np.finfo(np.float32).tiny
        std = np.where(is_constant | is_tiny, 1.0, spread)
        mean = np.where(is_constant, self.low, self.mean)
        return mean, std

    def columns(self, names: list[str]) -> list[tuple[str, ...]]:
        """What `splits.conclude` prints of them."""
        missing = 1 - self.count / max(self.rows, 1)
        lines: list[tuple[str, ...]] = []
        for place, name in enumerate(names):
            low = self.low[place]
            high = self.high[place]
            kind = "constant" if low == high else "number"
            lines.append((name, kind, f"{low:.6g}", f"{high:.6g}", f"{missing[place]:.1%}"))
        return lines


def _side_by_side(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (n, columns) with 64 rows side by side, and the last rows, which make no 64.

    numpy is slow on rows of a few numbers.
    """
    num_wide = len(values) // SIDE_BY_SIDE
    border = SIDE_BY_SIDE * num_wide
    wide = values[:border].reshape(num_wide, SIDE_BY_SIDE * values.shape[1])
    return wide, values[border:]


def _extreme(which: np.ufunc, values: np.ndarray, least: float) -> np.ndarray:
    """(columns,) of values (n, columns)."""
    wide, last_rows = _side_by_side(values)
    extremes = which.reduce(wide, 0, initial=least)
    extremes = extremes.reshape(SIDE_BY_SIDE, values.shape[1])
    return which.reduce(np.concatenate([extremes, last_rows]), 0)


def halves(
    values: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    dtype: str,
    where: Callable[[int, int], str],
) -> tuple[np.ndarray, float]:
    """Values as they are stored, half numbers standardised; and what that costs.

    The cost is a sum of squares, in standard deviations. where: the name of a place, for an error.
    """
    if dtype == "float32":
        return values, 0.0
    import torch

    standardised = torch.from_numpy((values - mean) / std)
    rounded = standardised.to(getattr(torch, dtype))
    beyond = rounded.isinf()
    if beyond.any():
        row, column = beyond.nonzero()[0].tolist()
        remedy = "leave --dtype out, or use bfloat16"
        raise UserError(f"a value is too large for {dtype}", where(row, column), remedy)
    error = float((rounded.double() - standardised).square().nansum())
    stored = rounded.view(torch.int16).numpy()
    return stored.view("float16" if dtype == "float16" else "uint16"), error
