"""The chunk loader on a GPU: an LSTM on 51,779 windows of 360 × 167 float32, 12.4 GB, epoch after
epoch.

A map-style DataLoader (0 and 2 workers, file opened once in each process, pinned, the same order),
then the chunk loader with two chunks that take turns, with everything resident, and with the other
optimizations on top. Cold rows begin with an empty page cache, and have the first steps only. Also
what the machine allows: reading the file, cached and cold, copying from pinned memory. All rows see
the same windows in the same order. Takes about 6 minutes and 13 GB of disk.

    make bench-gpu PART=timeseries
    make bench-gpu PART=timeseries ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rows import Book, begin, environment_of, project, share, spread, train, watched

WINDOWS, SHAPE, TARGETS, BATCH, EVERY = 51_779, (360, 167), 36, 128, 50
COLD_STEPS, COLD_FIRST = 250, 50  # of a row with an empty page cache, and those that do not count
OFF = {
    "training.precision": "fp32",
    "optimizer.fused": "false",
    "monitor.every_steps": EVERY,
}
ON = {"training.precision": "auto", "optimizer.fused": "true"}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global WINDOWS, SHAPE, TARGETS, BATCH, COLD_STEPS, COLD_FIRST
    BATCH = 32
    WINDOWS = 2 * BATCH
    SHAPE = (24, 12)
    TARGETS = 2
    COLD_STEPS, COLD_FIRST = 3, 1


def row_bytes() -> int:
    return 4 * SHAPE[0] * SHAPE[1]


def write(path: Path, windows: int) -> None:
    """Random windows; the targets are the last values of their first channels."""
    import h5py

    random = np.random.default_rng(0).normal(size=(1024, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (windows, *SHAPE), "f4")
        targets = file.create_dataset("targets", (windows, TARGETS), "f4")
        for start in range(0, windows, len(random)):
            count = min(len(random), windows - start)
            features[start : start + count] = random[:count]
            targets[start : start + count] = random[:count, -1, :TARGETS]


def make_row_by_row(inner: Any, workers: int = 0) -> Any:
    """A loader with the face of the project's own, over a map-style DataLoader, in the project's
    order."""
    import h5py
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self, array: Any, names: tuple[str, ...]):
            self.path = array.path
            self.names = names
            self.sets: list[Any] = []

        def __getitem__(self, row: int) -> list[Any]:
            if not self.sets:  # no worker may have what another process has opened
                file = h5py.File(self.path)
                self.sets = [file[name] for name in self.names]
            return [torch.from_numpy(part[row]) for part in self.sets]

    class RowByRow:
        def __init__(self, samples: Any, store: Any, settings: Any, order: Any, device: Any):
            self.inner = inner(samples, store, settings, order, device)
            self.samples, self.device, self.order = samples, device, order
            self.names = tuple(self.inner._chunks.sources)
            self.data = Windows(store.arrays["features"], self.names)

        def __len__(self) -> int:
            return len(self.inner)

        def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
            rows = project("engine.loading.rows")
            interfaces = project("engine.interfaces")
            indices = self.order.indices(epoch, 0, len(self))
            spans = [self.samples.spans(batch, epoch)[self.names[0]] for batch in indices[start:]]
            loader = torch.utils.data.DataLoader(
                self.data,
                batch_sampler=[part.starts[part.starts >= 0].tolist() for part in spans],
                num_workers=workers,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # else it draws from the one that dropout draws from
            )
            for batch, parts in enumerate(loader, start):
                found = {
                    name: interfaces.Rows(part[:, None])
                    for name, part in zip(self.names, parts, strict=True)
                }
                present = indices[batch] >= 0
                numbers = indices[batch][present]
                yield rows.deliver(self.samples, found, numbers, epoch, self.device)

        def describe(self) -> Any:
            return self.inner.describe()

        def close(self) -> None:
            self.inner.close()

    return RowByRow


def is_resident(loader: Any) -> bool | None:
    """Whether the rows stay on the device, if the loader is `chunk`."""
    chunks = getattr(loader, "_chunks", None)
    return None if chunks is None else bool(chunks.resident)


class Case(NamedTuple):
    """A row: a loader, its settings, its epochs, and whether the page cache is empty at its start.

    Rows that stay on the GPU are there from the third epoch on.
    """

    loader: Any
    overrides: dict[str, Any]
    epochs: int = 2
    cold: bool = False


def measured(folder: Path, case: Case) -> dict[str, Any]:
    """By the project's own loop: the last epoch, or the first steps with an empty page cache."""
    epoch = -(-WINDOWS // BATCH)
    steps, first = case.epochs * epoch, (case.epochs - 1) * epoch
    if case.cold:
        forget(folder)
        steps, first = COLD_STEPS, COLD_FIRST
    busy: list[int] = []
    overrides = case.overrides | {"training.max_steps": steps}
    found = train(folder, overrides, case.loader, watched(busy))
    figures = found.steady("samples_per_second", "step_ms", "data_wait_fraction", after=first)
    counted = [row for row in found.rows if row["step"] > first]
    sizes = np.diff([found.rows[-len(counted) - 1]["step"], *(row["step"] for row in counted)])
    # The mean, since an epoch includes its start.
    step_ms = np.average([row["step_ms"] for row in counted], weights=sizes)
    figures["epoch_s"] = float(step_ms) * epoch / 1000
    figures["gb_per_second"] = figures["samples_per_second"] * row_bytes() / 1e9
    figures |= {
        "loss": found.rows[-1]["loss"],
        "resident": is_resident(found.run.loader),
        "cold": case.cold,
    }
    later = busy[len(busy) // 2 :]
    return figures | ({"gpu_busy_percent": statistics.median(later)} if later else {})


def forget(folder: Path) -> None:
    """Removes the files of a folder from the page cache."""
    os.sync()  # pages that are not on the disk yet would stay
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_speed(path: Path, part: int = 1) -> float:
    """GB/s of reading the file, or the first part of it, with four threads."""
    import loaders

    size, first = path.stat().st_size, loaders.offset_of(path)
    loaders.ROW_BYTES = row_bytes()
    loaders.ROWS = (size - first) // row_bytes() // part
    return loaders.ROWS * row_bytes() / 1e9 / loaders.raw(path, 4)


def bus_speed() -> float:
    """GB/s of copies from pinned memory to the GPU; nan without one."""
    import torch

    if not torch.cuda.is_available():
        return float("nan")
    host = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return host.nbytes / 1e9 / statistics.median(seconds)


NAIVE = "map-style DataLoader, 0 workers, fp32"
COLD = "cold: "
COLUMNS = [
    "",
    "epoch",
    "less than 0 workers",
    "samples/s",
    "range",
    "GB/s",
    "data wait",
    "GPU busy",
    "peak memory",
    "loss",
]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    if "limit" in row:
        return ["", "", "", "", f"{row['limit']:.1f}", "", "", "", ""]
    reference = COLD * row["cold"] + NAIVE
    return [
        f"{row['epoch_s']:.1f} s",
        f"{1 - row['epoch_s'] / done[reference]['epoch_s']:.1%}" if reference in done else "",
        f"{row['samples_per_second']:,.0f}",
        spread(row, "samples_per_second", ",.0f"),
        f"{row['gb_per_second']:.1f}",
        share(row, "data_wait_fraction"),
        f"{row['gpu_busy_percent']:.0f} %" if "gpu_busy_percent" in row else "n/a",
        f"{row['memory_gb']:.1f} GB",
        f"{row['loss']:.4f}",
    ]


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Makes a store of the windows in `folder`, in a process of its own; a rehearsal forks it."""
    from forks import in_fork

    words = ["prepare", "--input", str(folder / "windows.h5"), "--data.path", str(folder / "data")]
    words += ["--split", f"{WINDOWS},{BATCH},0", "--purge", "0"]
    if arguments.rehearse:
        assert in_fork(lambda: project("__main__").main(words)) == 0
        return
    command = (sys.executable, "-m", "my_training", *words)
    environment = environment_of(arguments.project, folder)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def cases(folder: Path, rehearse: bool) -> dict[str, Case]:
    """The rows, in the order of their value."""
    own = project("engine.loading.loader").Loader
    naive = make_row_by_row(own)
    with_workers = make_row_by_row(own, workers=2)
    common = OFF | {"data.path": folder / "data", "data.batch_size": BATCH}
    common |= {"monitor.every_steps": 1, "model.width": 16} if rehearse else {}
    # A little more than all windows take, in two halves: two batches fit into neither of them.
    little = 1.14 * WINDOWS * row_bytes() / 1e9
    two_chunks = common | {"data.chunk_size_gb": little if rehearse else 4.0}
    chunks = "chunk loader, two chunks of 2 GB"
    two_workers = "map-style DataLoader, 2 workers, fp32"
    return {
        NAIVE: Case(naive, two_chunks),
        two_workers: Case(with_workers, two_chunks),
        chunks: Case(own, two_chunks),
        "chunk loader, resident": Case(own, common, epochs=3),
        "+ auto precision, fused AdamW": Case(own, common | ON, epochs=3),
        COLD + NAIVE: Case(naive, two_chunks, cold=True),
        COLD + two_workers: Case(with_workers, two_chunks, cold=True),
        COLD + chunks: Case(own, two_chunks, cold=True),
    }


def main() -> None:
    arguments = begin(__doc__, "windows")
    if arguments.rehearse:
        shrink()
    how = (
        f"{WINDOWS:,} windows of {SHAPE[0]} × {SHAPE[1]} float32, batch {BATCH}, the second epoch, "
    )
    how += f"resident: the third; cold: {COLD_STEPS} steps, of which the first {COLD_FIRST} do not "
    how += "count"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "windows.h5"
        rows = cases(folder, arguments.rehearse)
        works: dict[str, Any] = {name: partial(measured, folder, row) for name, row in rows.items()}
        plan = {
            "limit: reading the cached file, 4 threads": lambda: {"limit": read_speed(file)},
            "limit: the same, cold": lambda: cold_limit(file),
            "limit: copies from pinned memory": lambda: {"limit": bus_speed()},
            **works,
        }

        def set_up() -> dict[str, Any]:
            write(file, WINDOWS + BATCH)
            prepare(folder, arguments)
            return plan

        book = Book("loaders", COLUMNS, cells, list(plan), arguments, how)
        warm = tuple(name for name, row in rows.items() if not row.cold)
        book.run(set_up, warm)


def cold_limit(file: Path) -> dict[str, Any]:
    """It shows whether the page cache can be emptied here; the file is cached again afterwards."""
    forget(file.parent)
    speed = read_speed(file, 4)
    read_speed(file)
    return {"limit": speed}


if __name__ == "__main__":
    main()
