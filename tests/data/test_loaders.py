"""What the loader `chunk` promises: memory, reads, threads, errors."""

import os
import shutil
import tracemalloc
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
import torch
from importing import imported
from rendering import render

CPU = torch.device("cpu")
PAGE_BYTES = 64 * 70 * 4
ROW_BYTES = PAGE_BYTES + 2 * 8


def module(name, loader="chunk"):
    return imported(render(loader=loader), name)


class Pages:
    """Samples of a large row and a small one. `Spans` is the class of the same project."""

    count = 300
    training = False
    augment = None
    host = None
    orders: ClassVar[dict[str, Any]] = {}

    def __init__(self, spans, shifts):
        self.Spans = spans

    def __len__(self):
        return self.count

    def spans(self, indices, epoch):
        span = self.Spans(indices, 1)
        return {"pages": span, "targets": span}

    def batch(self, rows):
        return {name: array.values for name, array in rows.items()}


class Windows(Pages):
    """Overlapping windows of 12 rows."""

    count = 288

    def spans(self, indices, epoch):
        return {"targets": self.Spans(indices, 12)}


def write(folder, rows=Pages.count):
    random = np.random.default_rng(1)
    with module("engine.loading.store").StoreWriter(folder, "fake") as writer:
        writer.append("pages", random.normal(size=(rows, 64, 70)).astype(np.float32))
        writer.append("targets", random.integers(-9, 9, (rows, 2)))
        writer.splits = {"train": [0, rows]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    write(folder)
    return folder


def settings(
    order="time",
    chunk_gb="auto",
    batch=16,
    resident="auto",
):
    data = {"order": order, "chunk_size_gb": chunk_gb, "batch_size": batch, "resident": resident}
    section = module("engine.settings", "chunk").EngineData(shuffle_block=70, **data)
    return SimpleNamespace(
        data=section,
        evaluation=SimpleNamespace(batch_size=0),
        reproducibility=SimpleNamespace(seed=3),
    )


def make(loader, fake, folder, given, *ranks, train=True):
    store = module("engine.loading.store", loader).Store.open(folder)
    samples = fake(module("engine.interfaces", loader).Spans, False)
    order = module("engine.training.project", loader).make_order(
        samples, given, *ranks, train=train
    )
    return module("engine.loading.loader", loader).Loader(samples, store, given, order, CPU)


def delivered(loader, epochs=(0, 1)):
    """Copies of all batches: a batch is only valid until the next one."""
    batches = []
    for epoch in epochs:
        for batch in loader.epoch(epoch):
            batches.append({name: value.clone() for name, value in batch.items()})
    loader.close()
    return batches


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


def run_epoch(loader, epoch=0):
    """Return the chunks and bytes that were read, and the bytes that the chunks have."""
    chunks = loader._chunks
    first = chunks.chunks
    sizes = []
    fill = chunks.reader.fill

    def counted(block, free):
        sizes.append(block.memory.nbytes)
        return fill(block, free)

    chunks.reader.fill = counted
    for _ in loader.epoch(epoch):
        pass
    chunks.reader.fill = fill
    return {
        "chunks": chunks.chunks - first,
        "read_bytes": sum(sizes),
        "chunk_bytes": sum(buffer.nbytes for buffer in chunks.buffers if buffer is not None),
    }


@pytest.mark.parametrize("size", ["auto", 3e-3, 3e-4, 1e-9])
@pytest.mark.parametrize("fake", [Pages, Windows])
def test_the_size_of_chunks_changes_no_batch(fake, size, folder):
    """Some batches, about one batch, less than one."""
    expected = delivered(make("memmap", fake, folder, settings("full")))
    assert_equal(delivered(make("chunk", fake, folder, settings("full", size))), expected)


@pytest.mark.parametrize("size", ["auto", 1e-9])
def test_a_rank_whose_batch_is_all_padding_gets_zeros(size, folder):
    batches = delivered(make("chunk", Pages, folder, settings("time", size), 1, 2))
    assert not batches[-1]["present"].any()
    assert not batches[-1]["pages"].any()


def test_memory_stays_within_the_chunks(tmp_path):
    """It is the same for a file and for one four times as large."""
    peaks = []
    for rows in (600, 2400):
        place = tmp_path / str(rows)
        write(place, rows)
        many = type("Many", (Pages,), {"count": rows})
        loader = make("chunk", many, place, settings("full", 5e-3))
        tracemalloc.start()
        for epoch in range(2):
            assert run_epoch(loader, epoch)["chunk_bytes"] <= 5e6
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        loader.close()
    # The order of an epoch is 8 bytes a sample.
    assert peaks[1] - peaks[0] < 1e6


@pytest.mark.parametrize("order", ["time", "block", "full"])
def test_each_row_is_read_once_an_epoch(order, folder):
    loader = make("chunk", Pages, folder, settings(order, 3e-3))
    assert run_epoch(loader)["read_bytes"] <= 1.1 * Pages.count * ROW_BYTES
    loader.close()


def test_overlapping_windows_are_read_once_a_chunk(folder):
    loader = make("chunk", Windows, folder, settings("time", 2e-6, batch=2))
    stats = run_epoch(loader)
    loader.close()
    assert stats["chunks"] > 2
    assert stats["read_bytes"] <= (Pages.count + stats["chunks"] * 12) * 2 * 8


def test_a_file_that_gets_shorter_is_named_with_its_rows(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    loader = make("chunk", Pages, copy, settings("time", 3e-3))
    array = loader._chunks.sources["pages"].array
    os.truncate(array.path, array.offset + 250 * array.row_bytes)
    message = r"ends too early: .* rows \d+ to \d+: .*prepare"
    with pytest.raises(module("engine.errors").UserError, match=message):
        run_epoch(loader)
    loader.close()


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize(("compression", "source"), [(None, "Plain"), ("gzip", "Filtered")])
def test_hdf5_chunks_of_whole_rows(compression, source, userblock, tmp_path):
    """Any rows, over the borders of chunks. HDF5 itself reads compressed ones."""
    values = np.random.default_rng(0).normal(size=(103, 5, 3)).astype("f4")
    with h5py.File(tmp_path / "some.h5", "w", userblock_size=userblock) as file:
        file.create_dataset("rows", data=values, chunks=(10, 5, 3), compression=compression)
    arrays = module("engine.loading.hdf5").hdf5_arrays(tmp_path / "some.h5", "rows")
    opened = module("engine.loading.reader").open_source(arrays["rows"])
    assert type(opened).__name__ == source
    for first, last in ((0, 103), (9, 11), (10, 20), (57, 58), (95, 103)):
        into = np.empty((last - first, 5, 3), "f4")
        opened.read(first, memoryview(into).cast("B"))
        np.testing.assert_array_equal(into, values[first:last])
    opened.close()
