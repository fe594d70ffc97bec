"""The chunk loader where it belongs: copies beside the step, chunks that bound the device's
memory."""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from importing import imported
from test_training import project

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
ROWS = 2000
SHAPE = (64, 70)
BATCH = 32
BATCH_BYTES = 4 * BATCH * 64 * 70


def module(name, loader="chunk"):
    return imported(project(loader=loader), name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("store")
    random = np.random.default_rng(1)
    with module("engine.loading.store").StoreWriter(place, "fake") as writer:
        writer.append("pages", random.normal(size=(ROWS, *SHAPE)).astype(np.float32))
        writer.append("series", random.normal(size=(ROWS + 50, 3)).astype(np.float16))
        writer.append("tokens", random.integers(0, 60_000, 40 * ROWS).astype(np.uint16))
        writer.splits = {"train": [0, ROWS]}
    return place


class Samples:
    """A page, a window of a series and a ragged text for each sample."""

    training = False
    augment = None
    host = None
    orders: ClassVar[dict[str, Any]] = {}

    def __init__(self, spans):
        self.Spans = spans

    def __len__(self):
        return ROWS

    def lengths(self):
        return 1 + np.arange(ROWS) * 7 % 40

    def spans(self, indices, epoch):
        present = indices >= 0
        rows = np.where(present, indices, 0)
        text = np.where(present, self.lengths()[indices], 0)
        return {
            "pages": self.Spans(indices, 1),
            "series": self.Spans(indices, 50),
            "tokens": self.Spans(40 * rows, max(int(text.max()), 1), text),
        }

    def batch(self, rows):
        flat = {name: part.values for name, part in rows.items()}
        return flat | {"lengths": rows["tokens"].lengths}


def make(
    loader,
    folder,
    device,
    order,
    size="auto",
):
    data = SimpleNamespace(
        order=order, batch_size=BATCH, fraction=1.0, shuffle_block=300, chunk_size_gb=size,
        resident="auto", pin_memory=True, num_workers=0, prefetch_factor=2, persistent_workers=True,
    )  # fmt: skip
    settings = SimpleNamespace(
        data=data, evaluation=SimpleNamespace(batch_size=0), reproducibility=SimpleNamespace(seed=3)
    )
    store = module("engine.loading.store", loader).Store.open(folder)
    samples = Samples(module("engine.interfaces", loader).Spans)
    order = module("engine.training.project", loader).make_order(samples, settings)
    return module("engine.loading.loader", loader).Loader(
        samples, store, settings, order, torch.device(device)
    )


def check_equal(one, other):
    """Bit for bit; the other one is on the GPU."""
    for name, value in one.items():
        assert other[name].is_cuda
        assert other[name].dtype == value.dtype
        assert other[name].cpu().view(torch.uint8).equal(value.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("order", ["time", "block", "full"])
@pytest.mark.parametrize("size", ["auto", 20 * BATCH_BYTES / 1e9, 3 * BATCH_BYTES / 1e9, 1e-9])
def test_batches_are_those_of_memmap_next_to_steps(order, size, folder):
    """A batch is used long after the loader has gone on reading; three epochs, the last from its
    middle."""
    expected = make("memmap", folder, "cpu", order)
    found = make("chunk", folder, "cuda", order, size)
    weight = torch.randn(2048, 2048, device="cuda")
    for epoch, start in ((0, 0), (1, 0), (2, 20)):
        batches = zip(expected.epoch(epoch, start), found.epoch(epoch, start), strict=True)
        for one, other in batches:
            for _ in range(20):
                weight = weight @ weight / 100  # the copies below are queued behind this
            check_equal(one, other)
    assert bool(found._chunks.resident) == (size == "auto")
    if size != "auto":
        held = sum(buffer.nbytes for buffer in found._chunks.buffers if buffer is not None)
        assert held <= max(size * 1e9, 6 * BATCH_BYTES)
    for loader in (expected, found):
        loader.close()


@pytest.mark.parametrize("order", ["time", "full"])
def test_resident_rows_are_gathered_on_the_gpu(order, folder):
    """From the second pass of training on, which knows what a step leaves free; bit for bit the
    same."""
    expected = make("memmap", folder, "cpu", order)
    found = make("memmap", folder, "cuda", order)
    for epoch, resident in ((0, 0), (1, 1), (2, 1)):
        for one, other in zip(expected.epoch(epoch), found.epoch(epoch), strict=True):
            check_equal(one, other)
        assert bool(found.store.resident) == resident
    for loader in (expected, found):
        loader.close()
