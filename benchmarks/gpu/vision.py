"""Images on a GPU: where rows stay, where they are augmented, and what channels_last gains.

50,000 images of 32 pixels, as CIFAR-10 has them, and 8,000 of 224 pixels, both of random pixels,
train the network in `model.py` by the project's own loop. Rows stay on the GPU or come from the
file; crops, flips and colors run on the GPU, or on all cores of the host. Takes about 4 minutes and
3 GB of disk.

    make bench-gpu PART=vision
    make bench-gpu PART=vision ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rows import Book, begin, gain, project, share, spread, train, watched

SIZES = {32: 50_000, 224: 8_000}  # images by their side
BATCHES = {32: 512, 224: 128}
# Steps that do not count: rows are moved to the GPU after the first epoch, of 79 and 50 steps.
FIRST = {32: 100, 224: 60}
SETTINGS: dict[str, Any] = {"model.width": 64, "augment.color": 0.4, "monitor.every_steps": 10}
CASES: dict[str, dict[str, Any]] = {
    "resident, augmented on the GPU": {},
    "the same, without channels_last": {"model.channels_last": "false"},
    "from the file, augmented on the GPU": {"data.resident": "false"},
    "from the file, augmented on the host": {"data.resident": "false"},
}
COLUMNS = ["", "images/s", "range", "speed", "data wait", "GPU busy", "peak memory"]


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    SIZES.update({32: 80, 224: 24})
    BATCHES.update({32: 8, 224: 4})
    FIRST.update({32: 2, 224: 2})
    SETTINGS.update({"model.width": 4, "monitor.every_steps": 1})


def write(path: Path, side: int, count: int) -> None:
    """Random images of ten classes, as an .npz file."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, side, side, 3), np.uint8)
    np.savez(path, x=images, y=np.arange(count) % 10)


def prepare(folder: Path, side: int) -> Path:
    """Return the store of the images."""
    from forks import in_fork

    write(folder / f"{side}.npz", side, SIZES[side])
    store = folder / f"data{side}"
    words = ["prepare", "--input", str(folder / f"{side}.npz"), "--data.path", str(store)]
    assert in_fork(lambda: project("__main__").main(words)) == 0
    return store


@contextlib.contextmanager
def augmented_on_the_host() -> Iterator[None]:
    """Lets the loader's thread change the images, before they are copied to the GPU."""
    import torch

    samples = project("dataset").Samples
    rows_type = project("engine.loading.rows").Rows
    own = samples.augment

    def host(self: Any, rows: Any, indices: np.ndarray, epoch: int) -> Any:
        if not self.training:
            return rows
        image = rows["image"].values[:, 0].movedim(-1, 1)
        batch = {"image": image, "index": torch.from_numpy(indices)}
        changed = own(self, batch, epoch)["image"]
        return {**rows, "image": rows_type(changed.movedim(1, -1)[:, None])}

    samples.augment = None
    samples.host = host
    try:
        yield
    finally:
        samples.augment = own
        samples.host = None


def measured(folder: Path, overrides: dict[str, Any], on_host: bool, first: int) -> dict[str, Any]:
    """Figures of a training, without its first steps."""
    busy: list[int] = []
    with augmented_on_the_host() if on_host else contextlib.nullcontext():
        found = train(folder, overrides, around=watched(busy))
    figures = found.steady("samples_per_second", "data_wait_fraction", after=first)
    later = busy[len(busy) // 2 :]
    return figures | ({"gpu_busy_percent": statistics.median(later)} if later else {})


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    side = row["name"].partition(" ")[0]
    first = f"{side} px, {next(iter(CASES))}"
    return [
        f"{row['samples_per_second']:,.0f}",
        spread(row, "samples_per_second", ",.0f"),
        gain(row, done.get(first), "samples_per_second"),
        share(row, "data_wait_fraction"),
        f"{row['gpu_busy_percent']:.0f} %" if "gpu_busy_percent" in row else "n/a",
        f"{row['memory_gb']:.1f} GB",
    ]


def plan_of(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    for side in SIZES:
        store = prepare(folder, side)
        common = SETTINGS | {"data.path": store, "data.batch_size": BATCHES[side]}
        common |= {"training.max_steps": arguments.steps}
        if side == 224:
            common |= {"augment.crop": 0.35}
        for name, change in CASES.items():
            on_host = name.endswith("host")
            work = partial(measured, folder, common | change, on_host, FIRST[side])
            plan[f"{side} px, {name}"] = work
    return plan


def main() -> None:
    arguments = begin(__doc__, "vision", steps=200)
    if arguments.rehearse:
        shrink()
    names = [f"{side} px, {name}" for side in SIZES for name in CASES]
    how = f"batches of {BATCHES[32]} and {BATCHES[224]} images, {arguments.steps} steps a row, "
    how += f"the first {FIRST[32]} and {FIRST[224]} not counted"
    book = Book("vision", COLUMNS, cells, names, arguments, how)
    with tempfile.TemporaryDirectory() as temporary:
        book.run(lambda: plan_of(Path(temporary), arguments))


if __name__ == "__main__":
    main()
