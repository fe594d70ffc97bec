"""Loader `memmap`: the main process gathers each batch with one call, from the mapped file or from
rows that stay on the device.

There are no workers: the GPU runs behind the CPU, so the next batch is gathered during the step.
It is best for small rows and data in the page cache (series, tokens, tables). It needs one core,
and reads cold files page by page.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..errors import note
from ..interfaces import Batch, Rows, Samples, Spans
from ..settings import EngineSettings
from .order import Order
from .rows import deliver, gather, mapped
from .store import Store

FRACTION = 0.5  # of the GPU memory that a step leaves free: the most for `data.resident auto`


class Loader:
    """The loader `memmap`; `interfaces.Loader` describes its methods."""

    def __init__(
        self,
        samples: Samples,
        store: Store,
        settings: EngineSettings,
        order: Order,
        device: torch.device,
    ):
        self.samples = samples
        self.store = store
        self.order = order
        self.device = device
        # PyTorch uses pinned memory again only when the copy from it is done.
        pin = settings.data.pin_memory and device.type == "cuda"
        self._empty = partial(torch.empty, pin_memory=pin)
        self._mapped: dict[str, Tensor] = {}
        self._host = samples.host
        self._wanted = settings.data.resident
        # If samples need work on the CPU, their rows must be there. If the device is a CPU, the
        # page cache has the rows.
        if self._host or (self._wanted == "auto" and device.type == "cpu"):
            self._wanted = False
        # The first pass of training shows how much memory a step leaves free.
        self._is_first = order.train and self._wanted == "auto"

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch]:
        if self._wanted and not self._is_first:
            self._keep_on_device()
        self._is_first = False
        for indices in self.order.batches(epoch, start_batch):
            rows = {}
            for name, spans in self.samples.spans(indices, epoch).items():
                rows[name] = self._read(name, spans)
            if self._host is not None:
                rows = self._host(rows, indices, epoch)
            yield deliver(self.samples, rows, indices, epoch, self.device)

    def _read(self, name: str, spans: Spans) -> Rows:
        if self._wanted and name in self.store.resident:
            return gather(self.store.resident[name], spans)
        if name not in self._mapped:
            self._mapped[name] = mapped(self.store.arrays[name])
        return gather(self._mapped[name], spans, self._empty)

    def _keep_on_device(self) -> None:
        """Copy the samples' arrays to the device; all loaders of the store share them.

        With `auto`, they are copied only if enough memory is free.
        """
        names = self.samples.spans(np.zeros(1, np.int64), 0).keys() - self.store.resident.keys()
        rows = {name: mapped(self.store.arrays[name]) for name in names}
        size = sum(values.nbytes for values in rows.values())
        if self._wanted == "auto" and size > FRACTION * memory_left(self.device):
            self._wanted = False
            note(f"data.resident: {size / 1e9:.2g} GB do not fit on the device: rows are read")
            return
        for name, values in rows.items():
            self.store.resident[name] = values.to(self.device, copy=True)

    def describe(self) -> list[dict[str, str]]:
        where = "stay on the device if they fit" if self._wanted else "are read from the files"
        why = f"data.resident: rows {where}; no workers"
        return [self.order.describe(), {"name": "loader", "state": "memmap", "why": why}]

    def close(self) -> None:
        self._mapped = {}


def memory_left(device: torch.device) -> int:
    """Return the bytes that the largest step has left free on a GPU."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
