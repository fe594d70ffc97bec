"""Turns spans into a batch on the device: the work that all loaders share.

`B` samples, `K` spans of a sample, `W` padded width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..interfaces import Batch, Rows, Samples, Spans
from .store import Array, Store

# PyTorch on a CPU cannot index unsigned types; these have the same bits.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}


def mapped(array: Array) -> Tensor:
    """Return the array (N, *row) as a tensor over its mapped file, in an indexable dtype."""
    tensor = torch.from_numpy(array.rows())
    return tensor.view(SIGNED.get(tensor.dtype, tensor.dtype))


def stored_dtype(array: Array) -> torch.dtype:
    """Return the dtype of `Rows.values` for this array."""
    dtype: torch.dtype = getattr(torch, array.dtype)
    return dtype


def count_bytes(samples: Any, store: Store, indices: np.ndarray) -> int:
    """Return the bytes of the samples' rows as they are stored, padding included."""
    total = 0
    for name, spans in samples.spans(indices, 0).items():
        total += spans.starts.size * spans.width * store.arrays[name].row_bytes
    return total


def gather(source: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """Return rows (*starts.shape, W, *row) of `source` (N, *row), with zeros after each length.

    out: memory to reuse.
    """
    starts = np.ravel(spans.starts)
    lengths = np.ravel(spans.lengths)
    width = spans.width
    row_shape = source.shape[1:]
    values = out
    if values is None:
        values = source.new_empty((*spans.starts.shape, width, *row_shape))
    flat = values.view(len(starts), width, *row_shape)

    are_windows = bool(((lengths == width) | (lengths <= 0)).all())
    if are_windows and len(source) >= width > 0:
        _gather_windows(source, starts, lengths > 0, flat)
    else:
        for row, start, length in zip(flat, starts.tolist(), lengths.tolist(), strict=True):
            row[:length] = source[start : start + length]
            row[length:] = 0
    return values


def _gather_windows(source: Tensor, starts: np.ndarray, present: np.ndarray, out: Tensor) -> None:
    """Fill `out` (n, W, *row) with complete windows; a window that is not present is zero.

    One `index_select` over a strided view of the source is 10 to 14 times as fast as a copy for
    each window.
    """
    windows = source.unfold(0, out.shape[1], 1).movedim(-1, 1)
    first_rows = on_device(source, np.where(present, starts, 0))
    torch.index_select(windows, 0, first_rows, out=out)
    if not present.all():
        out.index_fill_(0, on_device(source, np.flatnonzero(~present)), 0)


def on_device(source: Tensor, values: np.ndarray) -> Tensor:
    """Copy the values to the device of `source`, without waiting for the GPU's earlier work."""
    return torch.from_numpy(values).to(source.device, non_blocking=True)


def deliver(
    samples: Samples,
    rows: dict[str, Rows],
    indices: np.ndarray,
    starts_sequence: np.ndarray,
    device: torch.device,
) -> Batch:
    """Return the batch on the device. A copy from pinned memory does not wait for the GPU."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    moved = {}
    for name, (values, lengths) in rows.items():
        moved[name] = Rows(move(values), move(lengths))
    batch = dict(samples.batch(moved))
    batch["index"] = move(torch.from_numpy(indices))
    batch["present"] = move(torch.from_numpy(indices >= 0))
    batch["starts_sequence"] = move(torch.from_numpy(starts_sequence))
    return batch
