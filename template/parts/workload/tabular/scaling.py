"""The scale of each column, learnt in blocks of rows; and values standardised and stored as halves.

Without pyarrow, which reads tables (`tables.py`): a training starts without loading it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .engine.errors import UserError

BLOCK_ROWS = 65_536  # sums are taken over these, so that results do not hang on how a file is cut
PIECE_ROWS = 16_384  # are put together or written at a time: they stay in the processor's cache


class Scaler:
    """Mean, spread and range by column of rows that come in blocks; NaN is missing (Chan et al. 1983)."""

    def __init__(self, columns: int):
        self.rows, (self.count, self.mean, self.squares) = 0, np.zeros((3, columns))
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, values: np.ndarray) -> None:
        """values (n, columns)."""
        gaps, known = np.isnan(values), len(values)
        some = gaps.any()
        values, low, high = values.astype(np.float64, "C"), values, values
        if some:
            known, low, high = (~gaps).sum(0), np.where(gaps, np.inf, low), np.where(gaps, -np.inf, high)
            values[gaps] = 0
        # The same sum as `values.sum(0)`, faster; of a single column not the same.
        total = np.einsum("nc->c", values) if values.shape[1] > 1 else values.sum(0)
        mean = total / np.maximum(known, 1)
        wide, rest = _beside(values)
        wide -= np.tile(mean, 64)
        rest -= mean
        if some:
            values[gaps] = 0
        share, apart = known / np.maximum(self.count + known, 1), mean - self.mean
        self.squares += np.einsum("nc,nc->c", values, values) + apart**2 * self.count * share
        self.mean, self.count = self.mean + apart * share, self.count + known
        self.rows += len(values)
        self.low = np.minimum(self.low, _extreme(np.minimum, low, np.inf))
        self.high = np.maximum(self.high, _extreme(np.maximum, high, -np.inf))

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation; of a constant column its value, and 1."""
        spread, same = np.sqrt(self.squares / np.maximum(self.count, 1)), self.low == self.high
        std = np.where(same | (spread < np.finfo(np.float32).tiny), 1.0, spread)
        return np.where(same, self.low, self.mean), std

    def columns(self, names: list[str]) -> list[tuple[str, ...]]:
        """What `splits.conclude` prints of them."""
        missing = 1 - self.count / max(self.rows, 1)
        kinds = np.where(self.low == self.high, "constant", "number").tolist()
        cells = zip(names, kinds, self.low.tolist(), self.high.tolist(), missing.tolist(), strict=True)
        return [
            (name, kind, f"{low:.6g}", f"{high:.6g}", f"{gap:.1%}") for name, kind, low, high, gap in cells
        ]


def _beside(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (n, columns) with 64 rows side by side, and the rest: numpy is slow on rows of a few numbers."""
    beside = len(values) // 64
    return values[: 64 * beside].reshape(beside, 64 * values.shape[1]), values[64 * beside :]


def _extreme(which: np.ufunc, values: np.ndarray, least: float) -> np.ndarray:
    """(columns,) of values (n, columns)."""
    wide, rest = _beside(values)
    extremes = which.reduce(wide, 0, initial=least).reshape(64, values.shape[1])
    return which.reduce(np.concatenate([extremes, rest]), 0)


def halves(
    values: np.ndarray, mean: np.ndarray, std: np.ndarray, dtype: str, where: Callable[[int, int], str]
) -> tuple[np.ndarray, float]:
    """Values as they are stored, half numbers standardised; and the sum of squares that this costs, in
    standard deviations. where: the name of a place, for an error."""
    if dtype == "float32":
        return values, 0.0
    import torch

    standardised = torch.from_numpy((values - mean) / std)
    found = standardised.to(getattr(torch, dtype))
    if (beyond := found.isinf()).any():
        at = where(*beyond.nonzero()[0].tolist())
        raise UserError(f"a value is too large for {dtype}", at, "leave --dtype out, or use bfloat16")
    error = float((found.double() - standardised).square().nansum())
    return found.view(torch.int16).numpy().view("float16" if dtype == "float16" else "uint16"), error
