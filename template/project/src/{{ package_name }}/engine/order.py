"""Which sample when: a pure function of (seed, epoch, rank, world, lengths).

There is no loader state to save. Position is the batch number, so resuming costs one call, and
every loader, worker count and framework sees the same batches. `B` is the batch size of one rank.
"""

from __future__ import annotations

import numpy as np

RULE = 1  # of what follows from seed and epoch: a run keeps to the one that it began with
KINDS = ("time", "block", "full", "lanes", "bucket", "random_start")
BUCKET_BATCHES = (
    64  # samples are sorted by length within this many global batches: random enough, little padding
)


class Order:
    """Batches of sample numbers for one rank; −1 fills up, so that all ranks run equally many full batches.

    kind: `time` as stored; `block` shuffles blocks of `block` samples and inside them (reads stay
    local); `full` and `random_start` a uniform permutation; `lanes` gives each of the B × world rows
    its own stretch of time in steps of `stride`, so that a state can be carried from batch to batch;
    `bucket` groups samples of like length. Evaluation keeps `lanes` and `bucket`, else runs in time order.

    fraction: share of the samples that training sees, the same ones in every epoch and run.
    """

    def __init__(
        self,
        kind: str,
        length: int,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        train: bool = True,
        fraction: float = 1.0,
        block: int = 8192,
        stride: int = 1,
        lengths: np.ndarray | None = None,
    ):
        self.kind = kind if train or kind in ("lanes", "bucket") else "time"
        self.batch_size, self.rank, self.world, self.train = batch_size, rank, world, train
        self.seed, self.block, self.stride, self.lengths = seed, block, max(stride, 1), lengths
        self.samples = _subset(length, fraction, contiguous=kind == "lanes") if train else np.arange(length)

    @property
    def slots(self) -> int:
        """Rows of a global batch."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Batches an epoch, the same for every epoch and rank."""
        return len(self._lanes(0)[0]) if self.kind == "lanes" else -(-len(self.samples) // self.slots)

    def epoch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(batches, B) int64 sample numbers, and (batches, B) bool: whether a row starts without a state."""
        if self.kind == "lanes":
            numbers, fresh = self._lanes(number)
        else:
            flat = self.samples[self._sequence(np.random.default_rng([self.seed, number]))]
            filled = np.full(len(self) * self.slots, -1, np.int64)
            filled[: len(flat)] = flat
            numbers, fresh = filled.reshape(-1, self.slots), None
            if self.kind == "bucket" and self.train:
                numbers = np.random.default_rng([self.seed, number, 1]).permutation(numbers)
        mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        numbers = numbers[:, mine]
        return numbers, np.ones(numbers.shape, bool) if fresh is None else fresh[:, mine]

    def _sequence(self, random: np.random.Generator) -> np.ndarray:
        """Positions in `samples`, in the order of visit."""
        count = len(self.samples)
        if self.kind == "time":
            return np.arange(count)
        if self.kind == "block":
            borders = np.arange(0, count, self.block)
            blocks = [
                np.arange(start, min(start + self.block, count)) for start in random.permutation(borders)
            ]
            return np.concatenate([random.permutation(block) for block in blocks]) if blocks else np.arange(0)
        if self.kind == "bucket":
            return self._buckets(random)
        return random.permutation(count)

    def _buckets(self, random: np.random.Generator) -> np.ndarray:
        if self.lengths is None:
            raise ValueError("order `bucket` needs Samples.lengths()")
        lengths, count = self.lengths[self.samples], len(self.samples)
        if not self.train:
            return np.argsort(lengths, kind="stable")
        shuffled, pool = random.permutation(count), BUCKET_BATCHES * self.slots
        pools = [shuffled[start : start + pool] for start in range(0, count, pool)]
        return np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in pools])

    def _lanes(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Training: a stretch of time a slot. Evaluation: all samples, as `stride` interleaved lanes."""
        count, stride = len(self.samples), self.stride
        if self.train:
            steps = max(count // stride, 1)
            offset = int(np.random.default_rng([self.seed, epoch]).integers(stride)) if count >= stride else 0
            lanes = np.array_split(offset + stride * np.arange(steps), min(self.slots, steps))
        else:
            lanes = [np.arange(start, count, stride) for start in range(min(stride, count))]
        turns = [lanes[start : start + self.slots] for start in range(0, len(lanes), self.slots)]
        longest = [max(map(len, turn)) for turn in turns]
        numbers = np.full((sum(longest), self.slots), -1, np.int64)
        fresh = np.ones(numbers.shape, bool)
        start = 0
        for turn, length in zip(turns, longest, strict=True):
            for slot, lane in enumerate(turn):
                numbers[start : start + len(lane), slot] = self.samples[lane]
                fresh[start + 1 : start + len(lane), slot] = False
            start += length
        return numbers, fresh


def _subset(length: int, fraction: float, contiguous: bool) -> np.ndarray:
    """The same samples every time: evenly spaced, or the newest where neighbours belong together."""
    count = max(1, round(length * fraction)) if length else 0
    if contiguous:
        return np.arange(length - count, length)
    return np.arange(count) * length // max(count, 1)
