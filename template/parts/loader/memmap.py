"""Loader `memmap`: the main process gathers each batch from the mapped file into reused buffers.

There are no workers: the GPU runs behind the CPU, so the next batch is gathered during the step.
It is best for small rows and data in the page cache (series, tokens, tables). It needs one core,
and reads cold files page by page. With `data.resident` the rows are on the device, batches are
gathered there, and nothing is copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..interfaces import Batch, Rows, Spans
from .order import Order
from .resident import Extents, gather_ragged, memory_left, needed_rows
from .rows import deliver, mapped, stored_dtype
from .store import Store

RING = 3  # batches in flight: one that the model uses, one being copied, one being gathered
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
        self.pin = settings.data.pin_memory and device.type == "cuda"
        self._host = getattr(samples, "host", None)
        self._wanted = settings.data.resident
        # If samples need work on the CPU, their rows must be there. If the device is a CPU, the
        # page cache has the rows.
        if self._host or (self._wanted == "auto" and device.type == "cpu"):
            self._wanted = False
        self._tried = not order.train or self._wanted is True
        self._sources: dict[str, tuple[int, Tensor]] = {}  # by array: first row, and the rows
        self._extents: Extents = {}  # of the resident rows
        self._resident = False
        self._room = 0.0
        self._ring: list[dict[str, Tensor]] = [{} for _ in range(RING)]
        self._copied: list[Any] = [None] * RING
        self._batches = 0
        self.stall_seconds = 0.0

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        self._settle(epoch)
        for indices, starts_sequence in self.order.batches(epoch, start_batch):
            slot = self._batches % RING
            self._wait_for_copy(slot)
            rows = {}
            for name, spans in self.samples.spans(indices, epoch).items():
                rows[name] = self._rows(name, spans, self._ring[slot])
            if self._host is not None:
                rows = self._host(rows, indices, epoch)
            batch = deliver(self.samples, rows, indices, starts_sequence, self.device)
            # Before the step, because the loop may ask for no further batch.
            if self.pin and not self._resident:
                self._copied[slot] = torch.cuda.current_stream(self.device).record_event()
            self._batches += 1
            yield batch

    def _wait_for_copy(self, slot: int) -> None:
        """Wait until the batch that used this buffer, `RING` batches ago, is on the GPU."""
        if self._copied[slot] is not None:
            start_time = time.perf_counter()
            self._copied[slot].synchronize()
            self.stall_seconds += time.perf_counter() - start_time

    def _rows(self, name: str, spans: Spans, buffers: dict[str, Tensor]) -> Rows:
        array = self.store.arrays[name]
        if name not in self._sources:
            self._sources[name] = (0, mapped(array))
        first, source = self._sources[name]
        out = None
        if not self._resident:
            shape = torch.Size((*spans.starts.shape, spans.width, *source.shape[1:]))
            count = shape.numel()
            if name not in buffers or buffers[name].numel() < count:
                buffers[name] = torch.empty(count, dtype=source.dtype, pin_memory=self.pin)
            out = buffers[name][:count].view(shape)
        starts = np.where(spans.lengths > 0, spans.starts - first, 0)
        values = gather_ragged(source, spans._replace(starts=starts), out)
        return Rows(values.view(stored_dtype(array)), torch.from_numpy(spans.lengths))

    def _settle(self, epoch: int) -> None:
        """Copy all rows that the epoch's samples need to the device, if that is wanted and fits.

        The first pass of training runs without it, and shows how much memory a step leaves free.
        """
        if not self._wanted or not self._tried:
            self._tried = True
            return
        extents = needed_rows(self.samples, self.order, epoch, self._extents)
        if extents == self._extents:
            return

        if not self._room:
            fraction = FRACTION if self._wanted == "auto" else 1
            self._room = fraction * memory_left(self.device)
        self._extents = extents
        self._sources = {}
        size = 0
        for name, (first, last) in extents.items():
            size += (last - first) * self.store.arrays[name].row_bytes
        self._resident = size <= self._room
        if self._resident:
            for name, (first, last) in extents.items():
                rows = mapped(self.store.arrays[name])[first:last]
                self._sources[name] = (first, rows.to(self.device, copy=True))
        elif self._wanted is True:
            free = f"{self.device} has {self._room / 1e9:.1f} GB free"
            what = f"the samples take {size / 1e9:.1f} GB, but {free}"
            raise UserError(what, "data.resident true", "set it to auto")

    def stats(self) -> dict[str, float]:
        """Batches so far, and whether all rows are on the device."""
        return {"batches": self._batches, "resident": float(self._resident)}

    def close(self) -> None:
        self._sources = {}
        self._extents = {}
        self._resident = False
        self._ring = [{} for _ in range(RING)]
