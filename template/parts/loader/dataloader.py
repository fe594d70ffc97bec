"""Loader `dataloader`: PyTorch's DataLoader, whose worker processes read the rows of spans.

The main process makes the spans and a worker only reads rows, so any number of workers gives the
same batches. It is best if samples need real CPU work (`Samples.host`), or if the disk is slow.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from multiprocessing.queues import Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..errors import UserError, note
from ..interfaces import Batch, Samples, Spans
from ..settings import EngineSettings
from ..signals import NUMBERS
from .order import Order
from .rows import deliver, gather, mapped
from .store import Store

SMALL_BATCH_BYTES = 1 << 20  # below this, passing a batch between processes costs more than reading


Work = tuple[np.ndarray, dict[str, Spans], int]
"""One batch to read: the indices of its samples (B,), their spans, and the epoch."""


class Reader(Dataset[Any]):
    """Reads a batch in the process that calls it, which maps the files at its first batch."""

    def __init__(self, store: Store, host: Any):
        self.store = store
        self.host = host
        self._maps: dict[str, Tensor] = {}

    def __getitem__(self, work: Work) -> tuple[Any, ...]:
        """Return indices and rows; or an error, which a worker cannot raise.

        PyTorch would add the worker's traceback to its text.
        """
        indices, spans_by_name, epoch = work
        rows = {}
        try:
            for name, spans in spans_by_name.items():
                if name not in self._maps:
                    self._maps[name] = mapped(self.store.arrays[name])
                rows[name] = gather(self._maps[name], spans, _empty)
            if self.host is not None:
                rows = self.host(rows, indices, epoch)
        except UserError as error:
            return (error,)
        return indices, rows


class Loader:
    """The loader `dataloader`; `interfaces.Loader` describes its methods."""

    def __init__(
        self,
        samples: Samples,
        store: Store,
        settings: EngineSettings,
        order: Order,
        device: torch.device,
    ):
        data = settings.data
        self.samples = samples
        self.order = order
        self.device = device
        self.workers = data.num_workers
        reader = Reader(store, samples.host)
        if self.workers == "auto":
            self.workers = self._automatic_workers(reader)
        self._epoch = 0
        self._start = 0
        self._loader: DataLoader[Any] = DataLoader(
            reader,
            batch_size=None,
            sampler=self,  # iterated in the main process, once an epoch
            num_workers=self.workers,
            collate_fn=tuple,
            pin_memory=data.pin_memory and device.type == "cuda",
            prefetch_factor=data.prefetch_factor if self.workers else None,
            persistent_workers=data.persistent_workers and self.workers > 0,
            # Otherwise it would draw from the global one, and dropout would depend on the workers.
            generator=torch.Generator(),
            worker_init_fn=prepare_worker,
        )

    def _automatic_workers(self, reader: Reader) -> int:
        """Return half of the cores, up to 8; 0 if a batch is small and needs no CPU work."""
        indices = np.arange(min(self.order.batch_size, self.order.count))
        batch_bytes = 0
        for name, spans in self.samples.spans(indices, 0).items():
            row_bytes = reader.store.arrays[name].row_bytes
            batch_bytes += spans.starts.size * spans.width * row_bytes
        if reader.host is None and batch_bytes < SMALL_BATCH_BYTES:
            return 0
        processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # torchrun sets it
        return min(8, max((os.cpu_count() or 2) // 2 // processes, 1))

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Work]:
        """Yield the work of the current epoch (DataLoader's sampler protocol)."""
        for indices in self.order.batches(self._epoch, self._start):
            yield indices, self.samples.spans(indices, self._epoch), self._epoch

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch]:
        self._epoch = epoch
        self._start = start_batch
        try:
            for result in self._loader:
                if isinstance(result[0], UserError):
                    raise result[0]
                indices, rows = result
                yield deliver(self.samples, rows, indices, epoch, self.device)
        except (RuntimeError, OSError, EOFError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        """Return the line for what ends workers, or the error itself."""
        if hasattr(signal, "SIGCHLD"):
            # torch would print a traceback for each worker that ends with this process.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        said = f"{error} {error.__cause__}"
        remedy = "lower data.num_workers, or set ALLOW_UNSAFE_DATALOADER=0 for a single process"
        if "shared memory" in said or "No space left" in said:
            what = "the shared memory (/dev/shm) is too small"
            remedy = f"start a container with --ipc=host or --shm-size=8g, {remedy}"
        elif "Too many open files" in said or "ancdata" in said:
            what = "too many open files"
            remedy = f"raise the limit, as with ulimit -n 65536, {remedy}"
        elif "DataLoader worker" in said or isinstance(error, ConnectionError | EOFError):
            what = "a loader worker died"
            remedy = f"often memory ran out: {remedy}"
        else:
            return error
        return UserError(what, f"{self.workers} workers", remedy)

    def describe(self) -> list[dict[str, str]]:
        why = "data.num_workers: the main process reads"
        if self.workers:
            ahead = self._loader.prefetch_factor
            kept = "persistent" if self._loader.persistent_workers else "new in each epoch"
            why = f"data.num_workers: {self.workers} workers, {kept}, prefetch {ahead} batches each"
        why += "; nothing is resident"
        return [self.order.describe(), {"name": "loader", "state": "dataloader", "why": why}]

    def close(self) -> None:
        self._loader._iterator = None  # ends persistent workers


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate shared memory in a worker, which saves a copy, as `default_collate` does."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device=device)
    size = torch.Size(shape).numel() * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def prepare_worker(worker: int) -> None:
    """Let the main process handle signals: a terminal sends them to the workers, too."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Python would drop a batch that it cannot pass, and the main process would wait for it.
    Queue._on_queue_feeder_error = staticmethod(end_worker)  # type: ignore[attr-defined]


def end_worker(error: Exception, batch: object) -> None:
    """End a worker that cannot pass a batch, so that the main process notices."""
    note(f"a loader worker cannot pass a batch: {error}")
    os._exit(1)
