"""Loader `chunk`: reads the rows of many batches at once onto the device, ahead of the step.

Data that fit onto the device stay there. Otherwise there are two chunks on the device, one in use
and one being read, and a few blocks on the host. `data.chunk_size_gb` limits the memory on the
device. There are no worker processes, and any order works. `ChunkDataLoader` does the same for an
HDF5 file without a project.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..interfaces import Batch, Samples, Spans
from ..settings import Auto, EngineData, EngineSettings
from .chunks import Chunks
from .hdf5 import hdf5_arrays
from .order import Order
from .rows import deliver
from .store import Store


class Loader:
    """The loader `chunk`; `interfaces.Loader` describes its methods."""

    def __init__(
        self,
        samples: Samples,
        store: Store,
        settings: EngineSettings,
        order: Order,
        device: torch.device,
    ):
        self.samples = samples
        self.order = order
        self.device = device
        self._host = samples.host
        self._chunks = Chunks(
            samples,
            store.arrays,
            order,
            # If samples need work on the CPU, their rows must be there.
            holder=torch.device("cpu") if self._host else device,
            data=settings.data,
            resident=store.resident,
            trains=order.train,
        )

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch]:
        order = self.order.batches(epoch, start_batch)
        with closing(self._chunks(epoch, start_batch, len(self))) as batches:
            for indices, rows in zip(order, batches, strict=True):
                if self._host is not None:
                    rows = self._host(rows, indices, epoch)
                yield deliver(self.samples, rows, indices, epoch, self.device)

    def describe(self) -> list[dict[str, str]]:
        why = self._chunks.describe()
        return [self.order.describe(), {"name": "loader", "state": "chunk", "why": why}]

    def close(self) -> None:
        self._chunks.close()


class RowPairs:
    """The samples of `ChunkDataLoader`: one row of each dataset is a sample."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        return dict.fromkeys(self.names, Spans(indices, width=1))


class ChunkDataLoader:
    """Yields batches of an HDF5 file as tensors on the device, in the order of time or shuffled.

        with ChunkDataLoader("train.h5", batch_size=128, device="cuda") as loader:
            for epoch in range(10):
                for features, targets in loader:  # (B, T, F) and (B, H)
                    ...

    chunk_size_gb: GB on the device; "auto" uses three quarters of what is free at the first batch.
    datasets: their names in the file; rows are the first axis. reuse: the next batch may overwrite
    this one, which saves a copy. `state_dict` counts batches, so that a loader resumes with the
    next one. `num_samples`, `sequence_length` and `feature_count` are N, T and F. Raises
    `UserError` for a file that cannot be read, and for a GPU that does not exist.
    """

    def __init__(
        self,
        hdf5_path: str | Path,
        batch_size: int = 64,
        chunk_size_gb: float | Auto = "auto",
        device: str | torch.device = "cuda",
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        datasets: tuple[str, ...] = ("features", "targets"),
        reuse: bool = False,
    ):
        device = torch.device(device)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UserError("no such GPU here", f"device {device}", "use device='cpu'")
        arrays = hdf5_arrays(hdf5_path, *datasets)
        self.num_samples, *shape = arrays[datasets[0]].shape
        self.sequence_length = math.prod(shape[:-1])
        self.feature_count = math.prod(shape[-1:])
        self.datasets = datasets
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.reuse = reuse
        data = EngineData(
            order="auto" if shuffle else "time",
            batch_size=batch_size,
            chunk_size_gb=chunk_size_gb,
        )
        reproducibility = SimpleNamespace(seed=seed)
        settings: Any = SimpleNamespace(data=data, reproducibility=reproducibility)
        self.order = Order(self.num_samples, settings)
        self._epoch = 0
        self._batch = 0
        samples = RowPairs(datasets)
        self._chunks = Chunks(samples, arrays, self.order, device, data, resident={})

    def __len__(self) -> int:
        if self.drop_last:
            return self.num_samples // self.batch_size
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the remaining batches of the current epoch; the next call begins the next one."""
        with closing(self._chunks(self._epoch, self._batch, len(self))) as batches:
            for rows in batches:
                count = min(self.num_samples - self._batch * self.batch_size, self.batch_size)
                self._batch += 1
                batch = tuple(rows[name].values[:count, 0] for name in self.datasets)
                yield batch if self.reuse else tuple(tensor.clone() for tensor in batch)
        self.set_epoch(self._epoch + 1)

    @property
    def chunk_ranges(self) -> list[tuple[int, int]]:
        """First and last + 1 sample of each chunk, in the order of an epoch, if chunks are full.

        The first chunks of an epoch are smaller, so that the first batch comes early.
        """
        size = self._chunks.full_batches() * self.batch_size
        firsts = range(0, self.num_samples, size)
        return [(first, min(first + size, self.num_samples)) for first in firsts]

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch next."""
        self._epoch = epoch
        self._batch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch = state["epoch"]
        self._batch = state["batch"]

    def close(self) -> None:
        """End the reading threads and free the chunks."""
        self._chunks.close()

    def __enter__(self) -> ChunkDataLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
