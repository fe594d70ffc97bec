"""Loader `chunk`: reads the rows of many batches at once, ahead of the step, and cuts batches on the device.

Data that fit stay resident there. Else two chunks are on the device, one in use and one coming, and a few
blocks on the host: `data.chunk_size_gb` bounds the device's share. No worker processes, and any order.
`ChunkDataLoader` does the same for an HDF5 file, without a project around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .chunks import Chunks
from .config import LoaderSettings
from .hdf5 import hdf5_arrays
from .order import Order
from .rows import deliver
from .seams import Batch, Spans
from .store import Store


class Loader:
    """See `seams.Loader`."""

    WITHOUT_EFFECT = ("num_workers", "prefetch_factor", "persistent_workers")
    stall_seconds = 0.0

    def __init__(self, samples: Any, store: Store, settings: Any, order: Order, device: torch.device):
        data = settings.data
        self.samples, self.order, self.device = samples, order, device
        self._host = getattr(samples, "host", None)  # real work on the CPU needs the rows there
        holder = torch.device("cpu") if self._host else device
        size = None if data.chunk_size_gb == "auto" else int(data.chunk_size_gb * 1e9)
        arrays, pin = store.arrays, data.pin_memory
        self._chunks = Chunks(samples, arrays, order, holder, size, pin, order.train, data.resident)
        self._batches = 0

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[Batch]:
        with closing(self._chunks(number, start_batch, len(self))) as batches:
            for (numbers, fresh), rows in zip(self.order.batches(number, start_batch), batches, strict=True):
                if self._host is not None:
                    rows = self._host(rows, numbers, number)
                self._batches += 1
                yield deliver(self.samples, rows, numbers, fresh, self.device)

    def stats(self) -> dict[str, float]:
        """Batches delivered so far, and what `Chunks.stats` says."""
        return {"batches": self._batches, **self._chunks.stats()}

    def close(self) -> None:
        self._chunks.close()


class Pairs:
    """Rows of `features` and `targets` as samples: the spans of `ChunkDataLoader`."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        return dict.fromkeys(self.names, Spans(np.where(present, indices, 0), present.astype(np.int64), 1))


class ChunkDataLoader:
    """Batches of an HDF5 file as tensors on the device, in the order of time or shuffled anew in each epoch.

        with ChunkDataLoader("train.h5", batch_size=128, device="cuda") as loader:
            for epoch in range(10):
                for features, targets in loader:  # (B, T, F) and (B, H), valid until the next batch
                    ...

    chunk_size_gb: GB on the device, "auto" for three quarters of what is free at the first batch.
    datasets: names in the file, rows first. `state_dict` counts delivered batches, so that a loader
    goes on with the next one. Raises `UserError` for a file that cannot be read.
    """

    def __init__(
        self,
        hdf5_path: str | Path,
        batch_size: int = 64,
        chunk_size_gb: float | str = "auto",
        device: str | torch.device = "cuda",
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        datasets: tuple[str, ...] = ("features", "targets"),
    ):
        arrays = hdf5_arrays(hdf5_path, *datasets)
        self.rows, self.datasets = arrays[datasets[0]].shape[0], datasets
        self.batch_size, self.drop_last = batch_size, drop_last
        data = LoaderSettings.model_validate(
            {"order": "full" if shuffle else "time", "batch_size": batch_size}
        )
        self.order = Order(self.rows, SimpleNamespace(data=data, reproducibility=SimpleNamespace(seed=seed)))
        self._epoch, self._batch = 0, 0
        size = None if chunk_size_gb == "auto" else int(float(chunk_size_gb) * 1e9)
        self._chunks = Chunks(Pairs(datasets), arrays, self.order, torch.device(device), size)

    def __len__(self) -> int:
        return self.rows // self.batch_size if self.drop_last else len(self.order)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The rest of the current epoch; the next call begins the next one."""
        with closing(self._chunks(self._epoch, self._batch, len(self))) as batches:
            for rows in batches:
                count = min(self.rows - self._batch * self.batch_size, self.batch_size)
                self._batch += 1
                yield tuple(rows[name].values[:count, 0] for name in self.datasets)
        self._epoch, self._batch = self._epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Which shuffle comes next, from its beginning."""
        self._epoch, self._batch = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._batch = state["epoch"], state["batch"]

    def stats(self) -> dict[str, float]:
        """See `Chunks.stats`."""
        return self._chunks.stats()

    def close(self) -> None:
        """Ends the reading threads and frees the chunks."""
        self._chunks.close()

    def __enter__(self) -> ChunkDataLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
