"""PyTorch's DataLoader as most projects use it, as a baseline for benchmarks.

A map-style dataset reads one sample at a time, and a collate function stacks them. Files are opened
once. The order and the batches are the same as with this project's own loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from ..engine.interfaces import Batch, Rows
from ..engine.loading.order import Order
from ..engine.loading.rows import deliver, gather, mapped
from ..engine.loading.store import Store


class Reader(Dataset):
    """A dataset that reads sample (index, epoch) as rows by array name, with a first axis of 1."""

    def __init__(self, samples: Any, store: Store):
        self.samples = samples
        self.store = store
        self.maps: dict[str, Tensor] = {}

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Rows]:
        index, epoch = key
        indices = np.array([index])
        rows = {}
        for name, spans in self.samples.spans(indices, epoch).items():
            if name not in self.maps:
                self.maps[name] = mapped(self.store.arrays[name])
            rows[name] = gather(self.maps[name], spans)
        host = self.samples.host
        if host is not None:
            rows = host(rows, indices, epoch)
        return rows

    def stack(self, samples: list[dict[str, Rows]]) -> dict[str, Rows]:
        """Stack samples, padded with zeros to the widest one."""
        rows = {}
        for name, first in samples[0].items():
            # The axis of the padded width, after (B,) or (B, K).
            axis = first.values.dim() - len(self.store.arrays[name].shape)
            values = [sample[name].values[0].movedim(axis - 1, 0) for sample in samples]
            padded = pad_sequence(values, batch_first=True).movedim(1, axis)
            lengths = None
            if first.lengths is not None:
                lengths = torch.cat([sample[name].lengths for sample in samples])
            rows[name] = Rows(padded, lengths)
        return rows


class Loader:
    """See `interfaces.Loader`."""

    def __init__(
        self, samples: Any, store: Store, settings: Any, order: Order, device: torch.device
    ):
        data = settings.data
        self.samples = samples
        self.order = order
        self.device = device
        # The settings of the loader `dataloader`; a project with another loader has none of them.
        workers: Any = getattr(data, "num_workers", "auto")
        self.workers = 0 if workers == "auto" else workers
        self.prefetch = data.prefetch_factor if self.workers else None
        self.pin = data.pin_memory and device.type == "cuda"
        self._reader = Reader(samples, store)

    def __len__(self) -> int:
        return len(self.order)

    def describe(self) -> list[dict[str, str]]:
        why = f"a baseline; {self.workers} workers"
        return [self.order.describe(), {"name": "loader", "state": "plain", "why": why}]

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        indices = self.order.indices(epoch, start_batch, len(self))
        batches = DataLoader(
            self._reader,
            batch_size=self.order.batch_size,
            sampler=[(index, epoch) for index in indices.ravel().tolist()],
            num_workers=self.workers,
            prefetch_factor=self.prefetch,
            pin_memory=self.pin,
            collate_fn=self._reader.stack,
            generator=torch.Generator(),  # not the global generator, which dropout uses
        )
        for batch, rows in enumerate(batches):
            yield deliver(self.samples, rows, indices[batch], epoch, self.device)

    def close(self) -> None:
        self._reader.maps.clear()
