"""The order `block` for samples of many series: a block is made of many small pieces."""

from __future__ import annotations

import numpy as np

from .order import Order, permutation

PIECES = 32  # in a block


class Interleaved(Order):
    """Cuts the samples into pieces, and makes blocks of `PIECES` random ones.

    Series next to each other would fill a block otherwise, and their samples whole batches.
    """

    @property
    def piece(self) -> int:
        """Samples in a piece."""
        return max(self.block // PIECES, 1)

    def arrange(self, epoch: int) -> np.ndarray:
        if self.kind != "block":
            return super().arrange(epoch)
        return permutation(-(-self.count // self.piece), self.seed, epoch)

    def _shuffle(self, epoch: int, turns: np.ndarray) -> np.ndarray:
        if self.kind != "block":
            return super()._shuffle(epoch, turns)
        pieces = self.arrangement(epoch)
        sizes = np.minimum(self.piece, self.count - pieces * self.piece)  # the last one is smaller
        ends = np.cumsum(sizes)
        starts = ends - sizes
        positions = np.empty_like(turns)
        block_of_turn = np.searchsorted(ends, turns, side="right") // PIECES
        for block in np.unique(block_of_turn):
            chosen = block_of_turn == block
            first = starts[block * PIECES]
            end = ends[min((block + 1) * PIECES, len(ends)) - 1]
            inside = permutation(end - first, self.seed, epoch, block)
            turn = first + inside[turns[chosen] - first]
            place = np.searchsorted(ends, turn, side="right")
            positions[chosen] = pieces[place] * self.piece + turn - starts[place]
        return positions
