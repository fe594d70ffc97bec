"""The order of samples: a pure function of (seed, epoch, rank, world, lengths).

A loader has no state to save: the place in an epoch is the number of the batch, so resuming costs
one call, and every loader, worker count and framework sees the same batches. `B` is the batch size
of one rank.

Only the numbers that are needed are computed, and none is kept: an epoch of 10⁹ samples begins at
any batch in 0.03 s and 5 MB. A number takes 28 ns, in `block` 54 ns; with numpy's `permutation`,
which makes all of them first, 37 ns of 10⁶ and 43 ns of 10⁷ (one core).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

RULE = 2  # of what follows from seed and epoch: a run keeps the one that it began with
TOGETHER = 1 << 16  # positions computed at once: little overhead, and they stay in the cache
PADDED_BATCH = 256  # samples: a batch up to this size stays as it is, however few samples there are


class Permutation:
    """A permutation of `range(count)` made from `seed`, computed only at the places asked for.

    A Feistel network (Luby, Rackoff 1988) over the bits of the largest number: half of them change
    by a hash of the other half, in turns. That is one to one on a power of two below 2 × count; a
    value beyond `count` goes through it again until it is one of them.
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
        """(n,) int64 places to (n,) int64 values, or back.

        tweak: (n,) uint32, a permutation for each.
        """
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
    """Batches of sample numbers for one rank; −1 is padding, so that all ranks have full batches.

    `data.order`: `time` as stored; `block` shuffles blocks of `data.shuffle_block` samples and the
    samples in each (reads stay local); `full` and `random_start` are a uniform permutation.
    Evaluation runs in the order of time. Another layout of an epoch is a subclass, which a workload
    names in `Samples.orders`.

    `data.fraction`: the fraction of samples used in training, the same ones in every epoch and run.
    `fraction` is such a fraction for an evaluation.

    A batch is at most twice as large as all samples together (see `batch_limit`): a larger one would
    be padding.
    """

    by_width = False  # whether the layout of an epoch depends on the number of samples in a batch
    short_last = True  # whether the padded batch is the last one of an epoch

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
        self.kind = data.order
        self.seed = settings.reproducibility.seed
        self.block: int = data.shuffle_block
        self.length = length
        self.rank = rank
        self.world = world
        self.train = train
        if train:
            fraction = data.fraction
        self.count = 0
        """How many samples an epoch chooses from."""
        if length:
            self.count = max(1, round(length * fraction))
        self.batch_size: int = data.batch_size
        if not train and settings.evaluation.batch_size:
            self.batch_size = settings.evaluation.batch_size
        self.limit_batch(self.count)

    def limit_batch(self, most: int) -> None:
        """Make the batch smaller if no batch can have so many samples. most: of a global batch."""
        limit = -(-batch_limit(most) // self.world)
        self.batch_size = min(self.batch_size, limit)

    @property
    def slots(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Number of batches in an epoch, the same for every epoch and rank."""
        return -(-self.count // self.slots)

    def share(self, epoch: int, first: int, last: int, accumulation: int) -> float:
        """Return what fraction of a complete step's samples the batches [first, last) have.

        A complete step has `accumulation` full batches on all ranks. If the epoch is a single step,
        that step is a complete one.
        """
        if len(self) <= accumulation:
            return 1.0
        if self.short_last and last < len(self):
            return 1.0
        rows = np.arange(first, last)[:, None]
        positions, _ = self.positions(epoch, rows, np.arange(self.slots))
        num_samples = float((positions >= 0).sum())
        return num_samples / (accumulation * self.slots)

    def sample(self, positions: np.ndarray) -> np.ndarray:
        """Return int64 sample numbers at positions in `range(count)`, both ascending.

        A fraction takes evenly spaced samples.
        """
        if self.count == self.length:
            return positions
        return positions * self.length // self.count

    def first(self) -> np.ndarray:
        """Return the numbers of the first samples, as many as a batch has."""
        return self.sample(np.arange(min(self.batch_size, self.count)))

    def batches(self, number: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (B,) sample numbers and (B,) fresh of each batch of an epoch, from `start` on."""
        # Several batches at once, but not the epoch: it may not fit into memory.
        group = max(1, TOGETHER // self.batch_size)
        for first in range(start, len(self), group):
            numbers, fresh = self.numbers(number, first, first + group)
            yield from zip(numbers, fresh, strict=True)

    def numbers(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return batches [first, last) of an epoch, or as many of them as there are.

        (batches, B) int64 sample numbers, and (batches, B) bool: whether a row starts without a
        state.
        """
        rows = np.arange(first, min(last, len(self)))[:, None]
        slots = self.rank * self.batch_size + np.arange(self.batch_size)
        positions, fresh = self.positions(epoch, rows, slots)
        numbers = np.where(positions < 0, -1, self.sample(positions))
        return numbers, fresh

    def positions(
        self, epoch: int, rows: np.ndarray, slots: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, slots) int64 in `range(count)`, −1 for padding; and (rows, slots) fresh."""
        positions = rows * self.slots + slots
        positions[positions >= self.count] = -1
        if self.train and self.kind != "time":
            flat = positions.reshape(-1)  # a view
            for start in range(0, len(flat), TOGETHER):
                piece = flat[start : start + TOGETHER]
                is_sample = piece >= 0
                piece[is_sample] = self._shuffled(epoch, piece[is_sample])
        return positions, np.ones(positions.shape, bool)

    def _shuffled(self, epoch: int, turns: np.ndarray) -> np.ndarray:
        """(n,) int64 turns in an epoch to positions in `range(count)`."""
        if self.kind != "block":
            return Permutation(self.count, self.seed, epoch)(turns)

        size = self.block
        last_block = (self.count - 1) // size
        last_size = (self.count - 1) % size + 1
        blocks = Permutation(last_block + 1, self.seed, epoch)

        # As if the last block were as long as the others, wherever it comes.
        last_turn = blocks(np.array([last_block]), inverse=True)[0]
        end = last_turn * size + last_size
        stretched = np.where(turns < end, turns, turns + (size - last_size))
        block, place = np.divmod(stretched, size)
        block = blocks(block)

        tweak = block.astype(np.uint32) * np.uint32(0x9E3779B9)
        for chosen, limit in ((block < last_block, size), (block == last_block, last_size)):
            inside = Permutation(limit, self.seed, epoch, 1)
            place[chosen] = inside(place[chosen], tweak[chosen])
        return block * size + place


def batch_limit(count: int) -> int:
    """Return the largest global batch for so many samples: the next power of two.

    A power of two does not depend on the number of processes, so that another number can resume a
    run. Small batches are never limited: padding them is cheap, and keeps training and evaluation at
    one shape.
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
    """Make the order that `data.order` names: the workload's own, if it has one of that name.

    fraction: of the samples that an evaluation takes; always the same ones.
    """
    own_orders = getattr(samples, "orders", {})
    make: type[Order] = own_orders.get(settings.data.order, Order)
    # An order of your own needs no such argument until somebody asks for a fraction.
    arguments: dict[str, Any] = {}
    if fraction != 1:
        arguments["fraction"] = fraction
    return make(len(samples), settings, rank, world, train, **arguments)
