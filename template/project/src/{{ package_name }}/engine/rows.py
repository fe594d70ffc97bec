"""From spans to a batch on the device: what every loader does around its own way of reading.

`B` samples, `K` spans of a sample, `W` padded width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .seams import Batch, Rows, Samples, Spans
from .store import Array

# CPU torch cannot index unsigned types; these have the same bits.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}


def mapped(array: Array) -> Tensor:
    """The array (N, *row) as a tensor over its mapped file, in a dtype that CPU torch can index."""
    tensor = torch.from_numpy(array.rows())
    return tensor.view(SIGNED.get(tensor.dtype, tensor.dtype))


def stored_dtype(array: Array) -> torch.dtype:
    """What `Rows.values` of this array has for a dtype."""
    return torch.bfloat16 if array.dtype == "bfloat16" else getattr(torch, array.dtype)


def gather(source: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """Rows (*starts.shape, W, *row) of `source` (N, *row), zeros behind each length; `out` is reused memory.

    Whole windows go through one `index_select` over a strided view of the source, 10-14 times
    as fast as a copy per window; ragged ones are copied one by one.
    """
    starts, lengths, width = np.ravel(spans.starts), np.ravel(spans.lengths), spans.width
    shape = (*spans.starts.shape, width, *source.shape[1:])
    values = source.new_empty(shape) if out is None else out
    flat = values.view(len(starts), width, *source.shape[1:])
    present = lengths > 0
    if ((lengths == width) | ~present).all() and len(source) >= width > 0:
        shape = (len(source) - width + 1, width, *source.shape[1:])
        windows = source.as_strided(shape, (source.stride(0), *source.stride()))
        torch.index_select(windows, 0, on_device(source, np.where(present, starts, 0)), out=flat)
        if not present.all():
            flat.index_fill_(0, on_device(source, np.flatnonzero(~present)), 0)
        return values
    for row, start, length in zip(flat, starts.tolist(), lengths.tolist(), strict=True):
        row[:length] = source[start : start + length]
        row[length:] = 0
    return values


def on_device(source: Tensor, values: np.ndarray) -> Tensor:
    """The values where `source` is, without a wait for what the GPU has to do before."""
    return torch.from_numpy(values).to(source.device, non_blocking=True)


def deliver(
    samples: Samples, rows: dict[str, Rows], numbers: np.ndarray, fresh: np.ndarray, device: torch.device
) -> Batch:
    """The batch on the device. Copies from pinned memory do not wait for the GPU."""
    moved = {name: Rows(*(x.to(device, non_blocking=True) for x in part)) for name, part in rows.items()}
    added = {"index": numbers, "present": numbers >= 0, "fresh": fresh}
    tensors = {name: torch.from_numpy(values) for name, values in added.items()}
    return samples.batch(moved) | {name: x.to(device, non_blocking=True) for name, x in tensors.items()}
