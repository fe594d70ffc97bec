"""The order of `data.balance: sampling`: each class is drawn about equally often."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import Order


class Balanced(Order):
    """Draws as many rows as an epoch has, each by the inverse frequency of its class.

    The same row may be drawn again. The draws are a pure function of seed and epoch.
    """

    def __init__(self, targets: np.ndarray, *order: Any, **part: Any):
        """targets: the classes (N,) of the samples."""
        super().__init__(*order, **part)
        self.kind = "balanced"
        targets = targets[self.sample(np.arange(self.count))]
        chances = 1 / np.bincount(targets)[targets]
        self.chances = chances / chances.sum()

    def arrange(self, epoch: int) -> np.ndarray:
        """Return the samples of an epoch (count,)."""
        random = np.random.RandomState([self.seed, epoch])  # its numbers are frozen
        return random.choice(self.count, self.count, p=self.chances)
