"""Loader `memmap`: the main process gathers each batch with one call, from the mapped file or from
rows that stay on the device.

There are no workers: the GPU runs behind the CPU, so the next batch is gathered during the step.
It is best for small rows and data in the page cache (series, tokens, tables). It needs one core,
and reads cold files page by page.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..compute.gpus import memory_left
from ..errors import UserError
from ..interfaces import Batch, Rows, Spans
from .order import Order
from .rows import deliver, gather, mapped
from .store import Store

FRACTION = 0.5  # of the GPU memory that a step leaves free: the most for `data.resident auto`


class Loader:
    """The loader `memmap`; `interfaces.Loader` describes its methods."""

    def __init__(
        self, samples: Any, store: Store, settings: Any, order: Order, device: torch.device
    ):
        self.samples = samples
        self.store = store
        self.order = order
        self.device = device
        # PyTorch uses pinned memory again only when the copy from it is done.
        pin = settings.data.pin_memory and device.type == "cuda"
        self._empty = partial(torch.empty, pin_memory=pin)
        self._mapped: dict[str, Tensor] = {}
        self._host = getattr(samples, "host", None)
        self._wanted = settings.data.resident
        # If samples need work on the CPU, their rows must be there. If the device is a CPU, the
        # page cache has the rows.
        if self._host or (self._wanted == "auto" and device.type == "cpu"):
            self._wanted = False
        # The first pass of training shows how much memory a step leaves free.
        self._is_first = order.train and self._wanted == "auto"

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        if self._wanted and not self._is_first:
            self._keep_on_device()
        self._is_first = False
        for indices in self.order.batches(epoch, start_batch):
            rows = {}
            for name, spans in self.samples.spans(indices, epoch).items():
                rows[name] = self._read(name, spans)
            if self._host is not None:
                rows = self._host(rows, indices, epoch)
            yield deliver(self.samples, rows, indices, self.device)

    def _read(self, name: str, spans: Spans) -> Rows:
        if self._wanted and name in self.store.resident:
            return gather(self.store.resident[name], spans)
        if name not in self._mapped:
            self._mapped[name] = mapped(self.store.arrays[name])
        return gather(self._mapped[name], spans, self._empty)

    def _keep_on_device(self) -> None:
        """Copy the samples' arrays to the device if they fit; all loaders of the store share them.

        Raises `UserError` if they must fit and do not.
        """
        names = self.samples.spans(np.zeros(1, np.int64), 0).keys() - self.store.resident.keys()
        size = 0
        for name in names:
            array = self.store.arrays[name]
            size += array.shape[0] * array.row_bytes
        free = memory_left(self.device)
        if self._wanted == "auto":
            free *= FRACTION
        if size <= free:
            for name in names:
                rows = mapped(self.store.arrays[name])
                self.store.resident[name] = rows.to(self.device, copy=True)
        elif self._wanted is True:
            what = f"the samples take {size / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free"
            raise UserError(what, "data.resident true", "set it to auto")
        else:
            self._wanted = False

    def close(self) -> None:
        self._mapped = {}
        self.store.resident.clear()
