"""Peers of the loaders: the same rows as MosaicML Streaming and WebDataset keep them.

Both convert the data first, which is not counted, and deliver through PyTorch's DataLoader.
Streaming pins an older numpy and brings 60 packages, so `make bench` gives the two an environment
of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Sizes = tuple[tuple[int, int], int]  # shape of a row's features, number of its targets


def rows_of(path: Path) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number, features, targets) of each row of the HDF5 file."""
    import h5py

    with h5py.File(path) as file:
        for start in range(0, len(file["features"]), 256):
            features, targets = (
                file[name][start : start + 256] for name in ("features", "targets")
            )
            for place, pair in enumerate(zip(features, targets, strict=True), start):
                yield place, *pair


def converted(path: Path, name: str, write: Callable[[Path], None]) -> Path:
    """The folder next to `path` in the peer's format, written once."""
    folder = path.parent / f"{path.stem}.{name}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(folder)
        (folder / "done").touch()
    return folder


def batches(dataset: Any, batch: int, workers: int) -> Callable[[int], Iterator[Any]]:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch, num_workers=workers, persistent_workers=workers > 0)

    def epoch(number: int) -> Iterator[Any]:
        for batch in loader:
            yield (batch["features"], batch["targets"]) if isinstance(batch, dict) else tuple(batch)

    return epoch


def streaming(path: Path, sizes: Sizes, batch: int, workers: int) -> Callable[[int], Iterator[Any]]:
    """MDS shards of 64 MB, shuffled by its own default."""
    import torch

    # Streaming imports torchvision for its image sets, whose operators are absent with a CPU's
    # torch.
    torch.library.register_fake = lambda *names, **more: lambda function: function
    from streaming import MDSWriter, StreamingDataset

    def write(folder: Path) -> None:
        (length, width), targets = sizes
        columns = {
            "features": f"ndarray:float32:{length},{width}",
            "targets": f"ndarray:float32:{targets}",
        }
        with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=1 << 26) as writer:
            for _, row, outcome in rows_of(path):
                writer.write({"features": row, "targets": outcome})

    local = converted(path, "mds", write) / "mds"
    return batches(
        StreamingDataset(local=str(local), shuffle=True, batch_size=batch), batch, workers
    )


def webdataset(
    path: Path, sizes: Sizes, batch: int, workers: int
) -> Callable[[int], Iterator[Any]]:
    """Tar shards of 512 rows, shuffled through a buffer of 512."""
    import torch
    import webdataset as wds

    def write(folder: Path) -> None:
        with wds.ShardWriter(str(folder / "%04d.tar"), maxcount=512, verbose=0) as sink:
            for number, features, targets in rows_of(path):
                parts = {"features.bin": features.tobytes(), "targets.bin": targets.tobytes()}
                sink.write({"__key__": f"{number:06d}", **parts})

    def decode(row: dict[str, Any]) -> tuple[Any, Any]:
        features = torch.frombuffer(bytearray(row["features.bin"]), dtype=torch.float32)
        return features.view(sizes[0]), torch.frombuffer(
            bytearray(row["targets.bin"]), dtype=torch.float32
        )

    shards = sorted(str(shard) for shard in converted(path, "wds", write).glob("*.tar"))
    return batches(
        wds.WebDataset(shards, shardshuffle=len(shards), workersplitter=wds.split_by_worker)
        .shuffle(512)
        .map(decode),
        batch,
        workers,
    )
