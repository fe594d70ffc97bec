"""Chunks: the rows of the next batches, read ahead of the step into memory that is reused.

Every order takes the same way: spans of the next batches → the rows they need → large reads → batches
as views or gathered windows. On a CPU three chunks take turns, on a GPU two, each filled block by block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import UserError
from .order import Order
from .reader import Block, Filtered, Layout, Plain, Reader, cut, host_memory, lay_out, open_source
from .resident import Extents, gather, memory_left, reach
from .rows import SIGNED, stored_dtype
from .seams import Rows, Spans
from .store import Array

DEVICE_SHARE = 0.75  # of the GPU memory that a step leaves free
HOST_BYTES = 256 << 20  # on a CPU, where three chunks take turns
MOST_BATCHES = 256  # of a chunk: planning more would hold the step up
ALIGNMENT = 512  # bytes, of each array's part in a chunk


class Part:
    """The rows of one array in a chunk, which begin at byte `place` of its memory and come block by block."""

    def __init__(self, source: Plain | Filtered, layout: Layout, memory: Tensor, place: int, reader: Reader):
        array, self.source, self.layout, self.place, self.reader = source.array, source, layout, place, reader
        stored = torch.from_numpy(np.empty(0, array.stored)).dtype
        flat = memory[place : place + layout.rows * array.row_bytes].view(SIGNED.get(stored, stored))
        self.values = flat.view(layout.rows, *array.shape[1:])
        self.block_rows = max(reader.block_bytes // array.row_bytes, 1)
        self.reads: list[Future | None] = []  # of each block; None once waited for

    def blocks(self) -> Iterator[Block]:
        size = self.source.array.row_bytes
        for first in range(0, self.layout.rows, self.block_rows):
            last = min(first + self.block_rows, self.layout.rows)
            pieces = cut(self.layout.pieces, first, last)
            pieces[:, 2] = pieces[:, 2] * size + self.place
            yield Block(self.source, self.place + first * size, self.place + last * size, pieces)

    def take(self, spans: Spans, starts: np.ndarray, outputs: Outputs) -> Rows:
        """The rows of a batch whose spans begin at `starts` in this part: a view if they lie side by side."""
        shape = (*starts.shape, spans.width, *self.values.shape[1:])
        first, whole = int(starts.flat[0]), bool((spans.lengths == spans.width).all())
        side_by_side = whole and bool((np.diff(starts.ravel()) == spans.width).all())
        if self.layout.in_place or side_by_side:
            self._ready(first, first + starts.size * spans.width)
            values = self.values[first : first + starts.size * spans.width].view(shape)
        else:
            present = spans.lengths > 0
            last = int((starts + spans.lengths).max(initial=0, where=present))
            self._ready(int(starts.min(initial=last, where=present)), last)
            out = outputs.take(self.source.array.name, shape, self.values)
            values = gather(self.values, spans._replace(starts=starts), out)
        return Rows(values.view(stored_dtype(self.source.array)), torch.from_numpy(spans.lengths))

    def _ready(self, first: int, last: int) -> None:
        for number in range(first // self.block_rows, -(-last // self.block_rows)):
            read = self.reads[number]
            if read is not None:
                self.reader.wait(read)
                self.reads[number] = None

    def abandon(self) -> None:
        """Waits for the reads that have begun and drops the others."""
        for read in filter(None, self.reads):
            if not read.cancel():
                self.reader.wait(read)


class Chunk(NamedTuple):
    """Batches, by their spans, and their rows in buffer `turn`."""

    spans: list[dict[str, Spans]]
    parts: dict[str, Part]
    turn: int


class Outputs:
    """Memory for gathered batches, two for each array in turn."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, int], Tensor] = {}
        self.turn = 0

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        key, count = (name, self.turn % 2), torch.Size(shape).numel()
        if key not in self.tensors or self.tensors[key].numel() < count:
            self.tensors[key] = like.new_empty(count)
        return self.tensors[key][:count].view(shape)


class Chunks:
    """The rows of batch after batch; the inside of a loader, which knows no settings.

    holder: device of the chunks. size: bytes of all chunks together; None decides by what is free.
    resident: whether everything stays there: never, "auto" where `size` allows it, or else an error.
    trains: steps run between the batches, so that only the second pass knows what they leave free.
    """

    def __init__(
        self,
        samples: Any,
        arrays: dict[str, Array],
        order: Order,
        holder: torch.device,
        size: int | None,
        pin: bool = True,
        trains: bool = False,
        resident: bool | str = "auto",
    ):
        self.samples, self.order, self.holder, self.size = samples, order, holder, size
        self.wanted = resident
        spans = samples.spans(order.first(), 0)
        self.sources = {name: open_source(arrays[name]) for name in spans}
        self.batch_bytes = sum(
            part.starts.size * part.width * arrays[name].row_bytes for name, part in spans.items()
        )
        self.reader = Reader(holder, list(self.sources.values()), pin)
        self.buffers: list[Tensor | None] = [None] * (2 if holder.type == "cuda" else 3)
        self.released: list[Any] = [None] * len(self.buffers)  # events: the GPU is done with the buffer
        self.outputs, self.resident = Outputs(), dict[str, tuple[int, Part]]()  # first row and rows, by array
        self.extents: Extents = {}  # that the samples reach
        self.budget = 0  # bytes of all chunks, or of what is resident
        self.dry = trains and size is None and holder.type == "cuda"
        self.capacity, self.batches_planned, self.chunks, self.read_bytes = 0, 1, 0, 0

    def __call__(self, epoch: int, start: int, end: int) -> Generator[dict[str, Rows]]:
        """The rows of each of the batches [start, end) of an epoch."""
        self._settle(epoch)
        while self.resident and start < end:
            for numbers, _ in islice(self.order.batches(epoch, start), end - start):
                rows = self._from_resident(self.samples.spans(numbers, epoch))
                if rows is None:  # this epoch's spans reach further
                    self._reside(epoch)
                    break
                yield rows
                start += 1
        ahead: deque[Chunk] = deque()
        try:
            while ahead or start < end:
                if not ahead:
                    ahead.append(self._begin(epoch, start, end))
                    start += len(ahead[-1].spans)
                chunk = ahead[0]
                for place, spans in enumerate(chunk.spans):
                    self.outputs.turn += 1
                    rows = {
                        name: part.take(spans[name], part.layout.starts[place], self.outputs)
                        for name, part in chunk.parts.items()
                    }
                    # After the wait for these rows: planning holds the interpreter, which readers need too.
                    while start < end and len(ahead) < len(self.buffers):
                        ahead.append(self._begin(epoch, start, end))
                        start += len(ahead[-1].spans)
                    yield rows
                self.released[ahead.popleft().turn] = self._event()  # the loop asked for what comes after
        finally:
            for chunk in ahead:
                for part in chunk.parts.values():
                    part.abandon()
                self.released[chunk.turn] = self._event()

    def _from_resident(self, batch: dict[str, Spans]) -> dict[str, Rows] | None:
        """The rows of a batch; None where they are not resident."""
        self.outputs.turn += 1
        rows = {}
        for name, spans in batch.items():
            first, part = self.resident[name]
            starts = np.where(spans.lengths > 0, spans.starts - first, 0)
            if starts.min(initial=0) < 0 or (starts + spans.lengths).max(initial=0) > part.layout.rows:
                return None
            rows[name] = part.take(spans, starts, self.outputs)
        return rows

    # --- chunks

    def _begin(self, epoch: int, start: int, end: int) -> Chunk:
        """Plans the chunk that begins with the batch `start`, and starts its reads."""
        spans, layouts, size = self._plan(epoch, start, end)
        turn, place = self.chunks % len(self.buffers), 0
        memory, parts = self._memory(turn, size), dict[str, Part]()
        for name, layout in layouts.items():
            parts[name] = Part(self.sources[name], layout, memory, place, self.reader)
            place += self._bytes(name, layout.rows)
        self._start(parts.values(), memory, self.released[turn])
        self.chunks += 1
        return Chunk(spans, parts, turn)

    def _plan(
        self, epoch: int, start: int, end: int
    ) -> tuple[list[dict[str, Spans]], dict[str, Layout], int]:
        """As many batches as a chunk has room for, at least one; begins with one and doubles."""
        numbers, _ = self.order.numbers(epoch, start, min(start + self.batches_planned, end))
        spans = [self.samples.spans(batch, epoch) for batch in numbers]
        while True:
            layouts = {
                name: lay_out([part[name] for part in spans], source.array.row_bytes)
                for name, source in self.sources.items()
            }
            size = sum(self._bytes(name, layout.rows) for name, layout in layouts.items())
            if size <= self.capacity or len(spans) == 1:
                more = 2 * size <= self.capacity
                self.batches_planned = min(len(spans) * (1 + more), MOST_BATCHES)
                return spans, layouts, size
            spans = spans[: max(1, min(len(spans) - 1, len(spans) * self.capacity // size))]

    def _start(self, parts: Iterable[Part], memory: Tensor, free: Any) -> None:
        """Starts all reads; what the first batches need comes first, whatever array it is in."""
        blocks = [(block.first - part.place, part, block) for part in parts for block in part.blocks()]
        blocks.sort(key=lambda entry: entry[0] / max(entry[1].values.nbytes, 1))
        for _, part, block in blocks:
            part.reads.append(self.reader.fill(memory, block, free))
            self.read_bytes += block.last - block.first

    def _bytes(self, name: str, rows: int) -> int:
        return -(-rows * self.sources[name].array.row_bytes // ALIGNMENT) * ALIGNMENT

    # --- memory

    def _settle(self, epoch: int) -> None:
        """Sizes the chunks, or makes everything resident. The dry run comes before that: batch by batch."""
        if self.dry or self.capacity:
            self.dry = False
            return
        self.budget = self.size or free_for_chunks(self.holder)
        self.capacity = max((self.budget - 2 * self.batch_bytes) // len(self.buffers), 1)
        if self.wanted:
            self._reside(epoch)

    def _reside(self, epoch: int) -> None:
        """Reads all rows that samples reach, in this epoch and those before, if they fit; they stay."""
        self._let_go()
        self.extents = reach(self.samples, self.order, epoch, self.extents)
        size = sum(self._bytes(name, last - first) for name, (first, last) in self.extents.items())
        if size > self.budget:
            if self.wanted is True:
                what = f"the samples take {size / 1e9:.1f} GB, and chunks may have {self.budget / 1e9:.1f} GB"
                raise UserError(what, "data.resident true", "set it to auto")
            return
        self.buffers = [None] * len(self.buffers)
        for name, (first, last) in self.extents.items():
            layout = Layout([], np.array([[first, last - first, 0]]), last - first, in_place=False)
            try:
                memory = self._allocate(self._bytes(name, layout.rows))
            except torch.cuda.OutOfMemoryError:  # somebody else has taken it meanwhile
                if self.wanted is True:
                    raise
                self._let_go()
                return
            part = Part(self.sources[name], layout, memory, 0, self.reader)
            self._start([part], memory, self._event())
            self.resident[name] = first, part

    def _let_go(self) -> None:
        """Gives up what is resident, once nothing writes there any more."""
        for _, part in self.resident.values():
            part.abandon()
        self.resident = {}

    def _memory(self, turn: int, size: int) -> Tensor:
        """Buffer `turn` with at least `size` bytes; the chunks get smaller where the GPU has no room left."""
        buffer, self.buffers[turn] = self.buffers[turn], None
        while buffer is None or buffer.numel() < size:
            buffer = None  # before the new one is allocated
            try:
                buffer = self._allocate(max(size, self.capacity))
                self.released[turn] = self._event()  # whoever had this memory is done with it by then
            except torch.cuda.OutOfMemoryError:
                if self.capacity <= size:
                    raise
                self.capacity //= 2
        self.buffers[turn] = buffer
        return buffer

    def _allocate(self, size: int) -> Tensor:
        on_host = self.holder.type == "cpu"
        return host_memory(size) if on_host else torch.empty(size, dtype=torch.uint8, device=self.holder)

    def _event(self) -> Any:
        if self.holder.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.holder))
        return event

    def stats(self) -> dict[str, float]:
        """Chunks and bytes so far, seconds the loop waited for reads, bytes held for chunks and blocks."""
        held = [buffer for buffer in self.buffers if buffer is not None]
        held += [part.values for _, part in self.resident.values()] + list(self.outputs.tensors.values())
        return {
            "chunks": self.chunks,
            "read_bytes": self.read_bytes,
            "wait_seconds": self.reader.waited,
            "resident": float(bool(self.resident)),
            "chunk_bytes": sum(tensor.nbytes for tensor in held),
            "block_bytes": self.reader.host_bytes,
        }

    def close(self) -> None:
        """Ends the threads and lets the memory go."""
        self.reader.close()
        self.buffers, self.outputs, self.resident = [None] * len(self.buffers), Outputs(), {}
        self.capacity = 0
        while self.sources:
            self.sources.popitem()[1].close()


def free_for_chunks(device: torch.device) -> int:
    """Bytes for all chunks together: three quarters of the memory that the largest step so far has left free.

    A GPU of 8, 12, 16 or 24 GB with nothing else on it has 6, 9, 12 or 18 GB for chunks.
    """
    if device.type == "cpu":
        return HOST_BYTES
    return int(DEVICE_SHARE * memory_left(device))
