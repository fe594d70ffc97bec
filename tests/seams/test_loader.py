"""Every loader gives the same batches: the right rows, of the right samples, in the order's sequence."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import (
    ARRAYS,
    DTYPES,
    LOADERS,
    ORDERS,
    Samples,
    as_stored,
    content,
    engine,
    epoch_of,
    frozen,
    make_loader,
    settings,
    shapes,
    write_store,
)
from running import until

every_loader = pytest.mark.parametrize("loader", LOADERS)
every_order = pytest.mark.parametrize("order", ORDERS)
# Settings that may change a run's speed and memory, never its batches.
MACHINE = (
    {"num_workers": 2, "prefetch_factor": 1},
    {"num_workers": 2, "persistent_workers": False, "pin_memory": False},
    {"num_workers": "auto"},
    {"chunk_size_gb": 1e-7},
    {"resident": True},
    {"resident": False},
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory):
    """loader, dtype → a store, written once."""
    stores: dict[tuple[str, str], Any] = {}

    def store(loader: str, dtype: str = "float32") -> Any:
        key = (loader, dtype)
        if key not in stores:
            stores[key] = write_store(tmp_path_factory.mktemp("store") / "data", loader, dtype)
        return stores[key]

    return store


@pytest.fixture
def make(opened):
    """make(loader, samples, train=True, **data settings) → a Loader, closed when the test ends."""
    made = []

    def loader(
        name: str,
        samples: Samples,
        *,
        dtype: str = "float32",
        rank: int = 0,
        world: int = 1,
        train: bool = True,
        **chosen: Any,
    ) -> Any:
        made.append(
            make_loader(
                name, samples, opened(name, dtype), settings(**chosen), rank, world, train=train
            )
        )
        return made[-1]

    yield loader
    for each in made:
        each.close()


def sequence(loader: Any, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Sample numbers of each batch."""
    return [batch["index"].tolist() for batch in loader.epoch(epoch, start)]


def numbers(loader: Any, epoch: int = 0) -> list[int]:
    """Samples of an epoch without what fills it up."""
    return [number for batch in sequence(loader, epoch) for number in batch if number >= 0]


@every_loader
@every_order
@pytest.mark.parametrize("shape", shapes())
@pytest.mark.parametrize("train", [True, False], ids=["train", "evaluation"])
def test_batches_hold_the_rows_of_their_samples(
    loader: str, order: str, shape: str, train: bool, make
) -> None:
    """Values, zeros behind lengths, absent spans, index and fresh, against a direct reading."""
    samples, epoch = shapes()[shape], 2
    made = make(loader, samples, order=order, train=train)
    wanted, fresh = made.order.numbers(epoch, 0, len(made))
    assert len(made) == len(wanted) > 1
    count = 0
    for position, batch in enumerate(made.epoch(epoch)):
        expected = samples.expected(wanted[position], epoch)
        if shape == "host":
            noise = (wanted[position] * 7 + epoch * 3) % 11
            expected["wide"] = expected["wide"] + noise[:, None, None]
        assert batch["index"].tolist() == wanted[position].tolist()
        assert batch["fresh"].tolist() == fresh[position].tolist()
        assert batch["present"].tolist() == (wanted[position] >= 0).tolist()
        assert batch.keys() == {*expected, "index", "present", "fresh"}
        for name, values in expected.items():
            np.testing.assert_array_equal(
                batch[name].numpy(), values, err_msg=f"{name} of batch {position}"
            )
        count += 1
    assert count == len(made)


@every_loader
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["windows", "days"])
def test_rows_keep_their_stored_dtype(loader: str, dtype: str, shape: str, make) -> None:
    samples = shapes()[shape]
    made = make(loader, samples, dtype=dtype, order="time")
    for position, batch in enumerate(made.epoch(0)):
        expected = samples.expected(made.order.numbers(0, position, position + 1)[0][0], 0)
        for name in samples.tables:
            assert batch[name].dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(batch[name].double().numpy(), expected[name])


@every_loader
@pytest.mark.parametrize(
    ("order", "shape"),
    [
        *((order, "host") for order in ORDERS),
        ("bucket", "ragged"),
        ("random_start", "shifted"),
        ("lanes", "days"),
    ],
)
def test_machine_settings_and_the_choice_of_loader_change_no_batch(
    loader: str, order: str, shape: str, make
) -> None:
    samples = shapes()[shape]
    reference = make(LOADERS[0], samples, order=order)
    wanted = [epoch_of(reference, number) for number in (0, 1)]
    without = engine("loader", loader=loader).Loader.WITHOUT_EFFECT
    for changed in ({}, *MACHINE):
        if changed and changed.keys() <= set(without):
            continue
        made = make(loader, samples, order=order, **changed)
        assert [epoch_of(made, number) for number in (0, 1)] == wanted, changed
        made.close()


@every_loader
@every_order
@pytest.mark.parametrize("workers", [0, 2])
def test_any_position_can_be_resumed(loader: str, order: str, workers: int, make) -> None:
    made = make(loader, shapes()["ragged"], order=order, num_workers=workers)
    whole = epoch_of(made, 1)
    for start in (0, 1, 7, len(made) - 1, len(made)):
        assert epoch_of(made, 1, start) == whole[start:]
    resumed = make(
        loader, shapes()["ragged"], order=order, num_workers=workers
    )  # by another process
    assert epoch_of(resumed, 1, 2) == whole[2:]


@every_loader
@every_order
@pytest.mark.parametrize("train", [True, False], ids=["train", "evaluation"])
def test_two_ranks_share_an_epoch(loader: str, order: str, train: bool, make) -> None:
    """Disjoint, equally long, and together what one process with twice the batch gets."""
    parts = [
        make(loader, shapes()["rows"], order=order, train=train, rank=rank, world=2, batch_size=3)
        for rank in (0, 1)
    ]
    whole = make(loader, shapes()["rows"], order=order, train=train, batch_size=6)
    assert len(parts[0]) == len(parts[1]) == len(whole)
    first, second = (sequence(part) for part in parts)
    assert [left + right for left, right in zip(first, second, strict=True)] == sequence(whole)
    assert not set(numbers(parts[0])) & set(numbers(parts[1]))
    every = sorted(numbers(parts[0]) + numbers(parts[1]))
    assert len(every) == len(set(every))
    if order != "lanes" or not train:  # a lane steps over the rows between two of its samples
        assert every == list(range(len(shapes()["rows"])))


@every_loader
@every_order
def test_seed_and_epoch_decide_the_sequence(loader: str, order: str, make) -> None:
    first, again, other = (
        make(loader, shapes()["rows"], order=order, seed=seed) for seed in (3, 3, 4)
    )
    epochs = [sequence(first, epoch) for epoch in range(4)]
    assert [sequence(again, epoch) for epoch in (3, 1, 0, 2)] == [
        epochs[epoch] for epoch in (3, 1, 0, 2)
    ]
    if order == "time":
        assert all(epoch == epochs[0] for epoch in epochs)
    else:
        assert any(epoch != epochs[0] for epoch in epochs)
        assert [sequence(other, epoch) for epoch in range(4)] != epochs


@every_loader
@every_order
def test_fraction_takes_the_same_samples_in_every_epoch(loader: str, order: str, make) -> None:
    made = make(loader, shapes()["rows"], order=order, fraction=0.5)
    allowed = set(made.order.sample(np.arange(made.order.count)).tolist())
    assert len(allowed) == round(len(shapes()["rows"]) * 0.5)
    for epoch in range(3):
        seen = numbers(made, epoch)
        assert len(seen) == len(set(seen))
        assert set(seen) <= allowed
        assert order == "lanes" or set(seen) == allowed
    whole = make(loader, shapes()["rows"], order=order, fraction=0.5, train=False)
    assert set(numbers(whole)) == set(range(len(shapes()["rows"])))


@every_loader
def test_evaluation_has_its_own_batch_size(loader: str, make) -> None:
    made = make(loader, shapes()["rows"], order="full", train=False, evaluation_batch_size=10)
    assert [len(batch) for batch in sequence(made)] == [10] * 7
    assert numbers(made) == list(range(len(shapes()["rows"])))


@every_loader
@every_order
@pytest.mark.parametrize("batch_size", [len(shapes()["rows"]), 100, 10**9])
def test_one_batch_can_hold_everything(loader: str, order: str, batch_size: int, make) -> None:
    """One that is asked to be far larger is reduced, else it would be padding that fills the memory."""
    samples = shapes()["rows"]
    made = make(loader, samples, order=order, batch_size=batch_size)
    (batch,) = sequence(made)
    assert len(batch) == min(batch_size, 256)
    if order == "lanes":
        assert len(numbers(made)) == len(samples) // samples.stride
    else:
        assert sorted(numbers(made)) == list(range(len(samples)))
    whole = make(loader, samples, order=order, batch_size=batch_size, train=False)
    assert {len(batch) for batch in sequence(whole)} == {min(batch_size, 256)}
    assert sorted(numbers(whole)) == list(range(len(samples)))


@every_loader
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_stays_until_the_next_one_is_asked_for(loader: str, workers: int, make) -> None:
    """Whatever reads ahead meanwhile; and one asked for later does not depend on how long it took."""
    made = make(loader, shapes()["windows"], order="full", num_workers=workers)
    wanted = epoch_of(make(loader, shapes()["windows"], order="full"))
    for batch, expected in zip(made.epoch(0), wanted, strict=True):
        time.sleep(0.002)
        assert frozen(batch) == expected


@every_loader
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_can_be_left_early_and_loaders_interleave(loader: str, workers: int, make) -> None:
    """The batch tried before step 0 is taken from an epoch that is then dropped; evaluations run
    inside one."""
    training = make(loader, shapes()["ragged"], order="full", num_workers=workers)
    validation = make(loader, shapes()["ragged"], order="full", num_workers=workers, train=False)
    wanted, measured = (epoch_of(each) for each in (training, validation))
    dropped = training.epoch(0)
    assert frozen(next(dropped)) == wanted[0]
    dropped.close()
    for number, batch in enumerate(training.epoch(0)):
        assert frozen(batch) == wanted[number]
        if number == 5:
            assert epoch_of(validation) == measured


@every_loader
@pytest.mark.parametrize("workers", [0, 2])
def test_no_global_random_number_is_drawn(loader: str, workers: int, make) -> None:
    """Else dropout would differ with the loader and its workers."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    epoch_of(make(loader, shapes()["host"], order="full", num_workers=workers))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@every_loader
@pytest.mark.parametrize("persistent", [True, False])
def test_close_leaves_no_process(loader: str, persistent: bool, make) -> None:
    made = make(loader, shapes()["rows"], num_workers=2, persistent_workers=persistent)
    batches = made.epoch(0)
    next(batches)
    made.close()
    del batches
    until(lambda: not multiprocessing.active_children(), "end of the workers")


@every_loader
def test_stats_count_what_was_delivered(loader: str, make) -> None:
    made = make(loader, shapes()["rows"])
    epoch_of(made)
    stats = made.stats()
    assert stats["batches"] == len(made)
    assert all(isinstance(value, int | float) for value in stats.values())


@every_loader
@pytest.mark.parametrize("workers", [0, 2])
def test_a_read_only_folder_is_read_and_stays_as_it_was(
    loader: str, workers: int, tmp_path: Path
) -> None:
    folder = tmp_path / "nur lesen – 只读"
    store = write_store(folder, loader)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*")}
    made = make_loader(loader, shapes()["windows"], store, settings(num_workers=workers))
    assert len(epoch_of(made)) == len(made)
    made.close()
    assert {
        path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*")
    } == before
    folder.chmod(0o755)


@every_loader
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_store_gives_back_what_was_written(loader: str, dtype: str, opened) -> None:
    store = opened(loader, dtype)
    assert list(store.arrays) == list(ARRAYS)
    for name, row in ARRAYS.items():
        assert store.arrays[name].dtype == dtype
        np.testing.assert_array_equal(store.arrays[name].rows(), as_stored(content(row), dtype))
