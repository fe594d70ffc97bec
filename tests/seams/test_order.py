"""Which sample when, as a pure function: what must hold for any size, batch size, rank and seed."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from fakes import ORDERS, engine, kinds, settings
from hypothesis import assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some

quickly = hypothesis_settings(max_examples=60, deadline=None, derandomize=True, database=None)
TURNS = {
    "kind": "lanes",
    "length": 20,
    "batch_size": 2,
    "world": 1,
    "seed": 0,
    "train": False,
    "stride": 5,
}
SHUFFLING = [kind for kind in ORDERS if kind != "time"]


@some.composite
def orders(draw: Any, kinds: tuple[str, ...] = ORDERS, train: bool | None = None) -> dict[str, Any]:
    """Arguments of an Order, all its ranks to come."""
    length = draw(some.integers(1, 150))
    return {
        "kind": draw(some.sampled_from(kinds)),
        "length": length,
        "batch_size": draw(some.integers(1, 5)),
        "world": draw(some.integers(1, 3)),
        "seed": draw(some.integers(0, 2**32 - 1)),
        "train": draw(some.booleans()) if train is None else train,
        "fraction": draw(some.sampled_from([1.0, 0.5, 0.01])),
        "block": draw(some.integers(1, 40)),
        "stride": draw(some.integers(1, 24)),  # above B × world, evaluation takes turns
        "lengths": np.array(
            draw(some.lists(some.integers(0, 30), min_size=length, max_size=length))
        ),
    }


def whole_epoch(order: Any, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """(batches, B) numbers and fresh of an epoch."""
    return order.numbers(epoch, 0, len(order))


def chosen_from(order: Any) -> np.ndarray:
    """(count,) the samples that an epoch chooses from."""
    return order.sample(np.arange(order.count))


def make(chosen: dict[str, Any], **changed: Any) -> Any:
    chosen = {"fraction": 1.0, "block": 8192, "stride": 1, "lengths": None} | chosen | changed
    data = {"order": chosen["kind"], "shuffle_block": chosen["block"]}
    data |= {name: chosen[name] for name in ("batch_size", "fraction")}
    named = [
        chosen.get(name, default) for name, default in (("rank", 0), ("world", 1), ("train", True))
    ]
    of_kind = kinds(chosen["stride"], chosen["lengths"]).get(chosen["kind"], engine("order").Order)
    part = {"fraction": chosen["part"]} if "part" in chosen else {}
    return of_kind(chosen["length"], settings(chosen["seed"], **data), *named, **part)


def ranks(chosen: dict[str, Any]) -> list[Any]:
    return [make(chosen, rank=rank) for rank in range(chosen["world"])]


def together(chosen: dict[str, Any], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and fresh (batches, B × world) of all ranks side by side."""
    parts = [whole_epoch(order, epoch) for order in ranks(chosen)]
    return tuple(np.concatenate(each, 1) for each in zip(*parts, strict=True))


@given(orders(), some.integers(0, 5))
@quickly
def test_every_rank_runs_equally_many_full_batches(chosen: dict[str, Any], epoch: int) -> None:
    for order in ranks(chosen):
        numbers, fresh = whole_epoch(order, epoch)
        assert numbers.shape == fresh.shape == (len(order), chosen["batch_size"])
        assert (numbers.dtype, fresh.dtype) == (np.int64, bool)
        assert fresh[numbers < 0].all()
        assert fresh[:1].all(), "nothing precedes an epoch"
    assert len({len(order) for order in ranks(chosen)}) == 1


@given(orders(), some.integers(0, 5))
@quickly
def test_an_epoch_has_each_sample_once(chosen: dict[str, Any], epoch: int) -> None:
    """In training of the fraction, in evaluation of all; lanes step over the samples in between."""
    numbers, _ = together(chosen, epoch)
    assert numbers.min() >= -1
    seen = np.sort(numbers[numbers >= 0])
    assert len(np.unique(seen)) == len(seen)
    part = chosen_from(make(chosen))
    if not chosen["train"]:
        assert seen.tolist() == list(range(chosen["length"]))
    elif chosen["kind"] != "lanes":
        assert seen.tolist() == part.tolist()
        assert (numbers < 0).sum() < numbers.shape[1], "filled up by less than a batch"
    else:
        assert set(seen) <= set(part)
        assert len(seen) == max(len(part) // chosen["stride"], 1)


@given(orders(train=True), some.integers(0, 5), some.integers(1, 4))
@example(TURNS | {"train": True, "stride": 1, "kind": "full", "length": 9}, 0, 1)
@example(TURNS | {"train": True, "stride": 1, "kind": "full", "length": 1}, 0, 1)
@example(TURNS | {"train": True, "kind": "bucket", "length": 21, "lengths": np.arange(21)}, 0, 1)
@quickly
def test_a_step_has_a_share_of_the_samples_of_a_whole_one(
    chosen: dict[str, Any], epoch: int, accumulation: int
) -> None:
    """All ranks know it alike; the only step of an epoch is a whole one, however few samples there are."""
    numbers, _ = together(chosen, epoch)
    for first in range(0, len(numbers), accumulation):
        last = min(first + accumulation, len(numbers))
        wanted = (numbers[first:last] >= 0).sum() / (accumulation * numbers.shape[1])
        wanted = 1.0 if len(numbers) <= accumulation else wanted
        assert {order.share(epoch, first, last, accumulation) for order in ranks(chosen)} == {
            wanted
        }


@given(orders(train=True))
@quickly
def test_fraction_is_a_share_of_the_samples_for_good(chosen: dict[str, Any]) -> None:
    part = chosen_from(make(chosen))
    assert len(part) == max(1, round(chosen["length"] * chosen["fraction"]))
    assert len(np.unique(part)) == len(part)
    assert (np.diff(part) > 0).all()
    assert 0 <= part[0] <= part[-1] < chosen["length"]
    assert chosen_from(make(chosen, seed=chosen["seed"] ^ 1)).tolist() == part.tolist()


LARGE = [300, 1000, 4096, 100_000_000]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("length", "limit"), [(3, 256), (256, 256), (257, 512), (2099, 4096)])
def test_a_batch_is_at_most_padded_to_twice_the_samples(
    kind: str, train: bool, length: int, limit: int
) -> None:
    """Batches of up to 256 stay as they are; others are the same ones on one rank, on two and on four."""
    chosen = TURNS | {"kind": kind, "length": length, "train": train, "stride": 1}
    chosen["lengths"] = np.arange(length)
    for size in (4, 64, 256):
        assert make(chosen, batch_size=size).batch_size == size
    if kind == "lanes" and not train:
        limit = 256  # one lane at a time
    for size in LARGE:
        assert make(chosen, batch_size=size).batch_size == min(size, limit)
        for world in (2, 4):
            parts = {
                order.batch_size for order in ranks(chosen | {"batch_size": size, "world": world})
            }
            assert parts == {min(size, limit // world)}
    numbers, _ = whole_epoch(make(chosen, batch_size=LARGE[-1]), 0)
    assert sorted(numbers[numbers >= 0]) == list(range(length))


@given(orders(train=False), some.integers(0, 5), some.sampled_from([0.5, 0.1, 0.01]))
@quickly
def test_an_evaluation_of_a_fraction_takes_the_same_samples_each_time(
    chosen: dict[str, Any], epoch: int, fraction: float
) -> None:
    """Evenly spaced; of lanes the newest ones, which are neighbours."""
    count = max(1, round(chosen["length"] * fraction))
    numbers, _ = together(chosen | {"part": fraction}, epoch)
    seen = np.sort(numbers[numbers >= 0])
    if chosen["kind"] == "lanes":
        assert seen.tolist() == list(range(chosen["length"] - count, chosen["length"]))
    else:
        assert seen.tolist() == [place * chosen["length"] // count for place in range(count)]
    assert make(chosen, train=True, part=fraction).count == make(chosen, train=True).count


@given(orders(), some.integers(0, 5))
@quickly
def test_the_number_of_ranks_cuts_the_same_batches(chosen: dict[str, Any], epoch: int) -> None:
    alone = make(chosen, world=1, batch_size=chosen["batch_size"] * chosen["world"])
    for parts, whole in zip(together(chosen, epoch), whole_epoch(alone, epoch), strict=True):
        np.testing.assert_array_equal(parts, whole)


@given(orders(), some.permutations(range(4)))
@quickly
def test_pure(chosen: dict[str, Any], turn: list[int]) -> None:
    """No state, whatever was asked before, and no draw from a global generator."""
    before = random.getstate(), np.random.get_state()[1].tolist()
    order = make(chosen)
    first = {epoch: whole_epoch(order, epoch) for epoch in range(4)}
    for epoch in turn:
        for again, was in zip(whole_epoch(make(chosen), epoch), first[epoch], strict=True):
            np.testing.assert_array_equal(again, was)
        for again, was in zip(whole_epoch(order, epoch), first[epoch], strict=True):
            np.testing.assert_array_equal(again, was)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@given(orders(kinds=("time", "block", "full", "random_start"), train=False), some.integers(0, 5))
@quickly
def test_evaluation_runs_in_the_order_of_time(chosen: dict[str, Any], epoch: int) -> None:
    numbers, _ = together(chosen, epoch)
    assert numbers[numbers >= 0].tolist() == list(range(chosen["length"]))


@pytest.mark.parametrize("kind", SHUFFLING)
def test_seed_and_epoch_change_a_shuffled_order(kind: str) -> None:
    chosen = {"kind": kind, "length": 500, "batch_size": 8, "seed": 1, "block": 50, "stride": 16}
    chosen["lengths"] = np.arange(500) % 37
    sequences = [
        whole_epoch(make(chosen, seed=seed), epoch)[0].tolist()
        for seed in (1, 2)
        for epoch in (0, 1)
    ]
    for place, sequence in enumerate(sequences):
        assert sequence not in sequences[:place]


def test_a_full_shuffle_is_uniform() -> None:
    """Each sample stands in each quarter of an epoch equally often: 4 standard deviations."""
    order = make({"kind": "full", "length": 64, "batch_size": 16, "seed": 5})
    epochs = 400
    counts = np.zeros((4, 64))
    for epoch in range(epochs):
        for quarter, batch in enumerate(whole_epoch(order, epoch)[0]):
            counts[quarter, batch] += 1
    assert np.abs(counts - epochs / 4).max() < 4.5 * np.sqrt(epochs * 3 / 16)


@given(orders(kinds=("block",), train=True), some.integers(0, 5))
@quickly
def test_block_reads_stay_local(chosen: dict[str, Any], epoch: int) -> None:
    """All samples of a block come before the next block begins."""
    numbers, _ = together(chosen, epoch)
    part = chosen_from(make(chosen)).tolist()
    blocks = [part.index(number) // chosen["block"] for number in numbers[numbers >= 0].tolist()]
    changes = sum(left != right for left, right in itertools.pairwise(blocks))
    assert changes == len(set(blocks)) - 1


def test_each_block_has_a_shuffle_of_its_own() -> None:
    order = make({"kind": "block", "length": 20 * 64, "batch_size": 64, "seed": 1, "block": 64})
    places = [tuple(numbers % 64) for epoch in (0, 1) for numbers in whole_epoch(order, epoch)[0]]
    assert len(set(places)) == 40


@given(orders(kinds=("lanes",)), some.integers(0, 5))
@example(TURNS, 0)
@quickly
def test_a_lane_goes_on_in_time_and_says_where_it_begins(
    chosen: dict[str, Any], epoch: int
) -> None:
    """Where a state is carried, the sample `stride` later follows in the same slot."""
    numbers, fresh = together(chosen, epoch)
    before, after, carried = numbers[:-1], numbers[1:], ~fresh[1:]
    assert (before[carried] >= 0).all()
    assert (after[carried] - before[carried] == chosen["stride"]).all()
    begun = (fresh & (numbers >= 0)).sum()
    count = len(chosen_from(make(chosen)))
    lanes = min(numbers.shape[1], max(count // chosen["stride"], 1)) if chosen["train"] else None
    assert begun == (lanes if chosen["train"] else min(chosen["stride"], count))


@given(orders(kinds=("lanes",), train=True), some.integers(0, 5))
@quickly
def test_training_lanes_are_stretches_of_like_length(chosen: dict[str, Any], epoch: int) -> None:
    numbers, _ = together(chosen, epoch)
    lanes = [lane[lane >= 0] for lane in numbers.T]
    filled = [lane for lane in lanes if len(lane)]
    for left, right in itertools.pairwise(filled):
        assert left[-1] < right[0]
    assert max(map(len, filled)) - min(map(len, filled)) <= 1


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "lanes"])
def test_without_lanes_no_state_is_carried(kind: str) -> None:
    order = make({"kind": kind, "length": 30, "batch_size": 4, "seed": 1, "lengths": np.arange(30)})
    assert whole_epoch(order, 0)[1].all()


@given(orders(kinds=("bucket",)), some.integers(0, 5))
@quickly
def test_buckets_are_cut_from_sorted_lengths(chosen: dict[str, Any], epoch: int) -> None:
    """Within a pool no two batches overlap in length by more than their borders: the least padding."""
    slots = chosen["batch_size"] * chosen["world"]
    assume(chosen["length"] <= engine("buckets", workload="seq2seq").BATCHES * slots)
    numbers, _ = together(chosen, epoch)
    present = [chosen["lengths"][batch[batch >= 0]] for batch in numbers]
    ranges = sorted((lengths.min(), lengths.max()) for lengths in present if len(lengths))
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(ranges))


SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1023, 1024, 1025, 65_537, 100_003)


@pytest.mark.parametrize("count", SIZES)
def test_a_permutation_is_one_to_one_and_has_an_inverse(count: int) -> None:
    """Also where each place has its own, by its tweak."""
    every = np.arange(count)
    permutation = engine("order").Permutation(count, 3, count)
    for tweak in (None, np.full(count, 7, np.uint32)):
        values = permutation(every, tweak)
        assert sorted(values) == list(every)
        assert permutation(values, tweak, inverse=True).tolist() == every.tolist()


@pytest.mark.parametrize("kind", ORDERS)
def test_no_samples_are_no_batches(kind: str) -> None:
    order = make({"kind": kind, "length": 0, "batch_size": 4, "seed": 1, "lengths": np.arange(0)})
    assert len(order) == 0
    assert [part.shape for part in whole_epoch(order, 0)] == [(0, 4), (0, 4)]


def test_permutations_of_few_are_equally_likely() -> None:
    """All 24 of 4, by chi-square: 23 degrees of freedom, 5 standard deviations."""
    every, draws = np.arange(4), 2400
    found = [tuple(engine("order").Permutation(4, 1, draw)(every)) for draw in range(draws)]
    counts = np.array([found.count(one) for one in itertools.permutations(range(4))])
    assert (np.square(counts - draws / 24) / (draws / 24)).sum() < 23 + 5 * np.sqrt(2 * 23)


@pytest.mark.parametrize("kind", ["full", "random_start"])
@pytest.mark.parametrize("count", [2**16, 2**16 + 1, 100_000])
def test_a_shuffle_looks_like_chance(kind: str, count: int) -> None:
    """Position by value on a grid, by chi-square; and each number has nothing to do with the one before."""
    numbers = whole_epoch(make({"kind": kind, "length": count, "batch_size": 1, "seed": 4}), 3)[
        0
    ].ravel()
    grid = np.zeros((40, 40))
    np.add.at(grid, (np.arange(count) * 40 // count, numbers * 40 // count), 1)
    freedom = 39 * 39
    assert np.square(grid - count / 1600).sum() / (count / 1600) < freedom + 5 * np.sqrt(
        2 * freedom
    )
    for lag in (1, 2, 256):
        assert abs(np.corrcoef(numbers[lag:], numbers[:-lag])[0, 1]) < 5 / np.sqrt(count)


@given(orders(), some.integers(0, 5), some.integers(0, 200), some.integers(0, 9))
@quickly
def test_an_epoch_begins_anywhere(
    chosen: dict[str, Any], epoch: int, first: int, more: int
) -> None:
    """A part of it is what it would be in the whole, however much is computed at once."""
    for order in ranks(chosen):
        whole, first = whole_epoch(order, epoch), first % (len(order) + 1)
        for part, wanted in zip(order.numbers(epoch, first, first + more), whole, strict=True):
            np.testing.assert_array_equal(part, wanted[first : first + more])
        batches = list(order.batches(epoch, first))
        assert len(batches) == len(order) - first
        for number, wanted in enumerate(whole):
            assert [batch[number].tolist() for batch in batches] == wanted[first:].tolist()


def test_more_than_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ORDERS:
        chosen = {
            "kind": kind,
            "length": 999,
            "batch_size": 7,
            "seed": 2,
            "block": 100,
            "stride": 3,
        }
        order = make({**chosen, "lengths": np.arange(999) % 50})
        whole = whole_epoch(order, 1)[0].tolist()
        with monkeypatch.context() as patch:
            patch.setattr(engine("order"), "TOGETHER", 64)
            assert [numbers.tolist() for numbers, _ in order.batches(1)] == whole
            assert whole_epoch(order, 1)[0].tolist() == whole


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "bucket"])
@pytest.mark.parametrize("train", [True, False])
def test_a_billion_samples_take_little_memory(kind: str, train: bool) -> None:
    tracemalloc.start()
    try:
        order = make({"kind": kind, "length": 10**9, "batch_size": 256, "seed": 1, "train": train})
        for epoch, start in ((0, 0), (7, len(order) // 2), (7, len(order) - 1)):
            numbers, _ = next(order.batches(epoch, start))
            assert numbers.shape == (256,)
            assert numbers.max() < 10**9
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


# The first numbers of an epoch. Whoever changes them changes what a run goes on with: raise RULE with them.
RULES = {
    2: {
        "time": [0, 1, 2, 3, 4, 5],
        "block": [408, 406, 380, 422, 360, 418],
        "full": [263, 254, 485, 712, 34, 928],
        "lanes": [102, 552, 111, 561, 120, 570],
        "bucket": [984, 318, 387, 424, 203, 55],
        "random_start": [263, 254, 485, 712, 34, 928],
    }
}


def test_the_rule_is_that_of_its_number() -> None:
    module = engine("order")
    chosen = {"length": 1000, "batch_size": 2, "seed": 7, "block": 64, "stride": 9, "fraction": 0.9}
    for kind, wanted in RULES[module.RULE].items():
        order = make({**chosen, "kind": kind, "lengths": np.arange(1000) % 37})
        assert order.numbers(2, 0, 3)[0].ravel().tolist() == wanted, kind
