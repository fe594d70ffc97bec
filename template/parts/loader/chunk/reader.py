"""The reads that fill a chunk with the rows of spans, and the threads that perform them.

h5py only says where an array, or each of its chunks, begins. The bytes are read by `preadv`, which
holds neither HDF5's lock nor Python's, into memory that was allocated once: new memory takes five
times as long as reading.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..interfaces import Spans
from .hdf5 import chunk_table, place_in
from .store import Array

BLOCK_BYTES = 32 << 20  # pinned memory is rounded up to a power of two (pytorch#95823)
SMALLEST_BLOCK = 8 << 20
BLOCKS_PER_THREAD = 2  # one is filled while the other is copied to the GPU
LARGE_PIECE = 16 << 10  # bytes; smaller pieces cost more to read one by one than to gather
CHANGED = "the file was truncated or changed: run `prepare` again"


class Layout(NamedTuple):
    """Where the rows of one array's spans are in a chunk, and which reads fill them."""

    starts: list[np.ndarray]  # of each batch, like `Spans.starts`, in rows of this array's part
    pieces: np.ndarray  # (n, 3) int64, by place: row in the file (−1: zeros), rows, row in the part
    rows: int
    in_place: bool  # batches are in the chunk as they are


def lay_out(spans: list[Spans], row_bytes: int) -> Layout:
    """Lay out a chunk with these batches of one array.

    In place, each span has its own slot in the order of use, zeros included, and batches are views.
    This layout is used if few rows are needed twice and the pieces are large. Otherwise each row is
    read once, in the order of the file, and batches are gathered.
    """
    starts = np.concatenate([batch.starts.ravel() for batch in spans])
    lengths = np.concatenate([batch.num_rows().ravel() for batch in spans])
    widths = np.concatenate([np.full(batch.starts.size, batch.width) for batch in spans])
    pieces, placed, rows = _slots(starts, lengths, widths)
    runs, gathered, union = _runs(starts, lengths, LARGE_PIECE // row_bytes)
    in_place = rows <= 1.25 * union and rows * row_bytes >= LARGE_PIECE * len(pieces)
    if not in_place:
        pieces = runs
        placed = gathered
        rows = union

    batch_starts = []
    first = 0
    for batch in spans:
        last = first + batch.starts.size
        batch_starts.append(placed[first:last].reshape(batch.starts.shape))
        first = last
    return Layout(batch_starts, pieces, rows, in_place)


def _slots(
    starts: np.ndarray, lengths: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return pieces, place of each span and rows, with a slot of its width for each span."""
    slots = np.cumsum(widths) - widths
    filled = np.stack([starts, lengths, slots], 1)
    zeros = np.stack([np.full_like(starts, -1), widths - lengths, slots + lengths], 1)
    pieces = np.concatenate([filled[lengths > 0], zeros[widths > lengths]])
    pieces = pieces[np.argsort(pieces[:, 2], kind="stable")]
    return _merge(pieces), slots, int(widths.sum())


def _merge(pieces: np.ndarray) -> np.ndarray:
    """Join pieces that are next to each other both in the chunk and in the file."""
    if len(pieces) == 0:
        return pieces
    row = pieces[:, 0]
    count = pieces[:, 1]
    is_next = row[1:] == row[:-1] + count[:-1]
    is_next &= (row[1:] > 0) & (row[:-1] >= 0)  # both are rows, not zeros
    opens = np.flatnonzero(np.concatenate([[True], ~is_next]))
    merged = pieces[opens]
    merged[:, 1] = np.add.reduceat(count, opens)
    return merged


def _runs(starts: np.ndarray, lengths: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return pieces, place of each span and rows, with each row once.

    Two runs with at most `gap` unneeded rows between them are one.
    """
    present = lengths > 0
    if not present.any():
        return np.zeros((0, 3), np.int64), np.full_like(starts, -1), 0
    order = np.argsort(starts[present], kind="stable")
    begin = starts[present][order]
    end = np.maximum.accumulate(begin + lengths[present][order])
    is_apart = begin[1:] > end[:-1] + gap
    opens = np.flatnonzero(np.concatenate([[True], is_apart]))
    closes = np.append(opens[1:], len(end)) - 1
    first = begin[opens]
    rows = end[closes] - first
    places = np.cumsum(rows) - rows
    run = np.searchsorted(first, starts, "right") - 1
    placed = np.where(present, places[run] + starts - first[run], -1)
    return np.stack([first, rows, places], 1), placed, int(rows.sum())


def cut(pieces: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the pieces of the rows [first, last) of a part, in the order of the file."""
    place = pieces[:, 2]
    end = place + pieces[:, 1]
    first_piece = np.searchsorted(end, first, "right")
    last_piece = np.searchsorted(place, last, "left")
    inside = pieces[first_piece:last_piece].copy()
    before = np.maximum(first - inside[:, 2], 0)
    inside[:, 0] += np.where(inside[:, 0] >= 0, before, 0)
    ends = np.minimum(inside[:, 2] + inside[:, 1], last)
    inside[:, 1] = ends - inside[:, 2] - before
    inside[:, 2] += before
    return inside[np.argsort(inside[:, 0], kind="stable")]


class Plain:
    """An array whose bytes in the file are those in memory."""

    threads = 64  # may read at the same time

    def __init__(self, array: Array):
        self.array = array
        self._origin = array.offset or 0
        try:
            self._file = os.open(array.path, os.O_RDONLY)
        except OSError as error:
            what = f"cannot open the file ({error.strerror})"
            raise UserError(what, str(array.path), "check data.path") from error

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the bytes of complete rows from `row` on."""
        self._fill(self._origin + row * self.array.row_bytes, row, into)

    def _fill(self, position: int, row: int, into: memoryview) -> None:
        missing = into
        try:
            while missing:
                count = os.preadv(self._file, [missing], position)
                if count == 0:
                    where = place_in(self.array, row, len(into))
                    raise UserError("the file ends too early", where, CHANGED)
                missing = missing[count:]
                position += count
        except OSError as error:
            what = f"cannot read from the disk ({error.strerror})"
            raise UserError(what, place_in(self.array, row, len(into)), "check the disk") from error

    def close(self) -> None:
        os.close(self._file)


class Tabled(Plain):
    """An array in chunks of complete rows as in memory, with a table of where each chunk begins."""

    def __init__(self, array: Array, rows: int, places: np.ndarray):
        super().__init__(array)
        self._rows = rows
        self._places = places.tolist()

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the bytes of complete rows from `row` on."""
        row_bytes = self.array.row_bytes
        while into:
            chunk, inside = divmod(row, self._rows)
            count = min(self._rows - inside, len(into) // row_bytes)
            position = self._places[chunk] + inside * row_bytes
            self._fill(position, row, into[: count * row_bytes])
            row += count
            into = into[count * row_bytes :]


class Filtered:
    """An array that HDF5 decompresses or converts in one thread under its lock; this is slow."""

    threads = 1

    def __init__(self, array: Array):
        import h5py

        self.array = array
        self._lock = threading.Lock()
        try:
            self._file = h5py.File(array.path)
            self._dataset = self._file[array.dataset]
        except (OSError, KeyError) as error:
            what = f"cannot open the file ({error})"
            raise UserError(what, str(array.path), CHANGED) from error

    def read(self, row: int, into: memoryview) -> None:
        """Fill `into` with the bytes of complete rows from `row` on."""
        array = self.array
        rows = np.frombuffer(into, array.stored).reshape(-1, *array.shape[1:])
        try:
            with self._lock:
                self._dataset.read_direct(rows, np.s_[row : row + len(rows)])
        except (OSError, TypeError, ValueError) as error:
            where = place_in(array, row, len(into))
            remedy = "restore the file; if only a filter is missing, run `pip install hdf5plugin`"
            raise UserError(f"HDF5 cannot read ({error})", where, remedy) from error

    def close(self) -> None:
        self._file.close()


def open_source(array: Array) -> Plain | Filtered:
    """Open an array in the fastest way. Raises `UserError` if the file cannot be opened."""
    if array.offset is not None:
        return Plain(array)
    table = chunk_table(array)
    if table is None:
        return Filtered(array)
    return Tabled(array, *table)


class Block(NamedTuple):
    """The unit that a thread reads: bytes [first, last) of a chunk, with rows of one array."""

    source: Plain | Filtered
    first: int
    last: int
    pieces: np.ndarray  # (n, 3) int64: row in the file (−1: zeros), rows, byte in the chunk


class Reader:
    """A few threads that fill chunks, block by block and in order.

    On a CPU they read into the chunk itself. For a GPU each thread has two pinned blocks and a
    stream: while one block is copied, the other is read. Host memory stays at `block_bytes` ×
    blocks.
    """

    def __init__(self, device: torch.device, sources: Sequence[Plain | Filtered], pin: bool):
        self.device = device
        cores = os.cpu_count() or 1
        threads = 4 if cores >= 8 else min(cores, 2)
        self.threads = min([threads, *(source.threads for source in sources)])
        row_bytes = max(source.array.row_bytes for source in sources)
        self.block_bytes = max(BLOCK_BYTES, row_bytes)
        self._staging: list[Tensor] = []
        if device.type == "cuda":
            self._staging = self._allocate(pin, max(SMALLEST_BLOCK, row_bytes))
        self._own = threading.local()
        name = "chunk-reader"
        self._pool = ThreadPoolExecutor(self.threads, name, on_device, (device_of(device),))

    def _allocate(self, pin: bool, least: int) -> list[Tensor]:
        """Allocate pinned blocks; if the system refuses, smaller ones or pageable memory."""
        count = self.threads * BLOCKS_PER_THREAD
        size = self.block_bytes
        while pin and size >= least:
            try:
                blocks = []
                for _ in range(count):
                    blocks.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
                self.block_bytes = size
                return blocks
            except RuntimeError:
                size //= 2
        if pin:
            reason = "there is no pinned memory left"
            print(f"note: {reason}, so copies to the GPU do not overlap with the step")
        return [host_memory(self.block_bytes) for _ in range(count)]

    def fill(self, memory: Tensor, block: Block, free: Any) -> Future:
        """Start reading `block` into `memory` (bytes); the result is a CUDA event, None on a CPU.

        free: event after which the GPU no longer uses what `memory` held before.
        """
        if self.device.type == "cuda":
            return self._pool.submit(self._through_host, memory, block, free)
        return self._pool.submit(_read, block, memory.numpy().data, 0)

    def _through_host(self, memory: Tensor, block: Block, free: Any) -> Any:
        own = self._own
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(self.device)
            own.turn = 0
            own.blocks = []
            for _ in range(BLOCKS_PER_THREAD):
                own.blocks.append((self._staging.pop(), torch.cuda.Event()))
        host, copied = own.blocks[own.turn % BLOCKS_PER_THREAD]
        own.turn += 1
        copied.synchronize()  # the copy out of this block, two blocks ago
        _read(block, host.numpy().data, block.first)

        with torch.cuda.stream(own.stream):
            if free is not None:
                own.stream.wait_event(free)
            size = block.last - block.first
            memory[block.first : block.last].copy_(host[:size], non_blocking=True)
            copied.record(own.stream)
            done = torch.cuda.Event()
            done.record(own.stream)
        return done

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


def _read(block: Block, view: memoryview, origin: int) -> None:
    """Read the pieces of a block into `view`, which begins at byte `origin` of the chunk."""
    row_bytes = block.source.array.row_bytes
    for row, rows, place in block.pieces.tolist():
        first = place - origin
        into = view[first : first + rows * row_bytes]
        if row < 0:
            np.frombuffer(into, np.uint8)[:] = 0
        else:
            block.source.read(row, into)


def device_of(device: torch.device) -> torch.device:
    """Return the device with its number; without one, that of the current thread."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device).device
    return device


def on_device(device: torch.device) -> None:
    """Put a thread on its GPU. Threads begin on GPU 0, where a stream would take 500 MB."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def host_memory(size: int) -> Tensor:
    """Allocate bytes to be reused. numpy asks the system for huge pages, torch does not."""
    return torch.from_numpy(np.empty(size, np.uint8))
