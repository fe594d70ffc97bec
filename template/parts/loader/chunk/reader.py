"""From spans to rows in reused memory: which reads a chunk needs, and the threads that carry them out.

h5py only says where an array, or each of its chunks, lies. The bytes come by `preadv`, which holds
neither HDF5's lock nor Python's, and land in memory that was allocated once: fresh memory costs five
times what reading does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import UserError
from .hdf5 import chunk_table, place_in
from .seams import Spans
from .store import Array

BLOCK_BYTES = 32 << 20  # page-locked memory is rounded up to a power of two (pytorch#95823)
SMALLEST_BLOCK = 8 << 20
BLOCKS_PER_THREAD = 2  # one is filled while the other is on its way to the GPU
LARGE_PIECE = 16 << 10  # bytes; smaller pieces cost more to read one by one than to gather
CHANGED = "the file was cut or changed: run `prepare` again"


class Layout(NamedTuple):
    """Where the rows of one array's spans lie in a chunk, and which reads bring them there."""

    starts: list[np.ndarray]  # of each batch, like `Spans.starts`, in rows of this array's part of the chunk
    pieces: np.ndarray  # (n, 3) int64, by place: row in the file (−1: zeros), rows, row in the part
    rows: int
    in_place: bool  # batches stand in the chunk as they are


def lay_out(spans: list[Spans], row_bytes: int) -> Layout:
    """The layout of a chunk with these batches of one array.

    In place, each span has a slot of its own in the order of visit, zeros included, and batches are
    views. That fits where hardly a row is needed twice and the pieces are large. Else each row is
    read once, in the order of the file, and batches are gathered.
    """
    starts = np.concatenate([part.starts.ravel() for part in spans])
    lengths = np.concatenate([part.lengths.ravel() for part in spans])
    widths = np.concatenate([np.full(part.starts.size, part.width) for part in spans])
    pieces, placed, rows = _slots(starts, lengths, widths)
    runs, gathered, union = _runs(starts, lengths, LARGE_PIECE // row_bytes)
    in_place = rows <= 1.25 * union and rows * row_bytes >= LARGE_PIECE * len(pieces)
    if not in_place:
        pieces, placed, rows = runs, gathered, union
    parts = np.split(placed, np.cumsum([part.starts.size for part in spans])[:-1])
    shaped = [new.reshape(part.starts.shape) for new, part in zip(parts, spans, strict=True)]
    return Layout(shaped, pieces, rows, in_place)


def _slots(starts: np.ndarray, lengths: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Pieces, place of each span and rows, with a slot of its width for each span."""
    slots = np.cumsum(widths) - widths
    found = np.stack([starts, lengths, slots], 1)
    zeros = np.stack([np.full_like(starts, -1), widths - lengths, slots + lengths], 1)
    pieces = np.concatenate([found[lengths > 0], zeros[widths > lengths]])
    pieces = pieces[np.argsort(pieces[:, 2], kind="stable")]
    row, count = pieces[:, 0], pieces[:, 1]
    joins = (row[1:] == row[:-1] + count[:-1]) & (row[1:] > 0) & (row[:-1] >= 0)
    opens = np.flatnonzero(np.concatenate([[True], ~joins])) if len(pieces) else np.arange(0)
    merged = pieces[opens]
    if len(pieces):
        merged[:, 1] = np.add.reduceat(count, opens)
    return merged, slots, int(widths.sum())


def _runs(starts: np.ndarray, lengths: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Pieces, place of each span and rows: each row once, and up to `gap` unneeded ones between two runs."""
    present = lengths > 0
    if not present.any():
        return np.zeros((0, 3), np.int64), np.zeros_like(starts), 0
    order = np.argsort(starts[present], kind="stable")
    begin = starts[present][order]
    end = np.maximum.accumulate(begin + lengths[present][order])
    opens = np.flatnonzero(np.concatenate([[True], begin[1:] > end[:-1] + gap]))
    first = begin[opens]
    rows = end[np.append(opens[1:], len(end)) - 1] - first
    places = np.cumsum(rows) - rows
    run = np.searchsorted(first, starts, "right") - 1
    placed = np.where(present, places[run] + starts - first[run], 0)
    return np.stack([first, rows, places], 1), placed, int(rows.sum())


def cut(pieces: np.ndarray, first: int, last: int) -> np.ndarray:
    """The pieces of the rows [first, last) of a part, in the order of the file."""
    place, end = pieces[:, 2], pieces[:, 2] + pieces[:, 1]
    found = pieces[np.searchsorted(end, first, "right") : np.searchsorted(place, last, "left")].copy()
    before = np.maximum(first - found[:, 2], 0)
    found[:, 0] += np.where(found[:, 0] >= 0, before, 0)
    found[:, 1] = np.minimum(found[:, 2] + found[:, 1], last) - found[:, 2] - before
    found[:, 2] += before
    return found[np.argsort(found[:, 0], kind="stable")]


class Plain:
    """An array that lies in its file as it is in memory."""

    threads = 64  # may read at the same time

    def __init__(self, array: Array):
        self.array, self._origin = array, array.offset or 0
        try:
            self._file = os.open(array.path, os.O_RDONLY)
        except OSError as error:
            what = f"cannot open the file ({error.strerror})"
            raise UserError(what, str(array.path), "check data.path") from error

    def read(self, row: int, into: memoryview) -> None:
        """Fills `into` with the bytes of whole rows from `row` on."""
        self._fill(self._origin + row * self.array.row_bytes, row, into)

    def _fill(self, position: int, row: int, into: memoryview) -> None:
        missing = into
        try:
            while (count := os.preadv(self._file, [missing], position)) != len(missing):
                if not count:
                    where = place_in(self.array, row, len(into))
                    raise UserError("the file ends too early", where, CHANGED)
                missing, position = missing[count:], position + count
        except OSError as error:
            where = place_in(self.array, row, len(into))
            raise UserError(f"the disk cannot read ({error.strerror})", where, "check it") from error

    def close(self) -> None:
        os.close(self._file)


class Tabled(Plain):
    """An array in chunks of whole rows that are in the file as in memory: a table says where each begins."""

    def __init__(self, array: Array, rows: int, places: np.ndarray):
        super().__init__(array)
        self._rows, self._places = rows, places.tolist()

    def read(self, row: int, into: memoryview) -> None:
        """Fills `into` with the bytes of whole rows from `row` on."""
        size = self.array.row_bytes
        while into:
            chunk, inside = divmod(row, self._rows)
            count = min(self._rows - inside, len(into) // size)
            self._fill(self._places[chunk] + inside * size, row, into[: count * size])
            row, into = row + count, into[count * size :]


class Filtered:
    """An array that HDF5 has to unpack or convert: one thread, under HDF5's lock, many times as slow."""

    threads = 1

    def __init__(self, array: Array):
        import h5py

        self.array, self._lock = array, threading.Lock()
        try:
            self._file = h5py.File(array.path)
            self._dataset = self._file[array.dataset]
        except (OSError, KeyError) as error:
            raise UserError(f"cannot open the file ({error})", str(array.path), CHANGED) from error

    def read(self, row: int, into: memoryview) -> None:
        """Fills `into` with the bytes of whole rows from `row` on."""
        array = self.array
        rows = np.frombuffer(into, array.stored).reshape(-1, *array.shape[1:])
        try:
            with self._lock:
                self._dataset.read_direct(rows, np.s_[row : row + len(rows)])
        except (OSError, TypeError, ValueError) as error:
            remedy = "damaged data, or a filter that is not installed: `pip install hdf5plugin`"
            raise UserError(f"HDF5 cannot read ({error})", place_in(array, row, len(into)), remedy) from error

    def close(self) -> None:
        self._file.close()


def open_source(array: Array) -> Plain | Filtered:
    """Raises `UserError` where the file cannot be opened."""
    if array.offset is not None:
        return Plain(array)
    table = chunk_table(array)
    return Tabled(array, *table) if table else Filtered(array)


class Block(NamedTuple):
    """What a thread reads at a time: bytes [first, last) of a chunk, rows of one array."""

    source: Plain | Filtered
    first: int
    last: int
    pieces: np.ndarray  # (n, 3) int64: row in the file, rows, byte in the chunk; row −1 stands for zeros


class Reader:
    """A few threads that fill chunks, block by block and in order.

    On a CPU they read into the chunk itself. For a GPU each thread has two page-locked blocks and a
    stream: while one block is on its way, the other is read. Host memory stays at `block_bytes` × blocks.
    """

    def __init__(self, device: torch.device, sources: Sequence[Plain | Filtered], pin: bool):
        cores = 4 if (os.cpu_count() or 1) >= 8 else min(os.cpu_count() or 1, 2)
        self.device, self.waited = device, 0.0
        self.threads = min([cores, *(source.threads for source in sources)])
        row = max(source.array.row_bytes for source in sources)
        self.block_bytes = max(BLOCK_BYTES, row)
        self._staging = self._allocate(pin, max(SMALLEST_BLOCK, row)) if device.type == "cuda" else []
        self.host_bytes = sum(block.nbytes for block in self._staging)
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(self.threads, "chunk-reader", on_device, (device_of(device),))

    def _allocate(self, pin: bool, least: int) -> list[Tensor]:
        """Page-locked blocks; smaller ones where the system refuses, at last ordinary memory, with a note."""
        count, size = self.threads * BLOCKS_PER_THREAD, self.block_bytes
        while pin and size >= least:
            try:
                blocks = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
                self.block_bytes = size
                return blocks
            except RuntimeError:
                size //= 2
        if pin:
            print("note: no page-locked memory to be had, so copies to the GPU do not overlap with the step")
        return [host_memory(self.block_bytes) for _ in range(count)]

    def fill(self, memory: Tensor, block: Block, free: Any) -> Future:
        """Starts reading `block` into `memory` (bytes); the result is a CUDA event, or None on a CPU.

        free: event after which the GPU no longer uses what `memory` held before.
        """
        fill = self._through_host if self.host_bytes else self._directly
        return self._pool.submit(fill, memory, block, free)

    def _directly(self, memory: Tensor, block: Block, free: Any) -> None:
        _read(block, memory.numpy().data, 0)

    def _through_host(self, memory: Tensor, block: Block, free: Any) -> Any:
        own = self._own
        if not hasattr(own, "stream"):
            own.stream, own.turn = torch.cuda.Stream(self.device), 0
            own.blocks = [(self._staging.pop(), torch.cuda.Event()) for _ in range(BLOCKS_PER_THREAD)]
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
        """Waits for a read, and lets the GPU's current stream wait for its copy."""
        start = time.perf_counter()
        copied = read.result()
        self.waited += time.perf_counter() - start
        if copied is not None:
            torch.cuda.current_stream(self.device).wait_event(copied)

    def close(self) -> None:
        """Ends the threads; reads that have not begun are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # a GPU that has failed says so in each call from then on
                torch.cuda.synchronize(self.device)  # copies under way write into memory that is about to go


def _read(block: Block, view: memoryview, origin: int) -> None:
    """Reads the pieces of a block to their places in `view`, which begins at byte `origin` of the chunk."""
    source, size = block.source, block.source.array.row_bytes
    for row, rows, place in block.pieces.tolist():
        part = view[place - origin : place - origin + rows * size]
        if row < 0:
            np.frombuffer(part, np.uint8)[:] = 0
        else:
            source.read(row, part)


def device_of(device: torch.device) -> torch.device:
    """The device with its number, which is this thread's where `device` names none."""
    return torch.cuda.current_stream(device).device if device.type == "cuda" else device


def on_device(device: torch.device) -> None:
    """A thread begins on GPU 0, and putting a stream back there would open a context of 500 MB on it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def host_memory(size: int) -> Tensor:
    """Bytes to be reused. numpy asks the system for huge pages, torch does not."""
    return torch.from_numpy(np.empty(size, np.uint8))
