"""Chunks: the rows of the next batches, read ahead of the step into memory that is reused.

Every order is read in the same way: spans of the next batches → the rows they need → large reads →
batches as views or gathered windows. Three chunks take turns on a CPU, and two on a GPU. Each chunk
is filled block by block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..interfaces import Rows, Spans
from .order import Order
from .reader import Filtered, Plain, ReadBlock, Reader, host_memory, open_source
from .rows import gather
from .store import Array

DEVICE_SHARE = 0.75  # of the GPU memory that a step leaves free
HOST_BYTES = 256 << 20  # on a CPU, where three chunks take turns
MOST_BATCHES = 256  # in a chunk: planning more would delay the step
ALIGNMENT = 512  # bytes: each array's part in a chunk begins at a multiple
SMALL_BYTES = 16 << 10  # smaller reads cost more than gathering, or than reading what is between


class Layout(NamedTuple):
    """Where the rows of one array's spans are in a chunk."""

    runs: np.ndarray  # (n, 3) int64: first row in the file, number of rows, first row in the chunk
    batches: Sequence[Spans]  # with starts in the chunk
    rows: int


def lay_out(batches: Sequence[Spans], row_bytes: int) -> Layout:
    """Lay out the rows of some batches.

    In a random order, large spans that share few rows are in the order of their use, so that
    batches are views. Otherwise each row is read once, in the order of the file.
    """
    starts = np.concatenate([spans.starts.ravel() for spans in batches])
    num_rows = np.concatenate([spans.num_rows().ravel() for spans in batches])
    present = num_rows > 0
    first = starts[present]
    size = num_rows[present]
    # A read takes so long to start that reading a small gap costs less than a second read.
    run_first, run_size = join(first, size, gap=SMALL_BYTES // row_bytes)
    run = np.searchsorted(run_first, first, "right") - 1

    # In the order of time, the order of the file is also that of use. In a random order, a copy of
    # rows that several spans share costs reading, but saves gathering: a quarter more is worth it.
    is_random = (np.diff(first) < 0).any()
    are_large = size.sum() * row_bytes >= SMALL_BYTES * len(size)
    if is_random and are_large and size.sum() <= 1.25 * run_size.sum():
        run_first = first
        run_size = size
        run = np.arange(len(first))

    run_place = np.cumsum(run_size) - run_size
    placed = np.full_like(starts, -1)
    placed[present] = run_place[run] + first - run_first[run]
    ends = np.cumsum([spans.starts.size for spans in batches])
    in_chunk = []
    for spans, part in zip(batches, np.split(placed, ends[:-1]), strict=True):
        in_chunk.append(spans._replace(starts=part.reshape(spans.starts.shape)))
    runs = np.stack([run_first, run_size, run_place], 1)
    return Layout(runs, in_chunk, int(run_size.sum()))


def join(first: np.ndarray, size: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Join spans with at most `gap` rows between them; return first rows and sizes, sorted."""
    order = np.argsort(first, kind="stable")
    begin = first[order]
    end = np.maximum.accumulate(begin + size[order])
    is_apart = begin[1:] > end[:-1] + gap
    run_first = np.concatenate([begin[:1], begin[1:][is_apart]])
    run_last = np.concatenate([end[:-1][is_apart], end[-1:]])
    return run_first, run_last - run_first


def cut(runs: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the runs in rows [first, last) of a chunk, in the order of the file.

    They are (n, 3) as in a `Layout`, but the place of each is counted from `first`.
    """
    places = runs[:, 2]
    first_run = np.searchsorted(places, first, "right") - 1
    last_run = np.searchsorted(places, last, "left")
    row, size, place = runs[first_run:last_run].T
    begin = np.maximum(place, first)
    end = np.minimum(place + size, last)
    inside = np.stack([row + begin - place, end - begin, begin - first], 1)
    return inside[np.argsort(inside[:, 0])]


class Part:
    """The rows of one array in a chunk; they are read block by block."""

    def __init__(self, source: Plain | Filtered, layout: Layout, memory: Tensor, reader: Reader):
        array = source.array
        self.source = source
        self.layout = layout
        self.reader = reader
        self.bytes = memory[: layout.rows * array.row_bytes]
        flat = self.bytes.view(getattr(torch, array.dtype))
        self.values = flat.view(layout.rows, *array.shape[1:])
        self.block_rows = max(reader.block_bytes // array.row_bytes, 1)
        self.reads: list[Future | None] = []  # one for each block; None once it is there

    def blocks(self) -> Iterator[tuple[float, ReadBlock]]:
        """Yield the blocks, each with the fraction of the part that is before it."""
        row_bytes = self.source.array.row_bytes
        rows = self.layout.rows
        for first in range(0, rows, self.block_rows):
            last = min(first + self.block_rows, rows)
            memory = self.bytes[first * row_bytes : last * row_bytes]
            yield first / rows, ReadBlock(self.source, memory, cut(self.layout.runs, first, last))

    def take(self, spans: Spans) -> Rows:
        """Return the rows of spans in this part: a view if the spans are next to each other."""
        starts = spans.starts
        num_rows = spans.num_rows()
        first = int(starts.min(initial=self.layout.rows, where=num_rows > 0))
        last = int((starts + num_rows).max(initial=0, where=num_rows > 0))
        self._wait(first, last)
        shape = (*starts.shape, spans.width, *self.values.shape[1:])
        if first >= last:  # all are absent
            lengths = None if spans.lengths is None else torch.from_numpy(spans.lengths)
            return Rows(self.values.new_zeros(shape), lengths)
        is_complete = spans.lengths is None and starts.flat[0] >= 0
        if is_complete and (np.diff(starts.ravel()) == spans.width).all():
            return Rows(self.values[first:last].view(shape))
        return gather(self.values, spans)

    def _wait(self, first: int, last: int) -> None:
        """Wait for the blocks with these rows."""
        for number in range(first // self.block_rows, -(-last // self.block_rows)):
            read = self.reads[number]
            if read is not None:
                self.reader.wait(read)
                self.reads[number] = None

    def abandon(self) -> None:
        """Wait for the reads that have begun and drop the others."""
        for read in self.reads:
            if read is not None and not read.cancel():
                self.reader.wait(read)


class Chunk(NamedTuple):
    """The rows of some batches, in buffer `turn`."""

    num_batches: int
    parts: dict[str, Part]
    turn: int


class Chunks:
    """Yields the rows of batch after batch for a loader.

    holder: device of the chunks. data: the section of the settings. resident: rows that stay on the
    device, by array, which all loaders of a store share. trains: steps run between the batches, so
    that the memory that they leave free is known in the second pass only.
    """

    def __init__(
        self,
        samples: Any,
        arrays: Mapping[str, Array],
        order: Order,
        holder: torch.device,
        data: Any,
        resident: dict[str, Part],
        trains: bool = False,
    ):
        self.samples = samples
        self.order = order
        self.holder = holder
        self.data = data
        self.resident = resident
        self.sources: dict[str, Plain | Filtered] = {}
        self.batch_bytes = 0
        indices = np.arange(min(order.batch_size, order.count))
        for name, spans in samples.spans(indices, 0).items():
            self.sources[name] = open_source(arrays[name])
            self.batch_bytes += spans.starts.size * spans.width * arrays[name].row_bytes
        self.reader = Reader(holder, list(self.sources.values()), data.pin_memory)

        num_buffers = 2 if holder.type == "cuda" else 3
        self.buffers: list[Tensor | None] = [None] * num_buffers
        self.released: list[Any] = [None] * num_buffers  # events: the GPU is done with the buffer
        self.capacity = 0  # bytes of a chunk; 0 until it is chosen: one batch
        self.is_first_pass = trains and data.chunk_size_gb == "auto" and holder.type == "cuda"
        self.batches_planned = 1
        self.chunks = 0

    def __call__(self, epoch: int, start: int, end: int) -> Generator[dict[str, Rows]]:
        """Yield the rows of each of the batches [start, end) of an epoch."""
        if not self.capacity and not self.is_first_pass:
            self._choose_size()
        self.is_first_pass = False
        if self.sources.keys() <= self.resident.keys():
            yield from self._resident_batches(epoch, start, end)
        else:
            yield from self._chunked_batches(epoch, start, end)

    def _resident_batches(self, epoch: int, start: int, end: int) -> Iterator[dict[str, Rows]]:
        parts = {name: self.resident[name] for name in self.sources}
        for indices in islice(self.order.batches(epoch, start), max(end - start, 0)):
            spans = self.samples.spans(indices, epoch)
            yield {name: part.take(spans[name]) for name, part in parts.items()}

    def _chunked_batches(self, epoch: int, start: int, end: int) -> Iterator[dict[str, Rows]]:
        ahead: deque[Chunk] = deque()

        def begin_reading(num_chunks: int) -> None:
            nonlocal start
            while start < end and len(ahead) < num_chunks:
                chunk = self._begin(epoch, start, end)
                ahead.append(chunk)
                start += chunk.num_batches

        try:
            while ahead or start < end:
                begin_reading(1)
                chunk = ahead[0]
                for number in range(chunk.num_batches):
                    rows = {}
                    for name, part in chunk.parts.items():
                        rows[name] = part.take(part.layout.batches[number])
                    # This comes after waiting for these rows, because planning holds the GIL, which
                    # the reading threads need, too.
                    begin_reading(len(self.buffers))
                    yield rows
                # The loop has asked for the batch after this chunk.
                self.released[ahead.popleft().turn] = self._event()
        finally:
            # The loop may end early, and no read may write into memory that is used for something
            # else.
            for chunk in ahead:
                for part in chunk.parts.values():
                    part.abandon()
                self.released[chunk.turn] = self._event()

    # --- chunks

    def _begin(self, epoch: int, start: int, end: int) -> Chunk:
        """Plan the chunk that begins with the batch `start`, and start its reads."""
        num_batches, layouts = self._plan(epoch, start, end)
        turn = self.chunks % len(self.buffers)
        memory = self._memory(turn, self._size(layouts))
        self.chunks += 1
        return Chunk(num_batches, self._read(layouts, memory, self.released[turn]), turn)

    def _plan(self, epoch: int, start: int, end: int) -> tuple[int, dict[str, Layout]]:
        """Plan as many batches as a chunk has room for, at least one; begin with one and double."""
        indices = self.order.indices(epoch, start, min(start + self.batches_planned, end))
        batches = [self.samples.spans(batch, epoch) for batch in indices]
        layouts = self._lay_out(batches)
        size = self._size(layouts)
        while size > self.capacity and len(batches) > 1:
            # Batches that share rows take less than their number says, so the size is measured
            # again.
            fitting = len(batches) * self.capacity // size
            batches = batches[: max(1, min(len(batches) - 1, fitting))]
            layouts = self._lay_out(batches)
            size = self._size(layouts)

        self.batches_planned = len(batches)
        if 2 * size <= self.capacity:
            self.batches_planned *= 2
        self.batches_planned = min(self.batches_planned, MOST_BATCHES)
        return len(batches), layouts

    def _lay_out(self, batches: list[dict[str, Spans]]) -> dict[str, Layout]:
        layouts = {}
        for name, source in self.sources.items():
            layouts[name] = lay_out([batch[name] for batch in batches], source.array.row_bytes)
        return layouts

    def _read(self, layouts: dict[str, Layout], memory: Tensor, free: Any) -> dict[str, Part]:
        """Start all reads, first what the first batches need, of whatever array."""
        parts = {}
        place = 0
        blocks = []
        for name, layout in layouts.items():
            part = Part(self.sources[name], layout, memory[place:], self.reader)
            place += self._bytes(name, layout)
            parts[name] = part
            blocks += [(progress, part, block) for progress, block in part.blocks()]
        for _, part, block in sorted(blocks, key=lambda entry: entry[0]):
            part.reads.append(self.reader.fill(block, free))
        return parts

    def _size(self, layouts: dict[str, Layout]) -> int:
        return sum(self._bytes(name, layout) for name, layout in layouts.items())

    def _bytes(self, name: str, layout: Layout) -> int:
        row_bytes = self.sources[name].array.row_bytes
        return -(-layout.rows * row_bytes // ALIGNMENT) * ALIGNMENT

    # --- memory

    def _choose_size(self) -> None:
        """Choose the size of the chunks, or make all rows resident."""
        budget = self._budget()
        self.capacity = self._capacity(budget)
        if self.data.resident:
            self._reside(budget)

    def _budget(self) -> int:
        """Return the bytes for all chunks."""
        if self.data.chunk_size_gb == "auto":
            return free_for_chunks(self.holder)
        return int(float(self.data.chunk_size_gb) * 1e9)

    def _capacity(self, budget: int) -> int:
        return max((budget - 2 * self.batch_bytes) // len(self.buffers), 1)

    def _whole(self) -> dict[str, Layout]:
        """Lay out all rows of the arrays that are not resident."""
        layouts = {}
        for name in self.sources.keys() - self.resident.keys():
            rows = self.sources[name].array.shape[0]
            layouts[name] = Layout(np.array([[0, rows, 0]]), [], rows)
        return layouts

    def describe(self) -> str:
        """Return where the rows will be, for the start of a run."""
        budget = self._budget()
        size = self._size(self._whole())
        workers = "no workers"
        if self.sources.keys() <= self.resident.keys():
            return f"data.resident: all rows are resident; {workers}"
        if self.data.resident and size <= budget:
            return f"data.resident: all rows, {size / 1e9:.2g} GB, will be resident; {workers}"
        capacity = (self.capacity or self._capacity(budget)) / 1e9
        chunks = f"{len(self.buffers)} chunks of up to {capacity:.2g} GB"
        return f"data.chunk_size_gb: {chunks}, nothing is resident; {workers}"

    def full_batches(self) -> int:
        """Return how many batches a full chunk has; all if they are resident."""
        if not self.capacity:
            self._choose_size()
        if self.sources.keys() <= self.resident.keys():
            return len(self.order)
        return min(max(self.capacity // self.batch_bytes, 1), MOST_BATCHES)

    def _reside(self, budget: int) -> None:
        """Read all rows of the arrays, if they fit and another loader has not done it."""
        layouts = self._whole()
        size = self._size(layouts)
        is_required = self.data.resident is True
        if size > budget:
            if is_required:
                allowed = f"chunks may have {budget / 1e9:.1f} GB"
                what = f"the samples take {size / 1e9:.1f} GB, but {allowed}"
                raise UserError(what, "data.resident true", "set it to auto")
            return

        self.buffers = [None] * len(self.buffers)
        try:
            memory = self._allocate(size)
        except torch.cuda.OutOfMemoryError:
            # Another process has taken the memory meanwhile.
            if is_required:
                raise
            return
        self.resident.update(self._read(layouts, memory, self._event()))

    def _memory(self, turn: int, size: int) -> Tensor:
        """Return buffer `turn` with at least `size` bytes; chunks get smaller if memory is full."""
        buffer = self.buffers[turn]
        self.buffers[turn] = None
        while buffer is None or buffer.numel() < size:
            buffer = None  # freed before the new one is allocated
            try:
                buffer = self._allocate(max(size, self.capacity))
                # By this event, earlier uses of this memory are complete.
                self.released[turn] = self._event()
            except torch.cuda.OutOfMemoryError:
                if self.capacity <= size:
                    raise
                self.capacity //= 2
        self.buffers[turn] = buffer
        return buffer

    def _allocate(self, size: int) -> Tensor:
        if self.holder.type == "cpu":
            return host_memory(size)
        return torch.empty(size, dtype=torch.uint8, device=self.holder)

    def _event(self) -> Any:
        if self.holder.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.holder))
        return event

    def close(self) -> None:
        """End the threads and free the memory."""
        self.reader.close()
        for name, part in list(self.resident.items()):
            if part.reader is self.reader:
                del self.resident[name]
        self.buffers = [None] * len(self.buffers)
        while self.sources:
            _, source = self.sources.popitem()
            source.close()


def free_for_chunks(device: torch.device) -> int:
    """Return the bytes for all chunks: three quarters of what the largest step has left free.

    A GPU of 8, 12, 16 or 24 GB with nothing else on it has 6, 9, 12 or 18 GB for chunks.
    """
    if device.type == "cpu":
        return HOST_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return int(DEVICE_SHARE * free)
