"""The order `lanes`: each row of a batch follows its own stretch of time and carries its state."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order


class Lanes(Order):
    """Gives each row of a batch (over all ranks) a stretch of samples, in steps of `stride`.

    Evaluation visits every sample in `stride` interleaved lanes. A turn evaluates as many lanes as
    a batch over all ranks has rows. `data.fraction` takes the newest samples, so that neighbours
    stay together.
    """

    by_width = True

    def __init__(self, *order: Any, stride: int, **part: Any):
        super().__init__(*order, **part)
        self.stride = max(stride, 1)
        # The number of steps of all training lanes together.
        self._steps = max(self.count // self.stride, min(self.count, 1))
        self._lanes = self._steps if self.train else min(self.stride, self.count)
        # A row of a batch is a lane, so further rows would be padding in every batch.
        self.limit_batch(self._lanes)
        if self.train:
            self._lanes = min(self.batch_size_all_ranks, self._steps)

    def __len__(self) -> int:
        return int(self._turns()[-1])

    def step_fraction(self, epoch: int, first: int, last: int, accumulation: int) -> float:
        if len(self) <= accumulation or last < len(self):
            return 1.0
        rows = np.arange(first, last)[:, None]
        positions = self.positions(epoch, rows, np.arange(self.batch_size_all_ranks))
        return float((positions >= 0).sum()) / (accumulation * self.batch_size_all_ranks)

    def sample(self, positions: np.ndarray) -> np.ndarray:
        return positions + (self.length - self.count)

    def _turns(self) -> np.ndarray:
        """Return the first batch of each turn, and the end (turns + 1,); training has one turn."""
        if self.train:
            return np.array([0, -(-self._steps // max(self._lanes, 1))])
        # A turn is as long as its first lane, which is the longest.
        lanes = np.arange(0, self._lanes, self.batch_size_all_ranks)
        steps = -(-(self.count - lanes) // self.stride)
        return np.append(0, np.cumsum(steps))

    def positions(self, epoch: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        turns = self._turns()
        turn = np.searchsorted(turns, rows, side="right") - 1
        step = rows - turns[turn]
        lane = turn * self.batch_size_all_ranks + columns
        if self.train:
            positions, present = self._train_positions(epoch, lane, step)
        else:
            positions = lane + self.stride * step
            present = positions < self.count
        present &= lane < self._lanes
        return np.where(present, positions, -1)

    def _train_positions(
        self, epoch: int, lane: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions, and whether the lane has that step: some have one step more."""
        shortest, longer = divmod(self._steps, max(self._lanes, 1))
        offset = 0
        # Each epoch begins at another row, so that all samples are seen over the epochs, and not
        # only every `stride`-th one.
        if self.count >= self.stride:
            offset = np.random.RandomState([self.seed, epoch]).randint(self.stride)
        before = lane * shortest + np.minimum(lane, longer)  # steps of the lanes before this one
        positions = offset + self.stride * (before + step)
        return positions, step < shortest + (lane < longer)
