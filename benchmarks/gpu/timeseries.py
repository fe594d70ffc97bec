"""The chunk loader on a GPU: an LSTM on 51,779 windows of 360 × 167 float32, 12.4 GB, epoch after
epoch.

A map-style DataLoader (no workers, file opened once, pinned, the same order), then the chunk loader
with two chunks that take turns, with everything resident, and with the other optimizations on top.
Also what the machine allows: reading the cached file, copying from pinned memory. All
rows see the same windows in the same order. Takes about 6 minutes and 13 GB of disk.

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
from pathlib import Path
from typing import Any

import numpy as np
from rows import Book, begin, project, share, train, watched

WINDOWS, SHAPE, TARGETS, BATCH, EVERY = 51_779, (360, 167), 36, 128, 50
OFF = {
    "training.precision": "fp32",
    "optimizer.fused": "false",
    "monitor.every_steps": EVERY,
}
ON = {"training.precision": "auto", "optimizer.fused": "true"}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global WINDOWS, SHAPE, TARGETS, BATCH
    BATCH = 32
    WINDOWS = 2 * BATCH
    SHAPE = (24, 12)
    TARGETS = 2


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


def make_row_by_row(inner: Any) -> Any:
    """A loader with the face of the project's own, over a map-style DataLoader, in the project's
    order."""
    import h5py
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self, array: Any, names: tuple[str, ...]):
            file = h5py.File(array.path)
            self.sets = [file[name] for name in names]

        def __len__(self) -> int:
            return len(self.sets[0])

        def __getitem__(self, row: int) -> list[Any]:
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


def epochs(folder: Path, steps: int, overrides: dict[str, Any], loader: Any) -> dict[str, Any]:
    """Two epochs by the project's own loop; figures of the second."""
    busy: list[int] = []
    found = train(folder, overrides | {"training.max_steps": 2 * steps}, loader, watched(busy))
    figures = found.steady("step_ms", "samples_per_second", "data_wait_fraction", after=steps)
    figures["epoch_s"] = figures["step_ms"] * steps / 1000
    figures["gb_per_second"] = figures["samples_per_second"] * row_bytes() / 1e9
    figures |= {
        "loss": found.rows[-1]["loss"],
        "resident": is_resident(found.run.loader),
    }
    later = busy[len(busy) // 2 :]
    return figures | ({"gpu_busy_percent": statistics.median(later)} if later else {})


def read_speed(path: Path) -> float:
    """GB/s of reading the cached file with four threads."""
    import loaders

    size, first = path.stat().st_size, loaders.offset_of(path)
    loaders.ROW_BYTES = row_bytes()
    loaders.ROWS = (size - first) // row_bytes()
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
COLUMNS = [
    "",
    "epoch",
    "less than the first",
    "samples/s",
    "GB/s",
    "data wait",
    "GPU busy",
    "peak memory",
]
COLUMNS += ["loss"]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    if "limit" in row:
        return ["", "", "", f"{row['limit']:.1f}", "", "", "", ""]
    return [
        f"{row['epoch_s']:.1f} s",
        f"{1 - row['epoch_s'] / done[NAIVE]['epoch_s']:.1%}" if NAIVE in done else "",
        f"{row['samples_per_second']:,.0f}",
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
    modules = [str(arguments.project.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, modules))}
    environment["TRAINING_ROOT"] = str(folder)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    arguments = begin(__doc__, workload="windows", loader="chunk")
    if arguments.rehearse:
        shrink()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "windows.h5"
        write(file, WINDOWS + BATCH)
        prepare(folder, arguments)
        own = project("engine.loading.loader").Loader
        naive = make_row_by_row(own)
        common = OFF | {"data.path": folder / "data", "data.batch_size": BATCH}
        common |= {"monitor.every_steps": 1, "model.width": 16} if arguments.rehearse else {}
        # A little more than all windows take, in two halves: two batches fit into neither of them.
        little = 1.14 * WINDOWS * row_bytes() / 1e9
        two_chunks = common | {"data.chunk_size_gb": little if arguments.rehearse else 4.0}
        steps = -(-WINDOWS // BATCH)
        plan: dict[str, Any] = {
            "limit: reading the cached file, 4 threads": lambda: {"limit": read_speed(file)},
            "limit: copies from pinned memory": lambda: {"limit": bus_speed()},
        }
        for name, loader, overrides in (
            (NAIVE, naive, two_chunks),
            ("chunk loader, two chunks of 2 GB", own, two_chunks),
            ("chunk loader, resident", own, common),
            ("+ auto precision, fused AdamW", own, common | ON),
        ):
            plan[name] = lambda loader=loader, on=overrides: epochs(folder, steps, on, loader)
        how = f"{WINDOWS:,} windows of {SHAPE[0]} × {SHAPE[1]} float32"
        how += f", batch {BATCH}, the second of two epochs"
        book = Book("loaders", COLUMNS, cells, list(plan), arguments, how)
        book.run(plan, tuple(name for name in plan if not name.startswith("limit")))


if __name__ == "__main__":
    main()
