"""The order `block` for samples of many series: a block is made of many small pieces."""

from __future__ import annotations

import numpy as np

from .order import Order, permutation

PIECES = 32  # in a block


class Interleaved(Order):
    """Fills each block with `PIECES` random pieces of the samples.

    Series next to each other would fill a block otherwise, and their samples whole batches.
    """

    def _shuffle(self, epoch: int, turns: np.ndarray) -> np.ndarray:
        positions = super()._shuffle(epoch, turns)
        if self.kind != "block":
            return positions
        size = max(self.block // PIECES, 1)
        pieces = permutation(self.count // size, self.seed, epoch)
        pieces = np.append(pieces, len(pieces))  # the last piece, if it is smaller, stays there
        numbers, offsets = np.divmod(positions, size)
        shuffled: np.ndarray = pieces[numbers] * size + offsets
        return shuffled
