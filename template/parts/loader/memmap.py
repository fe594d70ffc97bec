"""Loader `memmap`: the main process gathers each batch from the mapped file into reused, pinned buffers.

No workers: the GPU runs behind the CPU, so the gather of the next batch overlaps the step. Best for small
rows and data in the page cache (series, tokens, tables). Costs: one core; cold files are read page by page.
Where `data.resident` says so, the rows lie on the device, batches are gathered there, and nothing is copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import UserError
from .order import Order
from .resident import Extents, gather, memory_left, reach
from .rows import deliver, mapped, stored_dtype
from .seams import Batch, Rows, Spans
from .store import Store

RING = 3  # batches in flight: one the model uses, one on its way, one being gathered
SHARE = 0.5  # of the GPU memory that a step leaves free may become resident by itself


class Loader:
    """See `seams.Loader`."""

    WITHOUT_EFFECT = ("num_workers", "prefetch_factor", "persistent_workers", "chunk_size_gb")

    def __init__(self, samples: Any, store: Store, settings: Any, order: Order, device: torch.device):
        self.samples, self.store, self.order, self.device = samples, store, order, device
        self.pin = settings.data.pin_memory and device.type == "cuda"
        self._host = getattr(samples, "host", None)
        self._wanted = settings.data.resident
        if self._wanted is True and self._host and order.train and order.rank == 0:
            print("note: data.resident has no effect: the samples need work on the CPU")
        if self._host or (self._wanted == "auto" and device.type == "cpu"):  # the page cache holds them there
            self._wanted = False
        self._tried = not order.train or self._wanted is True
        self._sources: dict[str, tuple[int, Tensor]] = {}  # by array: number of the first row, rows
        self._extents: Extents = {}  # of the resident rows
        self._resident, self._room = False, 0.0
        self._ring: list[dict[str, Tensor]] = [{} for _ in range(RING)]
        self._copied: list[Any] = [None] * RING
        self._batches, self.stall_seconds = 0, 0.0

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[Batch]:
        self._settle(number)
        for numbers, fresh in self.order.batches(number, start_batch):
            slot = self._batches % RING
            if self._copied[slot] is not None:  # the copy out of this buffer, RING batches ago
                begun = time.perf_counter()
                self._copied[slot].synchronize()
                self.stall_seconds += time.perf_counter() - begun
            spans = self.samples.spans(numbers, number)
            rows = {name: self._rows(name, part, self._ring[slot]) for name, part in spans.items()}
            if self._host is not None:
                rows = self._host(rows, numbers, number)
            batch = deliver(self.samples, rows, numbers, fresh, self.device)
            if self.pin and not self._resident:  # before the step: no batch after it may be asked for
                self._copied[slot] = torch.cuda.current_stream(self.device).record_event()
            self._batches += 1
            yield batch

    def _rows(self, name: str, spans: Spans, buffers: dict[str, Tensor]) -> Rows:
        array = self.store.arrays[name]
        if name not in self._sources:
            self._sources[name] = 0, mapped(array)
        first, source = self._sources[name]
        out = None
        if not self._resident:
            shape = (*spans.starts.shape, spans.width, *source.shape[1:])
            count = torch.Size(shape).numel()
            if name not in buffers or buffers[name].numel() < count:
                buffers[name] = torch.empty(count, dtype=source.dtype, pin_memory=self.pin)
            out = buffers[name][:count].view(shape)
        starts = np.where(spans.lengths > 0, spans.starts - first, 0)
        values = gather(source, spans._replace(starts=starts), out)
        return Rows(values.view(stored_dtype(array)), torch.from_numpy(spans.lengths))

    def _settle(self, epoch: int) -> None:
        """Brings all rows that the epoch's samples reach to the device, if they shall lie there and fit.

        The first pass of training is the trial of a step: only after it is known what a step leaves free.
        """
        if not self._wanted or not self._tried:
            self._tried = True
            return
        extents, arrays = reach(self.samples, self.order, epoch, self._extents), self.store.arrays
        if extents == self._extents:
            return
        self._room = self._room or (SHARE if self._wanted == "auto" else 1) * memory_left(self.device)
        self._extents, self._sources = extents, {}
        size = sum((last - first) * arrays[name].row_bytes for name, (first, last) in extents.items())
        self._resident = size <= self._room
        if self._resident:
            for name, (first, last) in extents.items():
                self._sources[name] = first, mapped(arrays[name])[first:last].to(self.device, copy=True)
        elif self._wanted is True:
            what = f"the samples take {size / 1e9:.1f} GB, {self.device} has {self._room / 1e9:.1f} GB free"
            raise UserError(what, "data.resident true", "set it to auto")

    def stats(self) -> dict[str, float]:
        """Batches delivered so far, the bytes that the buffers hold, whether all rows are on the device."""
        held = sum(tensor.nbytes for buffers in self._ring for tensor in buffers.values())
        return {"batches": self._batches, "buffer_bytes": held, "resident": float(self._resident)}

    def close(self) -> None:
        self._sources, self._extents, self._resident = {}, {}, False
        self._ring = [{} for _ in range(RING)]
