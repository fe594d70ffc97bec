"""What could stay on the device: the rows that an epoch reaches, and the memory that is free for them."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from . import rows
from .order import Order
from .seams import Samples, Spans

SAMPLES_AT_ONCE = 1 << 16

Extents = dict[str, tuple[int, int]]
"""Rows [first, last) by array."""


def reach(samples: Samples, order: Order, epoch: int, known: Extents) -> Extents:
    """The rows that an epoch's samples need, widened by those that are `known`."""
    found = dict(known)
    for start in range(0, order.count, SAMPLES_AT_ONCE):
        indices = order.sample(np.arange(start, min(start + SAMPLES_AT_ONCE, order.count)))
        for name, (starts, lengths, _) in samples.spans(indices, epoch).items():
            first, last = found.get(name, (np.iinfo(np.int64).max, 0))
            first = int(starts.min(initial=first, where=lengths > 0))
            found[name] = first, int((starts + lengths).max(initial=last, where=lengths > 0))
    return {name: (min(first, last), last) for name, (first, last) in found.items()}


def memory_left(device: torch.device) -> int:
    """Bytes that the largest step so far has left free on a GPU; on a CPU what the machine has."""
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)


def gather(source: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """`rows.gather`; ragged spans on a GPU row by row at once, without waiting for it.

    Two numbers a span go there: a copy of more than 64 kB of ordinary memory may wait for the stream.
    """
    lengths, width = np.ravel(spans.lengths), spans.width
    if not source.is_cuda or ((lengths == width) | (lengths == 0)).all():
        return rows.gather(source, spans, out)
    first, count = (rows.on_device(source, np.ravel(x)[:, None]) for x in (spans.starts, lengths))
    steps = torch.arange(width, device=source.device)
    outside = steps >= count
    places = (first + steps).masked_fill_(outside, 0).flatten()
    shape = (*spans.starts.shape, width, *source.shape[1:])
    values = source.new_empty(shape) if out is None else out
    torch.index_select(source, 0, places, out=values.view(-1, *source.shape[1:]))
    outside = outside.view(*shape[: spans.starts.ndim + 1], *[1] * (source.dim() - 1))
    return values.masked_fill_(outside, 0)  # indexing by a mask would wait for the GPU
