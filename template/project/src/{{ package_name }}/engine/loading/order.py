"""The order of samples: a pure function of (seed, epoch, rank, world, lengths).

A loader has no state to save, because the position in an epoch is the number of the batch. Every
loader, number of workers and framework sees the same batches. `B` is the batch size of one rank.

An epoch is shuffled at its first batch, or when a run resumes: 10⁷ samples take 0.9 s and 80 MB.
With the order `block`, only the blocks are shuffled then, and the samples of a block at its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ..settings import EngineSettings

RULE = 3  # version of the rule from seed and epoch to an order; a run keeps its version
LARGEST_FULL = 1 << 25  # samples: the order `auto` is `full` up to here, and `block` beyond
TOGETHER = 1 << 16  # positions computed at once: little overhead, and they stay in the cache
PADDED_BATCH = 256  # samples: a batch up to this size stays as it is, however few samples there are


def permutation(count: int, *seed: int) -> np.ndarray:
    """Return the numbers below `count`, shuffled.

    NumPy has frozen the numbers of `RandomState`; those of `default_rng` may change.
    """
    return np.random.RandomState(seed).permutation(count)


class Order:
    """Batches of sample indices for one rank; −1 is padding, so that all ranks have full batches.

    `data.order`: `time` as stored; `block` shuffles blocks of `data.shuffle_block` samples and the
    samples in each (reads stay local); `full` and `random_start` shuffle all samples; `auto` is
    `full` or `block`, by the number of samples alone. Evaluation runs in the order of time. Another
    layout of an epoch is a subclass, which a workload names in `Samples.orders`.

    `data.fraction`: the fraction of samples used in training, the same ones in every epoch and run.
    `fraction` is such a fraction for an evaluation.

    A batch is at most twice as large as all samples together: a larger one would be padding.
    """

    by_width = False  # whether the layout of an epoch depends on the number of samples in a batch

    def __init__(
        self,
        length: int,
        settings: EngineSettings,
        rank: int = 0,
        world: int = 1,
        train: bool = True,
        fraction: float = 1.0,
    ):
        data = settings.data
        self.kind = data.order
        if self.kind == "auto":
            self.kind = "full" if length <= LARGEST_FULL else "block"
        self.seed = settings.reproducibility.seed
        self.block = data.shuffle_block
        self.length = length
        self.rank = rank
        self.world = world
        self.train = train
        self.batch_size = data.batch_size
        if train:
            fraction = data.fraction
        elif settings.evaluation.batch_size:
            self.batch_size = settings.evaluation.batch_size
        self.count = min(length, max(1, round(length * fraction)))
        """How many samples an epoch chooses from."""
        self.limit_batch(self.count)
        self.arrangement = lru_cache(maxsize=1)(self.arrange)  # of the current epoch

    def limit_batch(self, most: int) -> None:
        """Reduce the batch size if no batch over all ranks can have more samples than `most`."""
        # A power of two does not depend on the number of processes, so that another number can
        # resume a run. Padding a small batch is cheap, and keeps training and evaluation at one
        # shape.
        limit = max(PADDED_BATCH, 1 << (most - 1).bit_length())
        self.batch_size = min(self.batch_size, -(-limit // self.world))

    @property
    def batch_size_all_ranks(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Number of batches in an epoch, the same for every epoch and rank."""
        return -(-self.count // self.batch_size_all_ranks)

    def describe(self) -> dict[str, str]:
        """Return the order's line in the table at the start of a run."""
        return {"name": "order", "state": self.kind, "why": "data.order"}

    def step_fraction(self, epoch: int, first: int, last: int, accumulation: int) -> float:
        """Return the samples of batches [first, last) as a fraction of those of a complete step.

        A complete step has `accumulation` full batches on all ranks. If the epoch is a single step,
        that step is a complete one.
        """
        if len(self) <= accumulation:
            return 1.0
        size = self.batch_size_all_ranks
        num_samples = min(last * size, self.count) - first * size
        return num_samples / (accumulation * size)

    def sample(self, positions: np.ndarray) -> np.ndarray:
        """Return int64 sample indices at positions in `range(count)`, both ascending.

        A fraction takes evenly spaced samples.
        """
        return positions * self.length // self.count

    def batches(self, epoch: int, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the sample indices (B,) of each batch of an epoch, from `start` on."""
        # Several batches at once, but not the epoch: it may not fit into memory.
        group = max(1, TOGETHER // self.batch_size)
        for first in range(start, len(self), group):
            yield from self.indices(epoch, first, first + group)

    def indices(self, epoch: int, first: int, last: int) -> np.ndarray:
        """Return the sample indices (batches, B) int64 of batches [first, last) of an epoch, or of
        as many of them as there are."""
        rows = np.arange(first, min(last, len(self)))[:, None]
        columns = self.rank * self.batch_size + np.arange(self.batch_size)
        positions = self.positions(epoch, rows, columns)
        return np.where(positions < 0, -1, self.sample(positions))

    def positions(self, epoch: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the positions (rows, columns) in `range(count)`, −1 in padding."""
        positions: np.ndarray = rows * self.batch_size_all_ranks + columns
        positions[positions >= self.count] = -1
        if self.train and self.kind != "time":
            # Padding stays at the end of the epoch. Among the samples, it would make every batch
            # smaller.
            is_sample = positions >= 0
            positions[is_sample] = self._shuffle(epoch, positions[is_sample])
        return positions

    def _shuffle(self, epoch: int, turns: np.ndarray) -> np.ndarray:
        """Map turns in an epoch, (n,) int64, to positions in `range(count)`."""
        shuffled = self.arrangement(epoch)
        # A permutation of 10⁹ samples takes 8 GB, so the order `block` has one of the blocks only,
        # and shuffles the samples of a block at their turn.
        if self.kind != "block":
            positions: np.ndarray = shuffled[turns]
            return positions

        # Only the last block of the data may be smaller.
        sizes = np.minimum(self.block, self.count - shuffled * self.block)
        ends = np.cumsum(sizes)
        place_of_block = np.searchsorted(ends, turns, side="right")
        positions = np.empty_like(turns)
        # Turns that are computed together are in few blocks, so few blocks are shuffled.
        for place in np.unique(place_of_block):
            chosen = place_of_block == place
            block = shuffled[place]
            # The seed has the block's number: each block has an order of its own, and a run that
            # resumes anywhere in the epoch finds the same one.
            inside = permutation(sizes[place], self.seed, epoch, block)
            first = ends[place] - sizes[place]
            positions[chosen] = block * self.block + inside[turns[chosen] - first]
        return positions

    def arrange(self, epoch: int) -> np.ndarray:
        """Return all samples of an epoch in random order, or all blocks with the order `block`."""
        if self.kind == "block":
            return permutation(-(-self.count // self.block), self.seed, epoch)
        return permutation(self.count, self.seed, epoch)
