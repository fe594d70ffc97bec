"""The order `bucket`: samples of like length in a batch, so that little of it is padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order

BATCHES = 64  # global batches in which samples are sorted by length: random enough, little padding


class Buckets(Order):
    """Sorts pools of `BATCHES` shuffled batches by length, and shuffles the batches; evaluation sorts all.

    lengths: (N,) of the samples.
    """

    by_width = True
    short_last = False

    def __init__(self, *order: Any, lengths: np.ndarray, **part: Any):
        super().__init__(*order, **part)
        self._lengths = lengths[self.sample(np.arange(self.count))]
        self._last: tuple[int, np.ndarray] | None = None  # epoch, (batches, slots)

    def positions(self, epoch: int, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, self._epoch(epoch)
        positions = self._last[1][rows, slots]
        return positions, np.ones(positions.shape, bool)

    def _epoch(self, epoch: int) -> np.ndarray:
        """(batches, slots) int64 positions in `range(count)`, −1 where there is none."""
        filled = np.full(len(self) * self.slots, -1, np.int64)
        if not self.train:
            filled[: self.count] = np.argsort(self._lengths, kind="stable")
            return filled.reshape(-1, self.slots)
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        pool = BATCHES * self.slots
        for start in range(0, self.count, pool):
            part = shuffled[start : start + pool]
            filled[start : start + len(part)] = part[np.argsort(self._lengths[part], kind="stable")]
        batches = filled.reshape(-1, self.slots)
        return np.random.default_rng([self.seed, epoch, 1]).permutation(batches)
