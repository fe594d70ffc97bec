"""Which sample when: a pure function of (seed, epoch, rank, world, lengths).

There is no loader state to save. Position is the batch number, so resuming costs one call, and
every loader, worker count and framework sees the same batches. `B` is the batch size of one rank.

A shuffle is computed where it is asked for and held nowhere: an epoch of 10⁹ samples begins anywhere in
0.03 s and 5 MB. A number takes 28 ns, in `block` 54 ns; from numpy's `permutation`, which makes all of them
first, 37 ns of 10⁶ and 43 ns of 10⁷ (one core).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

RULE = 2  # of what follows from seed and epoch: a run keeps to the one that it began with
TOGETHER = 1 << 16  # positions computed at once: numpy's overhead is small, and the arrays stay in the cache
PADDED_BATCH = 256  # samples: a batch up to this size stays as it is, however few samples there are


class Permutation:
    """A permutation of `range(count)` that `seed` decides, computed at the places that are asked for.

    A Feistel network (Luby, Rackoff 1988) over the bits of the largest number: half of them change by a hash
    of the other half, in turns. That is one to one on a power of two below 2 × count; a value beyond `count`
    goes through it again until it is one of them.
    """

    def __init__(self, count: int, *seed: int):
        self.count = count
        bits = max(count - 1, 1).bit_length()
        self.low, self.high = bits - bits // 2, bits // 2
        # Few bits need many rounds until all permutations are equally likely.
        self.keys = np.random.SeedSequence(seed).generate_state(max(6, 64 // bits))

    def __call__(
        self, places: np.ndarray, tweak: np.ndarray | None = None, inverse: bool = False
    ) -> np.ndarray:
        """(n,) int64 places to (n,) int64 values, or back. tweak: (n,) uint32, a permutation for each."""
        values = self._network(places, tweak, inverse)
        outside = np.flatnonzero(values >= self.count)
        while outside.size:
            again = None if tweak is None else tweak[outside]
            values[outside] = walked = self._network(values[outside], again, inverse)
            outside = outside[walked >= self.count]
        return values

    def _network(self, values: np.ndarray, tweak: np.ndarray | None, inverse: bool) -> np.ndarray:
        high = (values >> self.low).astype(np.uint32)
        low = (values & ((1 << self.low) - 1)).astype(np.uint32)
        for number in reversed(range(len(self.keys))) if inverse else range(len(self.keys)):
            key = self.keys[number] if tweak is None else self.keys[number] + tweak
            if number % 2 == 0:
                low ^= _hash(high, key, self.low)
            elif self.high:
                high ^= _hash(low, key, self.high)
        return (high.astype(np.int64) << self.low) | low


def _hash(half: np.ndarray, key: np.ndarray, bits: int) -> np.ndarray:
    """(n,) uint32 below 2 ** bits, with the multipliers of lowbias32 (Wellons 2018)."""
    mixed: np.ndarray = half + key
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed >>= np.uint32(32 - bits)
    return mixed


class Order:
    """Batches of sample numbers for one rank; −1 fills up, so that all ranks run equally many full batches.

    `data.order`: `time` as stored; `block` shuffles blocks of `data.shuffle_block` samples and inside them
    (reads stay local); `full` and `random_start` a uniform permutation. Evaluation runs in time order. What
    lays an epoch out in another way is a subclass, which a workload names in `Samples.orders`.

    `data.fraction`: share of the samples that training sees, the same ones in every epoch and run. `fraction`
    is such a share for an evaluation.

    A batch is at most twice as large as all samples together (see `batch_limit`): one that is asked to be
    larger would be padding.
    """

    by_width = False  # whether the layout of an epoch depends on how many samples a batch has
    short_last = True  # whether the batch that is filled up is an epoch's last one

    def __init__(
        self,
        length: int,
        settings: Any,
        rank: int = 0,
        world: int = 1,
        train: bool = True,
        fraction: float = 1.0,
    ):
        data = settings.data
        self.kind, self.seed = data.order, settings.reproducibility.seed
        self.block: int = data.shuffle_block
        self.length, self.rank, self.world, self.train = length, rank, world, train
        share = data.fraction if train else fraction
        self.count: int = max(1, round(length * share)) if length else 0
        """How many samples an epoch chooses from."""
        self.batch_size: int = data.batch_size if train else settings.evaluation.batch_size or data.batch_size
        self.limit_batch(self.count)

    def limit_batch(self, most: int) -> None:
        """Make the batch smaller where no batch can have so many samples. most: of a global batch."""
        self.batch_size = min(self.batch_size, -(-batch_limit(most) // self.world))

    @property
    def slots(self) -> int:
        """Rows of a global batch."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Batches an epoch, the same for every epoch and rank."""
        return -(-self.count // self.slots)

    def share(self, epoch: int, first: int, last: int, accumulation: int) -> float:
        """Samples of a step over batches [first, last), as a share of what `accumulation` full ones have.

        Of all ranks. 1 where an epoch is a single step: then none has more.
        """
        if len(self) <= accumulation or (self.short_last and last < len(self)):
            return 1.0
        positions, _ = self.positions(epoch, np.arange(first, last)[:, None], np.arange(self.slots))
        return float((positions >= 0).sum()) / (accumulation * self.slots)

    def sample(self, positions: np.ndarray) -> np.ndarray:
        """int64 sample numbers at positions in `range(count)`, ascending; of a fraction evenly spaced."""
        return positions if self.count == self.length else positions * self.length // self.count

    def first(self) -> np.ndarray:
        """The numbers of as many samples as a batch has, at most."""
        return self.sample(np.arange(min(self.batch_size, self.count)))

    def batches(self, number: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(B,) sample numbers and (B,) fresh of each batch of an epoch from `start` on, in little memory."""
        some = max(1, TOGETHER // self.batch_size)
        for first in range(start, len(self), some):
            yield from zip(*self.numbers(number, first, first + some), strict=True)

    def numbers(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Batches [first, last) of an epoch, or as many of them as there are.

        (batches, B) int64 sample numbers, and (batches, B) bool: whether a row starts without a state.
        """
        rows = np.arange(first, min(last, len(self)))[:, None]
        slots = self.rank * self.batch_size + np.arange(self.batch_size)
        positions, fresh = self.positions(epoch, rows, slots)
        return np.where(positions < 0, -1, self.sample(positions)), fresh

    def positions(self, epoch: int, rows: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, slots) int64 in `range(count)`, −1 where there is none; and (rows, slots) fresh."""
        positions = rows * self.slots + slots
        positions[positions >= self.count] = -1
        flat = positions.reshape(-1)  # a view
        for start in range(0, len(flat) if self.train and self.kind != "time" else 0, TOGETHER):
            part = flat[start : start + TOGETHER]
            part[part >= 0] = self._shuffled(epoch, part[part >= 0])
        return positions, np.ones(positions.shape, bool)

    def _shuffled(self, epoch: int, turns: np.ndarray) -> np.ndarray:
        """(n,) int64 turns in an epoch to positions in `range(count)`."""
        if self.kind != "block":
            return Permutation(self.count, self.seed, epoch)(turns)
        size, last, short = self.block, (self.count - 1) // self.block, (self.count - 1) % self.block + 1
        blocks = Permutation(last + 1, self.seed, epoch)
        # As if the last block were as long as the others, wherever it comes.
        end = blocks(np.array([last]), inverse=True)[0] * size + short
        block, place = np.divmod(np.where(turns < end, turns, turns + (size - short)), size)
        block = blocks(block)
        tweak = block.astype(np.uint32) * np.uint32(0x9E3779B9)
        for chosen, limit in ((block < last, size), (block == last, short)):
            place[chosen] = Permutation(limit, self.seed, epoch, 1)(place[chosen], tweak[chosen])
        return block * size + place


def batch_limit(count: int) -> int:
    """The largest global batch for so many samples: the next power of two.

    A power of two does not depend on the number of processes, so that another number can resume a run. Small
    batches are never limited: padding them is cheap, and keeps training and evaluation at one shape.
    """
    return max(PADDED_BATCH, 1 << max(count - 1, 0).bit_length())


def order_of(
    samples: Any,
    settings: Any,
    rank: int = 0,
    world: int = 1,
    train: bool = True,
    fraction: float = 1.0,
) -> Order:
    """The order that `data.order` names, the workload's own where it has one of that name.

    fraction: of the samples that an evaluation takes; always the same ones.
    """
    make: type[Order] = getattr(samples, "orders", {}).get(settings.data.order, Order)
    # An order of your own needs no such argument until somebody asks for a part.
    part: dict[str, Any] = {} if fraction == 1 else {"fraction": fraction}
    return make(len(samples), settings, rank, world, train, **part)
