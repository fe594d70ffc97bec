"""The threads that read the rows of a file into chunks.

h5py only says where an array, or each of its chunks, begins. The bytes are read by `preadv`, which
holds neither HDF5's lock nor Python's, into memory that was allocated once: new memory takes five
times as long as reading.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .hdf5 import chunk_table, place_in
from .store import Array

BLOCK_BYTES = 32 << 20  # pinned memory is rounded up to a power of two (pytorch#95823)
BLOCKS_PER_THREAD = 2  # one is filled while the other is copied to the GPU


class Plain:
    """An array whose rows in the file are those in memory, in one piece or in chunks.

    chunk_rows: rows of each chunk. places: the byte where each chunk begins.
    """

    def __init__(self, array: Array, chunk_rows: int, places: list[int]):
        self.array = array
        self._chunk_rows = chunk_rows
        self._places = places
        self._file = os.open(array.path, os.O_RDONLY)

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the bytes of complete rows from `row` on."""
        row_bytes = self.array.row_bytes
        while into:
            chunk, inside = divmod(row, self._chunk_rows)
            num_rows = min(self._chunk_rows - inside, len(into) // row_bytes)
            self._fill(self._places[chunk] + inside * row_bytes, into[: num_rows * row_bytes], row)
            row += num_rows
            into = into[num_rows * row_bytes :]

    def _fill(self, position: int, into: memoryview, row: int) -> None:
        while into:
            count = os.preadv(self._file, [into], position)
            if count == 0:
                remedy = "the file was truncated or changed: run `prepare` again"
                where = place_in(self.array, row, len(into))
                raise UserError("the file ends too early", where, remedy)
            into = into[count:]
            position += count

    def close(self) -> None:
        os.close(self._file)


class Filtered:
    """An array that HDF5 decompresses or converts, in one thread; this is slow."""

    def __init__(self, array: Array):
        import h5py

        self.array = array
        self._file = h5py.File(array.path)
        self._dataset = self._file[array.dataset]

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the bytes of complete rows from `row` on."""
        array = self.array
        rows = np.frombuffer(into, array.stored).reshape(-1, *array.shape[1:])
        try:
            self._dataset.read_direct(rows, np.s_[row : row + len(rows)])
        except (OSError, TypeError, ValueError) as error:
            where = place_in(array, row, len(into))
            remedy = "restore the file; if only a filter is missing, run `pip install hdf5plugin`"
            raise UserError(f"HDF5 cannot read ({error})", where, remedy) from error

    def close(self) -> None:
        self._file.close()


def open_source(array: Array) -> Plain | Filtered:
    """Open an array in the fastest way."""
    if array.offset is not None:
        return Plain(array, array.shape[0], [array.offset])
    table = chunk_table(array)
    if table is None:
        return Filtered(array)
    return Plain(array, *table)


class ReadBlock(NamedTuple):
    """The unit that a thread reads: rows of one array."""

    source: Plain | Filtered
    memory: Tensor  # its bytes in the chunk
    runs: np.ndarray  # (n, 3) int64: first row in the file, number of rows, first row in the block


class Reader:
    """A few threads that fill chunks, block by block and in order.

    On a CPU they read into the chunk itself. For a GPU they read into pinned blocks on the host:
    while one block is copied, others are read.
    """

    def __init__(self, device: torch.device, sources: Sequence[Plain | Filtered], pin: bool):
        self.device = device
        cores = os.cpu_count() or 1
        threads = 4 if cores >= 8 else min(cores, 2)
        if any(isinstance(source, Filtered) for source in sources):
            # HDF5 locks the whole library during a read, so further threads would only wait.
            threads = 1
        self.block_bytes = max(BLOCK_BYTES, *(source.array.row_bytes for source in sources))
        if device.type == "cpu":
            self._pool = ThreadPoolExecutor(threads, "chunk-reader")
            return

        # Each block, and the event after which it is free.
        self._staging: SimpleQueue[tuple[Tensor, torch.cuda.Event]] = SimpleQueue()
        for block in host_blocks(threads * BLOCKS_PER_THREAD, self.block_bytes, pin):
            self._staging.put((block, torch.cuda.Event()))
        self._stream = torch.cuda.Stream(device)
        # Threads begin on GPU 0, where leaving a stream would take 500 MB.
        gpu = self._stream.device
        self._pool = ThreadPoolExecutor(threads, "chunk-reader", torch.cuda.set_device, (gpu,))

    def fill(self, block: ReadBlock, free: Any) -> Future:
        """Start reading a block; the result is a CUDA event, None on a CPU.

        free: event after which the GPU no longer uses what the block's memory held before.
        """
        if self.device.type == "cpu":
            return self._pool.submit(_read, block, block.memory)
        return self._pool.submit(self._through_host, block, free)

    def _through_host(self, block: ReadBlock, free: Any) -> Any:
        host, copied = self._staging.get()
        try:
            copied.synchronize()  # the copy of an earlier block
            staged = host[: len(block.memory)]
            _read(block, staged)
            with torch.cuda.stream(self._stream):
                # Earlier steps may still read what this memory held before.
                self._stream.wait_event(free)
                block.memory.copy_(staged, non_blocking=True)
                copied = torch.cuda.Event()
                copied.record(self._stream)
        finally:
            # After an error, too: the other threads wait for a block.
            self._staging.put((host, copied))
        return copied

    def wait(self, read: Future) -> None:
        """Wait for a read, and let the GPU's current stream wait for its copy."""
        copied = read.result()
        if copied is not None:
            torch.cuda.current_stream(self.device).wait_event(copied)

    def close(self) -> None:
        """End the threads; reads that have not begun are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.device.type == "cuda":
            # Copies in progress write into memory that is about to be freed. A GPU that has failed
            # raises in each call.
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self.device)


def _read(block: ReadBlock, memory: Tensor) -> None:
    """Read the rows of a block into `memory`."""
    view = memory.numpy().data
    row_bytes = block.source.array.row_bytes
    for row, num_rows, place in block.runs.tolist():
        block.source.read(row, view[place * row_bytes : (place + num_rows) * row_bytes])


def host_blocks(count: int, size: int, pin: bool) -> list[Tensor]:
    """Allocate blocks on the host, pinned if the system allows it."""
    if pin:
        try:
            return [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
        except RuntimeError:
            reason = "there is no pinned memory left"
            print(f"note: {reason}, so copies to the GPU do not overlap with the step")
    return [host_memory(size) for _ in range(count)]


def host_memory(size: int) -> Tensor:
    """Allocate bytes to be reused. numpy asks the system for huge pages, torch does not."""
    return torch.from_numpy(np.empty(size, np.uint8))
