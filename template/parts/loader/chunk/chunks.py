"""Chunks: the rows of the next batches, read ahead of the step into memory that is reused.

Every order is read in the same way: spans of the next batches → the rows they need → large reads →
batches as views or gathered windows. Three chunks take turns on a CPU, and two on a GPU. Each chunk
is filled block by block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..interfaces import Rows, Samples, Spans
from .order import Order
from .reader import Block, Filtered, Layout, Plain, Reader, cut, host_memory, lay_out, open_source
from .rows import gather
from .store import Array

DEVICE_SHARE = 0.75  # of the GPU memory that a step leaves free
HOST_BYTES = 256 << 20  # on a CPU, where three chunks take turns
MOST_BATCHES = 256  # in a chunk: planning more would delay the step
ALIGNMENT = 512  # bytes: each array's part in a chunk begins at a multiple
SAMPLES_AT_ONCE = 1 << 16

Extents = dict[str, tuple[int, int]]
"""Rows [first, last) by array."""


class Part:
    """The rows of one array in a chunk, from byte `place` on; they are read block by block."""

    def __init__(
        self,
        source: Plain | Filtered,
        layout: Layout,
        memory: Tensor,
        place: int,
        reader: Reader,
    ):
        self.source = source
        self.layout = layout
        self.place = place
        self.reader = reader
        array = source.array
        row_bytes = array.row_bytes
        flat = memory[place : place + layout.rows * row_bytes].view(getattr(torch, array.dtype))
        self.values = flat.view(layout.rows, *array.shape[1:])
        self.block_rows = max(reader.block_bytes // row_bytes, 1)
        self.reads: list[Future | None] = []  # one for each block; None once it is there

    def blocks(self) -> Iterator[Block]:
        row_bytes = self.source.array.row_bytes
        for first in range(0, self.layout.rows, self.block_rows):
            last = min(first + self.block_rows, self.layout.rows)
            pieces = cut(self.layout.pieces, first, last)
            pieces[:, 2] = pieces[:, 2] * row_bytes + self.place
            first_byte = self.place + first * row_bytes
            last_byte = self.place + last * row_bytes
            yield Block(self.source, first_byte, last_byte, pieces)

    def take(self, spans: Spans, starts: np.ndarray, outputs: Outputs) -> Rows:
        """Return the rows of a batch whose spans begin at `starts` in this part.

        If the spans are next to each other, the result is a view.
        """
        if self.layout.in_place or _are_adjacent(spans, starts):
            first = int(starts.flat[0])
            last = first + starts.size * spans.width
            self._wait(first, last)
            shape = (*starts.shape, spans.width, *self.values.shape[1:])
            values = self.values[first:last].view(shape)
            if spans.lengths is None:
                return Rows(values)
            return Rows(values, torch.from_numpy(spans.lengths))

        num_rows = spans.num_rows()
        last = int((starts + num_rows).max(initial=0, where=num_rows > 0))
        first = int(starts.min(initial=last, where=num_rows > 0))
        self._wait(first, last)
        empty = partial(outputs.take, self.source.array.name)
        return gather(self.values, spans._replace(starts=starts), empty)

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


def _are_adjacent(spans: Spans, starts: np.ndarray) -> bool:
    """Whether the spans are complete and each begins where the one before it ends."""
    if not (spans.num_rows() == spans.width).all():
        return False
    return bool((np.diff(starts.ravel()) == spans.width).all())


class Chunk(NamedTuple):
    """The spans of some batches, and their rows in buffer `turn`."""

    spans: list[dict[str, Spans]]
    parts: dict[str, Part]
    turn: int


class Outputs:
    """Memory for gathered batches, two for each array in turn."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, int], Tensor] = {}
        self.turn = 0

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        key = (name, self.turn % 2)
        count = torch.Size(shape).numel()
        if key not in self.tensors or self.tensors[key].numel() < count:
            self.tensors[key] = torch.empty(count, dtype=dtype, device=device)
        return self.tensors[key][:count].view(shape)


class Chunks:
    """Yields the rows of batch after batch for a loader, without knowing the settings.

    holder: device of the chunks. size: bytes of all chunks together; None decides by the free
    memory. resident: whether all rows stay on the device: False, "auto" if `size` allows it, or
    True to require it. trains: steps run between the batches, so that the memory that they leave
    free is known in the second pass only.
    """

    def __init__(
        self,
        samples: Any,
        arrays: Mapping[str, Array],
        order: Order,
        holder: torch.device,
        size: int | None,
        pin: bool = True,
        trains: bool = False,
        resident: bool | str = "auto",
    ):
        self.samples = samples
        self.order = order
        self.holder = holder
        self.size = size
        self.wanted = resident
        self.sources: dict[str, Plain | Filtered] = {}
        self.batch_bytes = 0
        indices = np.arange(min(order.batch_size, order.count))
        for name, spans in samples.spans(indices, 0).items():
            self.sources[name] = open_source(arrays[name])
            self.batch_bytes += spans.starts.size * spans.width * arrays[name].row_bytes
        self.reader = Reader(holder, list(self.sources.values()), pin)

        num_buffers = 2 if holder.type == "cuda" else 3
        self.buffers: list[Tensor | None] = [None] * num_buffers
        self.released: list[Any] = [None] * num_buffers  # events: the GPU is done with the buffer
        self.outputs = Outputs()
        self.resident: dict[str, tuple[int, Part]] = {}  # by array: first row, and the rows
        self.extents: Extents = {}  # of the samples
        self.budget = 0  # bytes of all chunks, or of the resident rows
        self.dry = trains and size is None and holder.type == "cuda"
        self.capacity = 0  # bytes of a chunk
        self.batches_planned = 1
        self.chunks = 0

    def __call__(self, epoch: int, start: int, end: int) -> Generator[dict[str, Rows]]:
        """Yield the rows of each of the batches [start, end) of an epoch."""
        self._settle(epoch)
        while self.resident and start < end:
            for rows in self._resident_batches(epoch, start, end):
                yield rows
                start += 1
            if start < end:
                # This epoch's spans need more rows.
                self._reside(epoch)
        yield from self._chunked_batches(epoch, start, end)

    def _resident_batches(self, epoch: int, start: int, end: int) -> Iterator[dict[str, Rows]]:
        """Yield batches until one needs rows that are not resident."""
        for indices in islice(self.order.batches(epoch, start), end - start):
            self.outputs.turn += 1
            rows = {}
            for name, spans in self.samples.spans(indices, epoch).items():
                first, part = self.resident[name]
                num_rows = spans.num_rows()
                starts = spans.starts - first
                is_there = (starts >= 0) & (starts + num_rows <= part.layout.rows)
                if not is_there[num_rows > 0].all():
                    return
                rows[name] = part.take(spans, starts, self.outputs)
            yield rows

    def _chunked_batches(self, epoch: int, start: int, end: int) -> Iterator[dict[str, Rows]]:
        ahead: deque[Chunk] = deque()

        def begin_reading(num_chunks: int) -> None:
            nonlocal start
            while start < end and len(ahead) < num_chunks:
                chunk = self._begin(epoch, start, end)
                ahead.append(chunk)
                start += len(chunk.spans)

        try:
            while ahead or start < end:
                begin_reading(1)
                chunk = ahead[0]
                for number, spans in enumerate(chunk.spans):
                    rows = self._take(chunk, number, spans)
                    # This comes after waiting for these rows, because planning holds the GIL, which
                    # the reading threads need, too.
                    begin_reading(len(self.buffers))
                    yield rows
                # The loop has asked for the batch after this chunk.
                self.released[ahead.popleft().turn] = self._event()
        finally:
            for chunk in ahead:
                for part in chunk.parts.values():
                    part.abandon()
                self.released[chunk.turn] = self._event()

    def _take(self, chunk: Chunk, number: int, spans: dict[str, Spans]) -> dict[str, Rows]:
        """Return the rows of one batch of a chunk."""
        self.outputs.turn += 1
        rows = {}
        for name, part in chunk.parts.items():
            rows[name] = part.take(spans[name], part.layout.starts[number], self.outputs)
        return rows

    # --- chunks

    def _begin(self, epoch: int, start: int, end: int) -> Chunk:
        """Plan the chunk that begins with the batch `start`, and start its reads."""
        spans, layouts, size = self._plan(epoch, start, end)
        turn = self.chunks % len(self.buffers)
        memory = self._memory(turn, size)
        parts = {}
        place = 0
        for name, layout in layouts.items():
            parts[name] = Part(self.sources[name], layout, memory, place, self.reader)
            place += self._bytes(name, layout.rows)
        self._start(parts.values(), memory, self.released[turn])
        self.chunks += 1
        return Chunk(spans, parts, turn)

    def _plan(
        self, epoch: int, start: int, end: int
    ) -> tuple[list[dict[str, Spans]], dict[str, Layout], int]:
        """Plan as many batches as a chunk has room for, at least one; begin with one and double."""
        indices = self.order.indices(epoch, start, min(start + self.batches_planned, end))
        batches = [self.samples.spans(batch, epoch) for batch in indices]
        layouts, size = self._lay_out(batches)
        while size > self.capacity and len(batches) > 1:
            fitting = len(batches) * self.capacity // size
            batches = batches[: max(1, min(len(batches) - 1, fitting))]
            layouts, size = self._lay_out(batches)

        self.batches_planned = len(batches)
        if 2 * size <= self.capacity:
            self.batches_planned *= 2
        self.batches_planned = min(self.batches_planned, MOST_BATCHES)
        return batches, layouts, size

    def _lay_out(self, batches: list[dict[str, Spans]]) -> tuple[dict[str, Layout], int]:
        """Return the layout of each array in a chunk, and the bytes of the chunk."""
        layouts = {}
        size = 0
        for name, source in self.sources.items():
            spans = [batch[name] for batch in batches]
            layouts[name] = lay_out(spans, source.array.row_bytes)
            size += self._bytes(name, layouts[name].rows)
        return layouts, size

    def _start(self, parts: Iterable[Part], memory: Tensor, free: Any) -> None:
        """Start all reads, first what the first batches need, of whatever array."""
        entries: list[tuple[float, Part, Block]] = []
        for part in parts:
            part_bytes = max(part.values.nbytes, 1)
            for block in part.blocks():
                entries.append(((block.first - part.place) / part_bytes, part, block))
        entries.sort(key=lambda entry: entry[0])
        for _, part, block in entries:
            part.reads.append(self.reader.fill(memory, block, free))

    def _bytes(self, name: str, rows: int) -> int:
        return -(-rows * self.sources[name].array.row_bytes // ALIGNMENT) * ALIGNMENT

    # --- memory

    def _settle(self, epoch: int) -> None:
        """Choose the size of the chunks, or make all rows resident.

        The dry run comes before that, and reads batch by batch.
        """
        if self.dry or self.capacity:
            self.dry = False
            return
        self.budget = self.size or free_for_chunks(self.holder)
        self.capacity = max((self.budget - 2 * self.batch_bytes) // len(self.buffers), 1)
        if self.wanted:
            self._reside(epoch)

    def _reside(self, epoch: int) -> None:
        """Read all rows that samples need, in this epoch and those before, if they fit."""
        self._drop_resident()
        self.extents = needed_rows(self.samples, self.order, epoch, self.extents)
        size = 0
        for name, (first, last) in self.extents.items():
            size += self._bytes(name, last - first)
        if size > self.budget:
            if self.wanted is True:
                allowed = f"chunks may have {self.budget / 1e9:.1f} GB"
                what = f"the samples take {size / 1e9:.1f} GB, but {allowed}"
                raise UserError(what, "data.resident true", "set it to auto")
            return

        self.buffers = [None] * len(self.buffers)
        try:
            for name, (first, last) in self.extents.items():
                self._read_resident(name, first, last - first)
        except torch.cuda.OutOfMemoryError:
            # Another process has taken the memory meanwhile.
            if self.wanted is True:
                raise
            self._drop_resident()

    def _read_resident(self, name: str, first: int, rows: int) -> None:
        layout = Layout([], np.array([[first, rows, 0]]), rows, in_place=False)
        memory = self._allocate(self._bytes(name, rows))
        part = Part(self.sources[name], layout, memory, 0, self.reader)
        self._start([part], memory, self._event())
        self.resident[name] = (first, part)

    def _drop_resident(self) -> None:
        """Drop the resident rows, once nothing is written there any more."""
        for _, part in self.resident.values():
            part.abandon()
        self.resident = {}

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
        self.buffers = [None] * len(self.buffers)
        self.outputs = Outputs()
        self.resident = {}
        self.capacity = 0
        while self.sources:
            _, source = self.sources.popitem()
            source.close()


def needed_rows(samples: Samples, order: Order, epoch: int, known: Extents) -> Extents:
    """Return the rows that an epoch's samples need, together with those that are `known`."""
    extents = dict(known)
    for start in range(0, order.count, SAMPLES_AT_ONCE):
        end = min(start + SAMPLES_AT_ONCE, order.count)
        indices = order.sample(np.arange(start, end))
        for name, spans in samples.spans(indices, epoch).items():
            starts = spans.starts
            num_rows = spans.num_rows()
            first, last = extents.get(name, (np.iinfo(np.int64).max, 0))
            first = int(starts.min(initial=first, where=num_rows > 0))
            last = int((starts + num_rows).max(initial=last, where=num_rows > 0))
            extents[name] = (first, last)
    return {name: (min(first, last), last) for name, (first, last) in extents.items()}


def free_for_chunks(device: torch.device) -> int:
    """Return the bytes for all chunks: three quarters of what the largest step has left free.

    A GPU of 8, 12, 16 or 24 GB with nothing else on it has 6, 9, 12 or 18 GB for chunks.
    """
    if device.type == "cpu":
        return HOST_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return int(DEVICE_SHARE * free)
