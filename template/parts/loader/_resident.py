"""Data that stay on the device: which rows an epoch needs, and how much memory is free for them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..interfaces import Samples, Spans
from . import rows
from .order import Order

SAMPLES_AT_ONCE = 1 << 16

Extents = dict[str, tuple[int, int]]
"""Rows [first, last) by array."""


def needed_rows(samples: Samples, order: Order, epoch: int, known: Extents) -> Extents:
    """Return the rows that an epoch's samples need, together with those that are `known`."""
    extents = dict(known)
    for start in range(0, order.count, SAMPLES_AT_ONCE):
        end = min(start + SAMPLES_AT_ONCE, order.count)
        indices = order.sample(np.arange(start, end))
        for name, (starts, lengths, _) in samples.spans(indices, epoch).items():
            first, last = extents.get(name, (np.iinfo(np.int64).max, 0))
            present = lengths > 0
            first = int(starts.min(initial=first, where=present))
            last = int((starts + lengths).max(initial=last, where=present))
            extents[name] = (first, last)
    return {name: (min(first, last), last) for name, (first, last) in extents.items()}


def memory_left(device: torch.device) -> float:
    """Return the bytes that the largest step has left free on a GPU.

    On a CPU, rows are resident only if `data.resident` is true, and nothing limits them.
    """
    if device.type == "cpu":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)


def gather_ragged(source: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """Do the same as `rows.gather`, but gather ragged spans on a GPU at once, without waiting."""
    is_whole = (spans.lengths == spans.width) | (spans.lengths == 0)
    if not source.is_cuda or is_whole.all():
        return rows.gather(source, spans, out)

    # Only two numbers per span are copied: a copy of more than 64 kB from pageable memory may wait
    # for the stream.
    first = rows.on_device(source, np.ravel(spans.starts)[:, None])
    lengths = rows.on_device(source, np.ravel(spans.lengths)[:, None])
    steps = torch.arange(spans.width, device=source.device)
    outside = steps >= lengths
    places = (first + steps).masked_fill_(outside, 0).flatten()

    row_shape = source.shape[1:]
    shape = (*spans.starts.shape, spans.width)
    values = out
    if values is None:
        values = source.new_empty((*shape, *row_shape))
    torch.index_select(source, 0, places, out=values.view(-1, *row_shape))
    # Indexing by a mask would wait for the GPU.
    return values.masked_fill_(outside.view(*shape, *[1] * len(row_shape)), 0)
