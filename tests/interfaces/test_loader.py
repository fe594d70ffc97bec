"""Every loader gives the same batches: the right rows, of the right samples, in the order's
sequence."""

import multiprocessing
import random
import re
import time
from typing import Any

import numpy as np
import pytest
import torch
from fakes import (
    ARRAYS,
    CPU,
    DTYPES,
    LOADERS,
    ORDERS,
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
from importing import imported
from made_up import files_of
from rendering import render
from running import until

every_loader = pytest.mark.parametrize("loader", LOADERS)
every_order = pytest.mark.parametrize("order", ORDERS)
with_workers = pytest.mark.parametrize("workers", [0, 2])
# Settings that may change a run's speed and memory, never its batches.
MACHINE = {
    "dataloader": (
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 2, "persistent_workers": False, "pin_memory": False},
        {"num_workers": "auto"},
    ),
    "memmap": ({"resident": True}, {"resident": False}),
    "chunk": ({"chunk_size_gb": 1e-7}, {"resident": True}, {"resident": False}),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened(loader, dtype) is a store, written once."""
    stores: dict[tuple[str, str], Any] = {}

    def store(loader, dtype="float32"):
        key = (loader, dtype)
        if key not in stores:
            stores[key] = write_store(tmp_path_factory.mktemp("store") / "data", loader, dtype)
        return stores[key]

    return store


@pytest.fixture
def make(opened):
    """make(loader, samples, train=True, **data settings) is a Loader, closed when the test ends."""
    loaders = []

    def loader(
        name,
        samples,
        *,
        dtype="float32",
        rank=0,
        world=1,
        train=True,
        **chosen,
    ):
        store = opened(name, dtype)
        made = make_loader(name, samples, store, settings(**chosen), rank, world, train=train)
        loaders.append((made, store))
        return made

    yield loader
    for made, store in loaders:
        made.close()
        store.resident.clear()


@every_loader
@every_order
@pytest.mark.parametrize("shape", shapes())
@pytest.mark.parametrize("train", [True, False], ids=["train", "evaluation"])
@pytest.mark.cover(2)
def test_batches_hold_the_rows_of_their_samples(loader, order, shape, train, make):
    """Values, zeros after lengths, absent spans and index, compared with a direct reading."""
    epoch = 2
    samples = shapes()[shape]
    made = make(loader, samples, order=order, train=train)
    indices = made.order.indices(epoch, 0, len(made))
    assert len(made) == len(indices) > 1
    batches = enumerate(made.epoch(epoch))
    for place, batch in batches:
        expected = samples.expected(indices[place], epoch)
        if shape == "host":
            noise = (indices[place] * 7 + epoch * 3) % 11
            expected["wide"] = expected["wide"] + noise[:, None, None]
        expected |= {"index": indices[place], "present": indices[place] >= 0}
        assert batch.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name].numpy(), values, err_msg=name)
    assert place == len(made) - 1


@every_loader
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_their_stored_dtype(loader, dtype, make, opened):
    for name, row in ARRAYS.items():
        array = opened(loader, dtype).arrays[name]
        assert array.dtype == dtype
        np.testing.assert_array_equal(array.rows(), as_stored(content(row), dtype))
    samples = shapes()["days"]
    made = make(loader, samples, dtype=dtype, order="time")
    for batch in made.epoch(0):
        expected = samples.expected(batch["index"].numpy(), 0)
        for name in samples.tables:
            assert batch[name].dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(batch[name].double().numpy(), expected[name])


@every_loader
@pytest.mark.parametrize(
    ("order", "shape"),
    [
        ("time", "windows"),
        ("full", "host"),
        ("bucket", "ragged"),
        ("random_start", "shifted"),
        ("lanes", "days"),
    ],
)
def test_machine_settings_and_the_choice_of_loader_change_no_batch(loader, order, shape, make):
    samples = shapes()[shape]
    reference = make(LOADERS[0], samples, order=order)
    expected = [epoch_of(reference, epoch) for epoch in (0, 1)]
    for changed in ({}, *MACHINE[loader]):
        made = make(loader, samples, order=order, **changed)
        assert [epoch_of(made, epoch) for epoch in (0, 1)] == expected, changed
        made.close()


@pytest.mark.parametrize("shape", ["days", "ragged", "host", "shifted"])
def test_the_loader_that_benchmarks_compare_with_gives_the_same_batches(shape, make):
    reference = make("memmap", shapes()[shape], order="random_start")
    project = render(loader="memmap", extras=["benchmark"])
    plain = imported(project, "measure.plain_loader").Loader
    for workers in (0, 2):
        given = settings(num_workers=workers)
        made = plain(reference.samples, reference.store, given, reference.order, CPU)
        assert epoch_of(made, 1) == epoch_of(reference, 1)


@every_loader
@every_order
def test_any_position_can_be_resumed(loader, order, make):
    """By the same loader, and by one in another process."""
    workers = 2 if order == "full" else 0
    made = make(loader, shapes()["ragged"], order=order, num_workers=workers)
    whole = epoch_of(made, 1)
    resumed = make(loader, shapes()["ragged"], order=order, num_workers=workers)
    for start in (0, 7, len(made) - 1, len(made)):
        assert epoch_of(made, 1, start) == whole[start:]
        assert epoch_of(resumed, 1, start) == whole[start:]


@every_loader
@with_workers
def test_a_batch_stays_until_the_next_one_is_asked_for(loader, workers, make):
    """Whatever reads ahead meanwhile, and however long a step takes."""
    made = make(loader, shapes()["windows"], num_workers=workers)
    expected = epoch_of(make(loader, shapes()["windows"]))
    for batch, values in zip(made.epoch(0), expected, strict=True):
        time.sleep(0.002)
        assert frozen(batch) == values


@every_loader
@with_workers
def test_epochs_can_be_left_early_and_loaders_interleave(loader, workers, make):
    """The batch tried before step 0 is from an epoch that is dropped; evaluations run inside
    one."""
    training = make(loader, shapes()["ragged"], num_workers=workers)
    validation = make(loader, shapes()["ragged"], num_workers=workers, train=False)
    expected = epoch_of(training)
    measured = epoch_of(validation)
    dropped = training.epoch(0)
    assert frozen(next(dropped)) == expected[0]
    dropped.close()
    for place, batch in enumerate(training.epoch(0)):
        assert frozen(batch) == expected[place]
        if place == 5:
            assert epoch_of(validation) == measured


@every_loader
@with_workers
def test_no_global_random_number_is_drawn(loader, workers, make):
    """Else dropout would differ with the loader and its workers."""

    def states():
        return [
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ]

    before = states()
    epoch_of(make(loader, shapes()["host"], num_workers=workers))
    assert states() == before


@every_loader
@pytest.mark.parametrize("persistent", [True, False])
def test_close_leaves_no_process(loader, persistent, make):
    made = make(loader, shapes()["rows"], num_workers=2, persistent_workers=persistent)
    batches = made.epoch(0)
    next(batches)
    made.close()
    del batches
    until(lambda: not multiprocessing.active_children(), "end of the workers")


@every_loader
@with_workers
def test_a_read_only_folder_is_read_and_stays_as_it_was(loader, workers, tmp_path):
    folder = tmp_path / "nur lesen – 只读"
    store = write_store(folder, loader)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    before = files_of(folder)
    made = make_loader(loader, shapes()["windows"], store, settings(num_workers=workers))
    assert len(epoch_of(made)) == len(made)
    made.close()
    assert files_of(folder) == before
    folder.chmod(0o755)


# --- memory of the device


@pytest.mark.parametrize(
    ("loader", "wish", "is_resident"),
    [
        ("memmap", "auto", 0),  # on a CPU the page cache has the rows
        ("memmap", True, 1),
        ("memmap", False, 0),
        ("chunk", "auto", 1),
        ("chunk", True, 1),
        ("chunk", False, 0),
    ],
)
def test_resident_is_a_wish(loader, wish, is_resident, make, opened):
    made = make(loader, shapes()["rows"], resident=wish)
    next(made.epoch(0))
    assert bool(opened(loader).resident) == is_resident


def test_resident_true_must_fit(make):
    made = make("chunk", shapes()["rows"], resident=True, chunk_size_gb=1e-6)
    user_error = engine("errors", loader="chunk").UserError
    with pytest.raises(user_error, match=r"data.resident true"):
        next(made.epoch(0))


@pytest.mark.parametrize("loader", ["memmap", "chunk"])
def test_loaders_of_a_store_share_the_rows_on_the_device(loader, make, opened):
    """Each adds the arrays that it alone needs."""
    given = {"resident": True}
    training = make(loader, shapes()["windows"], **given)
    validation = make(loader, shapes()["ragged"], train=False, **given)
    kept = opened(loader, "float32").resident
    expected = []
    for made in (training, validation):
        plain = make("dataloader", made.samples, train=made.order.train)
        expected.append(epoch_of(plain))
    assert epoch_of(training) == expected[0]
    first = dict(kept)
    assert first.keys() == {"wide", "one"}
    assert epoch_of(validation) == expected[1]
    assert kept.keys() == {"wide", "one", "square"}
    assert all(kept[name] is rows for name, rows in first.items())
    validation.close()
    assert all(kept[name] is rows for name, rows in first.items()), "a hook closes its loader"
    assert epoch_of(training) == expected[0]


def test_the_start_of_a_run_shows_workers_chunks_and_what_is_resident(opened):
    alone = "data.num_workers: the main process reads; nothing is resident"
    two = "data.num_workers: 2 workers, persistent, prefetch 2 batches each; nothing is resident"
    fresh = "data.num_workers: 1 workers, new in each epoch, prefetch 3 batches each; .*"
    anew = {"num_workers": 1, "persistent_workers": False, "prefetch_factor": 3}
    small = {"resident": False, "chunk_size_gb": 0.3}
    chunks = "data.chunk_size_gb: 3 chunks of up to 0.1 GB, nothing is resident; no workers"
    for loader, given, why in (
        ("dataloader", {}, alone),
        ("dataloader", {"num_workers": 2}, two),
        ("dataloader", anew, fresh),
        ("memmap", {}, "data.resident: rows are read from the files; no workers"),
        ("memmap", {"resident": True}, "data.resident: rows stay on the device if .*; no workers"),
        ("chunk", {}, "data.resident: all rows, .* GB, will be resident; no workers"),
        ("chunk", small, chunks),
    ):
        made = make_loader(loader, shapes()["rows"], opened(loader), settings(**given))
        order, row = made.describe()
        made.close()
        assert (order["name"], row["name"], row["state"]) == ("order", "loader", loader)
        assert re.fullmatch(why, row["why"]), row
