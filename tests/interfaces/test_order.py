"""Which sample comes when, as a pure function: what must hold for any size, batch size, rank,
seed."""

import itertools
import tracemalloc

import numpy as np
import pytest
from fakes import ORDERS, engine, kinds, settings
from hypothesis import assume, example, given, strategies
from hypothesis import settings as hypothesis_settings

quickly = hypothesis_settings(max_examples=40, deadline=None, derandomize=True, database=None)
epochs = strategies.integers(0, 5)
SIMPLE = {
    "kind": "full",
    "length": 20,
    "batch_size": 2,
    "rank": 0,
    "world": 1,
    "train": True,
    "seed": 0,
    "fraction": 1.0,
    "evaluation_fraction": 1.0,
    "block": 8192,
    "stride": 5,
}


@strategies.composite
def orders(draw, kinds=ORDERS, train=None):
    """Arguments of an order, for all of its ranks."""
    length = draw(strategies.integers(1, 150))
    lengths = strategies.lists(strategies.integers(0, 30), min_size=length, max_size=length)
    return {
        **SIMPLE,
        "kind": draw(strategies.sampled_from(kinds)),
        "length": length,
        "batch_size": draw(strategies.integers(1, 5)),
        "world": draw(strategies.integers(1, 3)),
        "seed": draw(strategies.integers(0, 2**32 - 1)),
        "train": draw(strategies.booleans()) if train is None else train,
        "fraction": draw(strategies.sampled_from([1.0, 0.5, 0.01])),
        "block": draw(strategies.integers(1, 40)),
        "stride": draw(strategies.integers(1, 24)),  # above B × world, evaluation takes turns
        "lengths": np.array(draw(lengths)),
    }


def make(arguments, **changed):
    chosen = {**SIMPLE, **arguments, **changed}
    lengths = chosen.get("lengths")
    if lengths is None and chosen["kind"] == "bucket":
        lengths = np.arange(chosen["length"]) % 37
    own_orders = kinds(chosen["stride"], lengths)
    order = own_orders.get(chosen["kind"], engine("loading.order").Order)
    given_settings = settings(
        chosen["seed"],
        order=chosen["kind"],
        shuffle_block=chosen["block"],
        batch_size=chosen["batch_size"],
        fraction=chosen["fraction"],
    )
    place = [chosen["rank"], chosen["world"], chosen["train"], chosen["evaluation_fraction"]]
    return order(chosen["length"], given_settings, *place)


def ranks(arguments):
    return [make(arguments, rank=rank) for rank in range(arguments["world"])]


def whole_epoch(order, epoch):
    """(batches, B) indices of an epoch."""
    return order.indices(epoch, 0, len(order))


def of_all_ranks(arguments, epoch):
    """(batches, B × world) indices of an epoch."""
    return np.concatenate([whole_epoch(order, epoch) for order in ranks(arguments)], 1)


def samples_of(indices):
    """The samples, without padding."""
    return indices[indices >= 0].tolist()


def chosen_from(order):
    """The samples that an epoch chooses from."""
    return order.sample(np.arange(order.count)).tolist()


@given(orders(), epochs)
@quickly
def test_an_epoch_has_each_sample_once(arguments, epoch):
    """Training has those of the fraction, evaluation all; lanes skip the samples in between."""
    indices = of_all_ranks(arguments, epoch)
    assert indices.min() >= -1
    samples = sorted(samples_of(indices))
    assert len(set(samples)) == len(samples)
    possible = chosen_from(make(arguments))
    if not arguments["train"]:
        assert samples == list(range(arguments["length"]))
        if arguments["kind"] not in ("lanes", "bucket"):
            assert samples_of(indices) == samples, "in the order of time"
    elif arguments["kind"] != "lanes":
        assert samples == possible
        assert (indices < 0).sum() < indices.shape[1], "less than a batch is padding"
    else:
        assert set(samples) <= set(possible)
        assert len(samples) == max(len(possible) // arguments["stride"], 1)


@given(orders(train=True), epochs, strategies.integers(1, 4))
@example(SIMPLE | {"length": 9}, 0, 1)
@example(SIMPLE | {"length": 1}, 0, 1)
@example(SIMPLE | {"kind": "bucket", "length": 21, "lengths": np.arange(21)}, 0, 1)
@quickly
def test_a_step_has_a_fraction_of_the_samples_of_a_complete_one(arguments, epoch, accumulation):
    """All ranks agree on it. The only step of an epoch is complete, however few samples it has."""
    indices = of_all_ranks(arguments, epoch)
    for first in range(0, len(indices), accumulation):
        last = min(first + accumulation, len(indices))
        expected = 1.0
        if len(indices) > accumulation:
            expected = (indices[first:last] >= 0).sum() / (accumulation * indices.shape[1])
        for order in ranks(arguments):
            assert order.step_fraction(epoch, first, last, accumulation) == expected


@given(orders(train=False), epochs, strategies.sampled_from([0.5, 0.1, 0.01]))
@quickly
def test_an_evaluation_of_a_fraction_has_the_same_samples_each_time(arguments, epoch, fraction):
    """They are evenly spaced; lanes take the newest ones, which are neighbours."""
    length = arguments["length"]
    count = max(1, round(length * fraction))
    indices = of_all_ranks(arguments | {"evaluation_fraction": fraction}, epoch)
    expected = [place * length // count for place in range(count)]
    if arguments["kind"] == "lanes":
        expected = list(range(length - count, length))
    assert sorted(samples_of(indices)) == expected


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("length", "limit"), [(3, 256), (256, 256), (257, 512), (2099, 4096)])
def test_a_batch_is_at_most_padded_to_twice_the_samples(kind, train, length, limit):
    """Batches of up to 256 stay as they are; others are the same ones on one rank and on four."""
    arguments = SIMPLE | {"kind": kind, "length": length, "train": train, "stride": 1}
    assert make(arguments, batch_size=256).batch_size == 256
    if kind == "lanes" and not train:
        limit = 256  # one lane at a time
    for size in (300, 100_000_000):
        assert make(arguments, batch_size=size).batch_size == min(size, limit)
        on_four = make(arguments, batch_size=size, world=4)
        assert on_four.batch_size == min(size, limit // 4)


@given(orders(), epochs)
@quickly
def test_any_number_of_ranks_makes_the_same_batches(arguments, epoch):
    alone = make(arguments, world=1, batch_size=arguments["batch_size"] * arguments["world"])
    np.testing.assert_array_equal(of_all_ranks(arguments, epoch), whole_epoch(alone, epoch))


@given(orders(), strategies.permutations(range(4)))
@quickly
def test_what_was_asked_before_changes_nothing(arguments, turns):
    """An order keeps no state that shows, and draws from no global generator."""
    global_state = np.random.get_state()[1].tolist()
    order = make(arguments)
    for epoch in turns:
        expected = whole_epoch(make(arguments), epoch)
        np.testing.assert_array_equal(whole_epoch(order, epoch), expected)
    assert np.random.get_state()[1].tolist() == global_state


@given(orders(), epochs, strategies.integers(0, 200), strategies.integers(0, 9))
@quickly
def test_an_epoch_begins_anywhere(arguments, epoch, first, count):
    """A part of it is what it is in the whole, however much is computed at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine("loading.order"), "TOGETHER", 8)
        for order in ranks(arguments):
            whole = whole_epoch(order, epoch)
            first %= len(order) + 1
            stretch = order.indices(epoch, first, first + count)
            np.testing.assert_array_equal(stretch, whole[first : first + count])
            batches = [indices.tolist() for indices in order.batches(epoch, first)]
            assert batches == whole[first:].tolist()


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "time"])
def test_seed_and_epoch_change_a_shuffled_order(kind):
    sequences = []
    for seed, epoch in itertools.product((1, 2), (0, 1)):
        order = make(SIMPLE, kind=kind, length=500, block=50, stride=100, seed=seed)
        indices = whole_epoch(order, epoch)
        assert indices.tolist() not in sequences
        sequences.append(indices.tolist())


# --- large data


def test_auto_is_full_or_block_by_the_number_of_samples_alone():
    limit = engine("loading.order").LARGEST_FULL
    assert make(SIMPLE, kind="auto", length=limit).kind == "full"
    assert make(SIMPLE, kind="auto", length=limit + 1, fraction=0.01).kind == "block"


@pytest.mark.parametrize("kind", ["auto", "time", "lanes"])
@pytest.mark.parametrize("train", [True, False])
def test_a_billion_samples_take_little_memory(kind, train):
    tracemalloc.start()
    try:
        order = make(SIMPLE, kind=kind, length=10**9, batch_size=256, stride=1, train=train)
        for epoch, start in ((0, 0), (7, len(order) // 2), (7, len(order) - 1)):
            indices = next(order.batches(epoch, start))
            assert indices.shape == (256,)
            assert indices.max() < 10**9
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


# --- blocks, lanes, buckets


@given(orders(kinds=("block",), train=True), epochs)
@quickly
def test_all_samples_of_a_block_come_before_the_next_block(arguments, epoch):
    indices = of_all_ranks(arguments, epoch)
    place = {sample: place for place, sample in enumerate(chosen_from(make(arguments)))}
    blocks = [place[sample] // arguments["block"] for sample in samples_of(indices)]
    changes = sum(left != right for left, right in itertools.pairwise(blocks))
    assert changes == len(set(blocks)) - 1


def test_each_block_has_a_shuffle_of_its_own():
    order = make(SIMPLE, kind="block", length=20 * 64, batch_size=64, block=64)
    indices = np.concatenate([whole_epoch(order, epoch) for epoch in (0, 1)])
    assert len({tuple(batch % 64) for batch in indices}) == 40


@given(orders(kinds=("lanes",)), epochs)
@example(SIMPLE | {"kind": "lanes", "train": False}, 0)
@quickly
def test_a_lane_continues_in_time_from_where_it_begins(arguments, epoch):
    """A lane begins once; then the sample `stride` later follows in the same row of the batch, also
    if the rows were padding or another lane before."""
    stride = arguments["stride"]
    indices = of_all_ranks(arguments, epoch)
    is_carried = (indices[:-1] >= 0) & (indices[1:] == indices[:-1] + stride)
    num_begins = (indices >= 0).sum() - is_carried.sum()
    count = make(arguments).count
    lanes = min(stride, count)
    if arguments["train"]:
        lanes = min(indices.shape[1], max(count // stride, 1))
    assert num_begins == lanes


@given(orders(kinds=("bucket",)), epochs)
@quickly
def test_buckets_are_cut_from_sorted_lengths(arguments, epoch):
    """In a pool, batches overlap in length by no more than their borders: the least padding."""
    slots = arguments["batch_size"] * arguments["world"]
    assume(arguments["length"] <= engine("loading.buckets", workload="seq2seq").BATCHES * slots)
    indices = of_all_ranks(arguments, epoch)
    ranges = []
    for batch in indices:
        lengths = arguments["lengths"][batch[batch >= 0]]
        ranges.append((lengths.min(), lengths.max()))
    for (_, longest), (shortest, _) in itertools.pairwise(sorted(ranges)):
        assert longest <= shortest


# The first indices of an epoch. A change of them changes how a run resumes: raise RULE with it.
RULES = {
    3: {
        "auto": [847, 351, 181, 818, 644, 192],
        "time": [0, 1, 2, 3, 4, 5],
        "block": [701, 653, 683, 640, 652, 662],
        "full": [847, 351, 181, 818, 644, 192],
        "lanes": [100, 550, 109, 559, 118, 568],
        "bucket": [28, 398, 857, 858, 43, 191],
        "random_start": [847, 351, 181, 818, 644, 192],
    }
}


@pytest.mark.parametrize("kind", ORDERS)
def test_the_rule_is_that_of_its_number(kind):
    chosen = {"length": 1000, "seed": 7, "block": 64, "stride": 9, "fraction": 0.9}
    indices = make(SIMPLE, kind=kind, **chosen).indices(2, 0, 3)
    assert indices.ravel().tolist() == RULES[engine("loading.order").RULE][kind]
