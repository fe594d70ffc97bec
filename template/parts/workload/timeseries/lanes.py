"""The order `lanes`: each row of a batch goes through a stretch of time of its own, and its state goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order


class Lanes(Order):
    """Each of the B × world rows has its own stretch of the samples, in steps of `stride`.

    Evaluation visits every sample: `stride` interleaved lanes of them, in turns of B × world. A fraction is
    of the newest samples, as neighbours belong together.
    """

    by_width = True

    def __init__(self, *order: Any, stride: int, **part: Any):
        super().__init__(*order, **part)
        self.stride = max(stride, 1)
        self._steps = max(self.count // self.stride, min(self.count, 1))  # samples of all training lanes
        self.limit_batch(self._steps if self.train else min(self.stride, self.count))
        self._lanes = min(self.slots, self._steps) if self.train else min(self.stride, self.count)

    def __len__(self) -> int:
        return int(self._turns()[-1])

    def sample(self, positions: np.ndarray) -> np.ndarray:
        return positions + (self.length - self.count)

    def _turns(self) -> np.ndarray:
        """(turns + 1,) the batches at which turns begin, and the last one ends; training has one turn."""
        if self.train:
            return np.array([0, -(-self._steps // max(self._lanes, 1))])
        lanes = range(0, self._lanes, self.slots)  # the first one of a turn is the longest
        return np.cumsum([0, *(-(-(self.count - lane) // self.stride) for lane in lanes)])

    def positions(self, epoch: int, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turns = self._turns()
        turn = np.searchsorted(turns, rows, side="right") - 1
        step, lane = rows - turns[turn], turn * self.slots + slots
        if self.train:
            shortest, longer = divmod(self._steps, max(self._lanes, 1))
            random, stride = np.random.default_rng([self.seed, epoch]), self.stride
            offset = int(random.integers(stride)) if self.count >= stride else 0
            positions = offset + stride * (lane * shortest + np.minimum(lane, longer) + step)
            present = step < shortest + (lane < longer)
        else:
            positions = lane + self.stride * step
            present = positions < self.count
        present &= lane < self._lanes
        return np.where(present, positions, -1), (step == 0) | ~present
