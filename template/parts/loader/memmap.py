"""Loader `memmap`: the main process gathers each batch from the mapped file into reused, pinned buffers.

No workers: the GPU runs behind the CPU, so the gather of the next batch overlaps the step. Best for
small rows and data in the page cache (tokens, tables). Costs: one core; cold files are read page by page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .rows import deliver, gather, mapped, order_of, stored_dtype
from .seams import Batch, Rows, Spans
from .store import Store

RING = 3  # batches in flight: one the model uses, one on its way, one being gathered


class Loader:
    """See `seams.Loader`."""

    WITHOUT_EFFECT = ("num_workers", "prefetch_factor", "persistent_workers", "chunk_size_gb")

    def __init__(
        self,
        samples: Any,
        store: Store,
        settings: Any,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        train: bool = True,
    ):
        self.samples, self.store, self.device = samples, store, device
        self.order = order_of(samples, settings, rank, world, train)
        self.pin = settings.data.pin_memory and device.type == "cuda"
        self._maps: dict[str, Tensor] = {}
        self._ring: list[dict[str, Tensor]] = [{} for _ in range(RING)]
        self._copied: list[Any] = [None] * RING
        self._batches, self.held_up = 0, 0.0

    def __len__(self) -> int:
        return len(self.order)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[Batch]:
        numbers, fresh = self.order.epoch(number)
        host = getattr(self.samples, "host", None)
        for batch in range(start_batch, len(numbers)):
            slot = self._batches % RING
            if self._copied[slot] is not None:  # the copy out of this buffer, RING batches ago
                begun = time.perf_counter()
                self._copied[slot].synchronize()
                self.held_up += time.perf_counter() - begun
            rows = {
                name: self._read(name, spans, self._ring[slot])
                for name, spans in self.samples.spans(numbers[batch], number).items()
            }
            if host is not None:
                rows = host(rows, numbers[batch], number)
            yield deliver(self.samples, rows, numbers[batch], fresh[batch], self.device)
            if self.pin:
                self._copied[slot] = torch.cuda.Event()
                self._copied[slot].record()
            self._batches += 1

    def _read(self, name: str, spans: Spans, buffers: dict[str, Tensor]) -> Rows:
        array = self.store.arrays[name]
        if name not in self._maps:
            self._maps[name] = mapped(array)
        source = self._maps[name]
        shape = (*spans.starts.shape, spans.width, *source.shape[1:])
        count = int(torch.Size(shape).numel())
        if name not in buffers or buffers[name].numel() < count:
            buffers[name] = torch.empty(count, dtype=source.dtype, pin_memory=self.pin)
        values = gather(source, spans, out=buffers[name][:count].view(shape))
        return Rows(values.view(stored_dtype(array)), torch.from_numpy(spans.lengths))

    def stats(self) -> dict[str, float]:
        """Batches delivered so far and the bytes that the buffers hold."""
        held = sum(tensor.nbytes for buffers in self._ring for tensor in buffers.values())
        return {"batches": self._batches, "buffer_bytes": held}

    def close(self) -> None:
        self._maps.clear()
        self._ring = [{} for _ in range(RING)]
