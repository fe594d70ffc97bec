"""The order `bucket`: samples of similar length share a batch, so that it needs little padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order, permutation

BATCHES = 64  # batches (over all ranks) that are sorted together: random enough, little padding


class Buckets(Order):
    """Sorts pools of `BATCHES` shuffled batches by length, then shuffles the batches.

    Evaluation sorts all samples. lengths: the lengths of the samples (N,).
    """

    by_width = True

    def __init__(self, *order: Any, lengths: np.ndarray, **part: Any):
        super().__init__(*order, **part)
        self._lengths = lengths[self.sample(np.arange(self.count))]

    def step_fraction(self, epoch: int, first: int, last: int, accumulation: int) -> float:
        if len(self) <= accumulation:
            return 1.0
        batches = self.arrangement(epoch)[first:last]  # the padded one may be any of them
        return float((batches >= 0).sum()) / (accumulation * self.batch_size_all_ranks)

    def positions(self, epoch: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        positions: np.ndarray = self.arrangement(epoch)[rows, columns]
        return positions

    def arrange(self, epoch: int) -> np.ndarray:
        """Return positions in `range(count)`, (batches, columns) int64, with −1 for padding."""
        padded = np.full(len(self) * self.batch_size_all_ranks, -1, np.int64)
        if not self.train:
            # Metrics are sums, so the order of an evaluation is free, and sorting all samples pads
            # least.
            padded[: self.count] = np.argsort(self._lengths, kind="stable")
            return padded.reshape(-1, self.batch_size_all_ranks)

        shuffled = permutation(self.count, self.seed, epoch)
        pool_size = BATCHES * self.batch_size_all_ranks
        for start in range(0, self.count, pool_size):
            pool = shuffled[start : start + pool_size]
            # Only a stable sort has one result: other sorts order samples of the same length
            # differently on other processors.
            by_length = np.argsort(self._lengths[pool], kind="stable")
            padded[start : start + len(pool)] = pool[by_length]

        # The batches of a pool go from short to long; without this shuffle, training would see that
        # over and over.
        batches: np.ndarray = padded.reshape(-1, self.batch_size_all_ranks)
        shuffled_batches: np.ndarray = batches[permutation(len(batches), self.seed, epoch, 1)]
        return shuffled_batches
