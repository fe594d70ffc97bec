"""Every loader delivers the same batches, bit for bit, in any order; and what the chunk loader promises."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from importing import imported
from rendering import render
from variants import choices

CPU = torch.device("cpu")
LOADERS = (*choices("loader"), "plain")  # the last one to compare with, of `benchmark`
ORDERS = ("time", "block", "full", "lanes", "bucket", "random_start")


def module(name: str, loader: str = "chunk") -> Any:
    return imported(render(loader=loader), name)


class Fake:
    """Samples of the store below; subclasses say which spans. `Spans` is the class of the same project."""

    count = 300
    stride = 3

    def __init__(self, spans: Any, shifts: bool):
        self.Spans, self.shifts = spans, shifts

    def __len__(self) -> int:
        return self.count

    @property
    def orders(self) -> dict[str, Any]:
        lanes, buckets = (
            imported(render(), "engine.lanes"),
            imported(render(workload="seq2seq"), "engine.buckets"),
        )
        return {
            "lanes": partial(lanes.Lanes, stride=self.stride),
            "bucket": partial(buckets.Buckets, lengths=self.lengths()),
        }

    def lengths(self) -> np.ndarray:
        return 1 + np.random.default_rng(5).integers(0, 30, self.count)

    def batch(self, rows: dict[str, Any]) -> dict[str, torch.Tensor]:
        flat = {f"{name}.values": part.values for name, part in rows.items()}
        return flat | {f"{name}.lengths": part.lengths for name, part in rows.items()}


class Windows(Fake):
    """Overlapping windows of two arrays; of a float64 series that starts later, and of bfloat16 rows."""

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        present = indices >= 0
        return {
            "series": self.Spans(np.where(present, indices, 0), np.where(present, 12, 0), 12),
            "halves": self.Spans(np.where(present, indices + 7, 0), np.where(present, 4, 0), 4),
        }


class Pages(Fake):
    """A large row and a small one for each sample."""

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        present = indices >= 0
        span = self.Spans(np.where(present, indices, 0), present.astype(np.int64), 1)
        return {"pages": span, "targets": span}


class Ragged(Fake):
    """Texts of 1 to 30 tokens, padded as far as the batch needs; they move in the order `random_start`."""

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        lengths = self.lengths()
        starts = np.cumsum(lengths) - lengths
        present = indices >= 0
        found = np.where(present, lengths[indices], 0)
        starts = np.where(present, starts[indices] + epoch * self.shifts, 0)
        return {"tokens": self.Spans(starts, found, max(int(found.max()), 1))}


class Days(Fake):
    """Several spans of one array for a sample, some of them absent (listings that come and go)."""

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        stocks = np.arange(5)
        present = (indices[:, None] >= 0) & ((indices[:, None] + stocks) % 3 > 0)
        starts = np.where(present, indices[:, None] + 20 * stocks, 0)
        return {"series": self.Spans(starts, np.where(present, 8, 0), 8)}


FAKES = (Windows, Pages, Ragged, Days)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an array for each of the fakes."""
    place, random = tmp_path_factory.mktemp("store"), np.random.default_rng(1)
    with module("engine.store").StoreWriter(place, "fake") as writer:
        writer.create("series", (500, 3), "float64")[...] = random.normal(size=(500, 3))
        writer.create("halves", (400, 2), "bfloat16")[...] = random.integers(0, 1 << 15, (400, 2))
        writer.create("pages", (300, 64, 70), "float32")[...] = random.normal(size=(300, 64, 70))
        writer.create("targets", (300, 2), "int64")[...] = random.integers(-9, 9, (300, 2))
        writer.create("tokens", (9100,), "uint16")[...] = random.integers(0, 60000, 9100)
        writer.splits = {"train": [0, 300]}
    return place


def settings(
    order: str = "time",
    chunk_gb: float | str = "auto",
    workers: int = 0,
    batch: int = 16,
    resident: bool | str = "auto",
) -> Any:
    data = SimpleNamespace(
        order=order,
        batch_size=batch,
        fraction=1.0,
        shuffle_block=70,
        num_workers=workers,
        pin_memory=True,
        prefetch_factor=2,
        persistent_workers=True,
        chunk_size_gb=chunk_gb,
        resident=resident,
    )
    evaluation, reproducibility = SimpleNamespace(batch_size=0), SimpleNamespace(seed=3)
    return SimpleNamespace(data=data, evaluation=evaluation, reproducibility=reproducibility)


def make(
    loader: str,
    fake: type[Fake],
    folder: Path,
    given: Any,
    rank: int = 0,
    world: int = 1,
    train: bool = True,
) -> Any:
    answers = (
        {"loader": "chunk", "extras": ["benchmark"]} if loader == "plain" else {"loader": loader}
    )
    project, part = (
        render(**answers),
        "measure.plain_loader" if loader == "plain" else "engine.loader",
    )
    store = imported(project, "engine.store").Store.open(folder)
    spans = imported(project, "engine.seams").Spans
    samples = fake(spans, train and given.data.order == "random_start")
    order = imported(project, "engine.order").order_of(samples, given, rank, world, train)
    return imported(project, part).Loader(samples, store, given, order, CPU)


def delivered(
    loader: Any, epochs: tuple[int, ...] = (0, 1), start: int = 0
) -> list[dict[str, torch.Tensor]]:
    """Copies of all batches: a batch is valid until the next one only."""
    found = [
        {name: value.clone() for name, value in batch.items()}
        for epoch in epochs
        for batch in loader.epoch(epoch, start)
    ]
    loader.close()
    return found


def assert_equal(
    first: list[dict[str, torch.Tensor]], second: list[dict[str, torch.Tensor]]
) -> None:
    assert len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert value.dtype == right[name].dtype
            assert value.shape == right[name].shape
            assert (
                value.contiguous()
                .view(torch.uint8)
                .equal(right[name].contiguous().view(torch.uint8))
            ), name


# Bytes of all chunks: some batches, about one batch, less than one batch; resident is "auto".
SIZES = {Windows: 40e3, Pages: 3e6, Ragged: 9e3, Days: 60e3}


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.cover(1)
def test_loaders_give_the_same_batches(fake: type[Fake], order: str, folder: Path) -> None:
    if order == "lanes" and fake is Ragged:
        pytest.skip("a lane carries a state from window to window")
    for train in (True, False):
        expected = delivered(make("memmap", fake, folder, settings(order), train=train))
        numbers = torch.cat([batch["index"] for batch in expected[: len(expected) // 2]])
        if not (order == "lanes" and train):
            assert sorted(numbers[numbers >= 0].tolist()) == list(range(Fake.count))
        for loader in ("dataloader", "plain"):
            assert_equal(
                delivered(make(loader, fake, folder, settings(order), train=train)), expected
            )
        for loader in ("memmap", "chunk"):
            kept = make(loader, fake, folder, settings(order, resident=True), train=train)
            assert_equal(delivered(kept), expected)
        for size in ("auto", SIZES[fake] / 1e9, SIZES[fake] / 8e9, 1e-9):
            assert_equal(
                delivered(make("chunk", fake, folder, settings(order, size), train=train)), expected
            )


def test_workers_change_nothing(folder: Path) -> None:
    expected = delivered(make("memmap", Pages, folder, settings("full")))
    for loader in ("dataloader", "plain"):
        assert_equal(delivered(make(loader, Pages, folder, settings("full", workers=2))), expected)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("fake", FAKES)
def test_an_epoch_from_any_batch_on_is_its_rest(
    loader: str, fake: type[Fake], folder: Path
) -> None:
    given = settings("full", SIZES[fake] / 1e9)
    whole = delivered(make(loader, fake, folder, given), epochs=(1,))
    for start in (1, 7, len(whole) - 1, len(whole)):
        assert_equal(
            delivered(make(loader, fake, folder, given), epochs=(1,), start=start), whole[start:]
        )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_the_samples(loader: str, order: str, folder: Path) -> None:
    given = settings(order, SIZES[Pages] / 1e9)
    parts = [delivered(make(loader, Pages, folder, given, rank, 2), epochs=(0,)) for rank in (0, 1)]
    assert len(parts[0]) == len(parts[1])
    numbers = torch.cat([batch["index"] for part in parts for batch in part])
    found = numbers[numbers >= 0].tolist()
    assert len(found) == len(set(found))
    assert len(found) == Fake.count or order == "lanes"


@pytest.mark.parametrize("loader", LOADERS)
def test_work_on_the_host_is_done_for_each_sample(loader: str, folder: Path) -> None:
    class Doubled(Pages):
        def host(self, rows: dict[str, Any], indices: np.ndarray, epoch: int) -> dict[str, Any]:
            return rows | {"pages": rows["pages"]._replace(values=rows["pages"].values * 2 + epoch)}

    plain = delivered(make("memmap", Pages, folder, settings("full")))
    for size in ("auto", SIZES[Pages] / 1e9):
        found = delivered(make(loader, Doubled, folder, settings("full", size)))
        for number, (batch, original) in enumerate(zip(found, plain, strict=True)):
            epoch = number // (len(plain) // 2)
            assert batch["pages.values"].equal(original["pages.values"] * 2 + epoch)


@pytest.mark.parametrize("loader", ["memmap", "chunk"])
def test_a_random_start_beyond_the_first_epochs_rows(loader: str, folder: Path) -> None:
    """A resident set holds what later epochs reach, too."""
    late = delivered(make("memmap", Ragged, folder, settings("random_start")), epochs=(900,))
    loader = make(loader, Ragged, folder, settings("random_start", resident=True))
    next(loader.epoch(0))
    assert loader.stats()["resident"] == 1
    for _ in range(2):
        found = [
            {name: value.clone() for name, value in batch.items()} for batch in loader.epoch(900)
        ]
        assert_equal(found, late)
        assert loader.stats()["resident"] == 1
    loader.close()


def test_resident_is_a_wish_an_order_or_a_ban(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On a CPU `auto` is off for `memmap`; true must fit; work on the host needs the rows there."""
    for loader, wish, held in (
        *(("memmap", "auto", 0), ("memmap", True, 1), ("memmap", False, 0)),
        *(("chunk", "auto", 1), ("chunk", True, 1), ("chunk", False, 0)),
    ):
        made = make(loader, Pages, folder, settings("full", resident=wish))
        next(made.epoch(0))
        assert made.stats()["resident"] == held, (loader, wish)
        made.close()
    worked = type("Worked", (Pages,), {"host": lambda self, rows, indices, epoch: rows})
    made = make("memmap", worked, folder, settings("full", resident=True))
    next(made.epoch(0))
    assert made.stats()["resident"] == 0
    assert "data.resident has no effect" in capsys.readouterr().out
    made.close()
    monkeypatch.setattr(module("engine.loader", "memmap"), "memory_left", lambda device: 1e6)
    for loader, size in (("memmap", "auto"), ("chunk", 1e-3)):
        made = make(loader, Pages, folder, settings("full", size, resident=True))
        with pytest.raises(module("engine.errors", loader).UserError, match=r"data.resident true"):
            next(made.epoch(0))
        made.close()


def test_waiting_for_the_gpu_is_no_wait_for_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memmap` waits until the copies out of its buffers are done; on a GPU they come after earlier steps."""
    loader, clock = make("memmap", Windows, folder, settings("time")), [0.0]
    monkeypatch.setattr(
        time, "perf_counter", lambda: clock[0]
    )  # it stands, but for the waits of a GPU

    def synchronize() -> None:
        clock[0] += 1

    loader._copied = [SimpleNamespace(synchronize=synchronize)] * len(loader._copied)
    watch = SimpleNamespace(loader=loader, _waited=0.0)
    batches = sum(
        1 for _ in module("engine.monitor", "memmap").Monitor.timed(watch, loader.epoch(0))
    )
    loader.close()
    assert (loader.stall_seconds, watch._waited) == (batches, 0)


# ---- memory, threads, errors of the chunk loader -------------------------------------------------


def test_memory_stays_within_the_chunks(tmp_path: Path) -> None:
    """The same for a file and for one four times as large."""
    peaks = []
    for rows in (600, 2400):
        place = tmp_path / str(rows)
        with module("engine.store").StoreWriter(place, "fake") as writer:
            writer.create("pages", (rows, 64, 70), "float32")[...] = 1
            writer.create("targets", (rows, 2), "int64")[...] = 1
            writer.splits = {"train": [0, rows]}
        loader = make(
            "chunk", type("More", (Pages,), {"count": rows}), place, settings("full", 5e-3)
        )
        tracemalloc.start()
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                pass
        peaks.append((loader.stats()["chunk_bytes"], tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
        loader.close()
    assert max(size for size, _ in peaks) <= 5e6
    assert peaks[1][1] - peaks[0][1] < 1e6


@pytest.mark.parametrize("order", ORDERS)
def test_each_row_is_read_once_an_epoch(order: str, folder: Path) -> None:
    loader = make("chunk", Pages, folder, settings(order, 3e-3))
    for _ in loader.epoch(0):
        pass
    least = (
        sum(loader._chunks.sources[name].array.row_bytes for name in ("pages", "targets"))
        * Fake.count
    )
    assert loader.stats()["read_bytes"] <= 1.1 * least
    loader.close()


def test_overlapping_windows_are_read_once_a_chunk(folder: Path) -> None:
    loader = make("chunk", Windows, folder, settings("time", 8e-6, batch=2))
    for _ in loader.epoch(0):
        pass
    chunks = loader.stats()["chunks"]
    loader.close()
    assert chunks > 2
    assert loader.stats()["read_bytes"] <= (300 + chunks * 12) * (24 + 4)


def test_threads_end_with_the_loader(folder: Path) -> None:
    before = set(threading.enumerate())
    loader = make("chunk", Pages, folder, settings("full", 3e-3))
    batches = loader.epoch(0)
    next(batches)
    batches.close()  # a loop that breaks
    assert next(loader.epoch(1)) is not None
    gc.collect()
    loader.close()
    assert set(threading.enumerate()) <= before


def test_a_file_that_gets_shorter_is_named_with_its_rows(folder: Path, tmp_path: Path) -> None:
    for name in os.listdir(folder):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    loader = make("chunk", Pages, tmp_path, settings("time", 3e-3))
    array = loader._chunks.sources["pages"].array
    os.truncate(array.path, array.offset + 250 * array.row_bytes)
    with pytest.raises(
        module("engine.errors").UserError, match=r"ends too early: .* rows \d+ to \d+: .*prepare"
    ):
        for _ in loader.epoch(0):
            pass
    loader.close()


def test_a_worker_that_dies_is_one_line(folder: Path) -> None:
    class Deadly(Pages):
        def host(self, rows: dict[str, Any], indices: np.ndarray, epoch: int) -> dict[str, Any]:
            os.kill(os.getpid(), 9)
            return rows

    loader = make("dataloader", Deadly, folder, settings("time", workers=1))
    with pytest.raises(
        module("engine.errors", "dataloader").UserError,
        match=r"worker died: 1 workers: .*num_workers",
    ):
        next(loader.epoch(0))
    loader.close()


@pytest.mark.parametrize("userblock", [0, 512])
def test_chunks_of_whole_rows_are_read_by_a_table(userblock: int, tmp_path: Path) -> None:
    """Any rows, over the borders of chunks; HDF5 itself reads where a chunk was never written."""
    import h5py

    values = np.random.default_rng(0).normal(size=(103, 5, 3)).astype("f4")
    with h5py.File(tmp_path / "some.h5", "w", userblock_size=userblock) as file:
        file.create_dataset("rows", data=values, chunks=(10, 5, 3))
        file.create_dataset("holes", (103, 5, 3), "f4", chunks=(10, 5, 3), fillvalue=2.0)[:20] = (
            values[:20]
        )
    reader = module("engine.reader")
    arrays = module("engine.hdf5").hdf5_arrays(tmp_path / "some.h5", "rows", "holes")
    expected = {
        "rows": values,
        "holes": np.concatenate([values[:20], np.full((83, 5, 3), 2, "f4")]),
    }
    for name, kind in (("rows", reader.Tabled), ("holes", reader.Filtered)):
        source = reader.open_source(arrays[name])
        assert type(source) is kind
        for first, last in ((0, 103), (9, 11), (10, 20), (57, 58), (95, 103)):
            into = np.empty((last - first, 5, 3), "f4")
            source.read(first, memoryview(into).cast("B"))
            np.testing.assert_array_equal(into, expected[name][first:last])
        source.close()
