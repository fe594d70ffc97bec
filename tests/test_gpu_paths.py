"""What only CUDA runs, on devices that are made up: the rules that streams, events and processes must keep.

`Gpu` puts copies of side streams off until somebody waits for them, which a real card does at times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_loaders
import torch
from importing import imported
from rendering import REPOSITORY, render
from test_loaders import (
    SIZES,
    Days,
    Fake,
    Pages,
    Ragged,
    Windows,
    assert_equal,
    delivered,
    make,
    module,
    settings,
)
from torch import Tensor

folder = test_loaders.folder  # its fixture
CARD = torch.device("cuda", 1)
ONE_AT_A_TIME = threading.Lock()


class Event:
    """What is queued before it; nothing, until it is recorded."""

    def __init__(self) -> None:
        self.queue: list[Any] | None = None
        self.end = self.clock = 0

    def record(self, stream: Stream) -> None:
        self.queue, self.end = stream.queue, len(stream.queue) if stream.queue is not None else 0
        self.clock = stream.gpu.clock

    def synchronize(self) -> None:
        for place in range(self.end if self.queue is not None else 0):
            with ONE_AT_A_TIME:
                work, self.queue[place] = self.queue[place], None
                if work is not None:
                    work()


class Stream:
    """A queue of copies; the main one has none: what it does is done at once."""

    def __init__(self, gpu: Gpu, side: bool = True):
        self.gpu, self.device, self.after = gpu, CARD, -1
        self.queue: list[Any] | None = [] if side else None

    def wait_event(self, event: Event) -> None:
        if self.queue is None:
            event.synchronize()
        else:
            self.after = max(self.after, event.clock)

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event


class Gpu:
    """One card, number 1 of two, in place of `torch.cuda`; memory is the host's.

    clock: batches that were used so far. used: by address of a chunk's memory, the clock when a batch of it
    was handed out, which is used until the next one is asked for. before: the same of the chunk before it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.clock, self.main, self.own = 0, Stream(self, side=False), threading.local()
        self.used: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.chosen: dict[str, list[Any]] = {}  # by thread: device calls in their order
        empty, copy = torch.empty, Tensor.copy_

        def put_off(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            stream = getattr(self.own, "stream", None)
            if stream is None:
                return copy(target, source, non_blocking)
            address = target.untyped_storage().data_ptr()
            assert stream.after > self.before.get(address, -1), (
                "it overwrites what a step still reads"
            )
            stream.queue.append(lambda: copy(target, source))
            return target

        def ordinary(
            *shape: Any, pin_memory: bool = False, device: Any = None, **more: Any
        ) -> Tensor:
            return empty(*shape, **more)

        class selected:
            def __init__(context, stream: Stream):
                context.stream = stream

            def __enter__(context) -> None:
                self.own.stream = context.stream

            def __exit__(context, *error: object) -> None:
                self.own.stream = None

        def made(device: Any) -> Stream:
            self.note("stream")
            return Stream(self)

        fakes = {
            "Event": Event,
            "Stream": made,
            "stream": selected,
            "current_stream": lambda device=None: self.main,
            "set_device": self.note,
            "synchronize": lambda device=None: None,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch, "empty", ordinary)
        monkeypatch.setattr(Tensor, "copy_", put_off)

    def note(self, what: Any) -> None:
        self.chosen.setdefault(threading.current_thread().name, []).append(what)


def chunk_loader(
    folder: Path, fake: type[Fake], order: str, size: Any, resident: Any = "auto"
) -> Any:
    """The chunk loader for a card, whose batches stay where they are."""
    given = settings(order, size, resident=resident)
    part, samples = (
        module("engine.loader", "chunk"),
        fake(module("engine.seams", "chunk").Spans, False),
    )
    store = module("engine.store", "chunk").Store.open(folder)
    order = module("engine.order", "chunk").order_of(samples, given, 0, 1, False)
    return part.Loader(samples, store, given, order, CARD)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    seams = module("engine.loader", "chunk")
    rows = module("engine.rows", "chunk")
    here = lambda *parts: rows.deliver(*parts[:-1], torch.device("cpu"))  # noqa: E731
    monkeypatch.setattr(seams, "deliver", here)
    chunks, card = module("engine.chunks", "chunk"), Gpu(monkeypatch)
    monkeypatch.setattr(chunks, "memory_left", lambda device: 1 << 30)
    take = chunks.Part.take

    def taken(part: Any, *rest: Any) -> Any:
        card.used[part.values.untyped_storage().data_ptr()] = card.clock
        return take(part, *rest)

    start = chunks.Chunks._start

    def started(self: Any, parts: Any, memory: Tensor, free: Any) -> None:
        address = memory.untyped_storage().data_ptr()
        card.before[address] = card.used.pop(address, -1)
        start(self, parts, memory, free)

    call = chunks.Chunks.__call__

    def counted(self: Any, *place: int) -> Any:
        for rows in call(self, *place):
            yield rows
            card.clock += 1

    monkeypatch.setattr(chunks.Chunks, "__call__", counted)
    monkeypatch.setattr(chunks.Part, "take", taken)
    monkeypatch.setattr(chunks.Chunks, "_start", started)
    return card


# ---- streams and events --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1 / 8, 0, "auto"])
@pytest.mark.parametrize("fake", [Windows, Pages, Ragged, Days])
def test_copies_that_come_late_give_the_same_batches(
    fake: type[Fake], size: Any, folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is not filled again before its copy, no chunk before its last use, no batch before its rows."""
    expected = delivered(make("memmap", fake, folder, settings("full"), train=False), (0, 1))
    reader, share = (
        module("engine.reader", "chunk"),
        size if size == "auto" else size * SIZES[fake] / 1e9,
    )
    monkeypatch.setattr(reader, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(reader, "SMALLEST_BLOCK", 1 << 12)
    loader, found = chunk_loader(folder, fake, "full", share or 1e-9), []
    for epoch in (0, 1):
        for batch in loader.epoch(epoch):
            found.append({name: value.clone() for name, value in batch.items()})
    assert loader.stats()["resident"] or size != "auto"
    loader.close()
    assert_equal(found, expected)


def test_reading_threads_stay_on_their_own_card(folder: Path, gpu: Gpu) -> None:
    """A new thread is on device 0: what selects a stream there opens a context on another's card."""
    loader = chunk_loader(folder, Pages, "full", 0.001)
    for _ in loader.epoch(0):
        pass
    loader.close()
    threads = {name: calls for name, calls in gpu.chosen.items() if name.startswith("chunk-reader")}
    assert threads
    assert all(calls == [CARD, "stream"] for calls in threads.values())


def test_a_card_that_has_failed_does_not_keep_the_loader_from_closing(
    folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a device-side assert every call raises; the run must still say what happened."""

    def failed(device: Any = None) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    before = set(threading.enumerate())
    loader = chunk_loader(folder, Pages, "time", 0.001)
    next(batches := loader.epoch(0))
    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    batches.close()
    loader.close()
    assert not loader._chunks.sources
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("left", [0, 1])
def test_memory_that_somebody_else_took_is_no_end(
    left: int, folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be resident comes in chunks then; only who asked for `resident: true` gets the error."""
    expected = delivered(make("memmap", Pages, folder, settings("full"), train=False), (0,))
    for resident in ("auto", True):
        loader, room, refuses = (
            chunk_loader(folder, Pages, "full", "auto", resident),
            [left],
            [False],
        )
        allocate, reside = loader._chunks._allocate, loader._chunks._reside

        def scarce(
            size: int, allocate: Any = allocate, room: Any = room, refuses: Any = refuses
        ) -> Tensor:
            room[0] -= refuses[0]
            if room[0] < 0 and refuses[0]:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return allocate(size)

        def residing(epoch: int, reside: Any = reside, refuses: Any = refuses) -> None:
            refuses[0] = True
            reside(epoch)
            refuses[0] = False

        monkeypatch.setattr(loader._chunks, "_allocate", scarce)
        monkeypatch.setattr(loader._chunks, "_reside", residing)
        if resident is True:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                next(loader.epoch(0))
        else:
            assert_equal(delivered(loader, (0,)), expected)
            assert loader.stats()["resident"] == 0
        loader.close()


def test_a_page_locked_buffer_is_not_filled_before_the_copy_out_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an epoch is left after a batch, as the trial of a step does."""
    part = module("engine.loader", "memmap")
    copies: dict[
        int, Any
    ] = {}  # address of a buffer → event behind the copy that may still read it
    empty, deliver, gather = torch.empty, part.deliver, part.gather
    open_copies: list[int] = []

    class Copied(Event):
        def __init__(self, addresses: list[int]):
            self.addresses = addresses

        def synchronize(self) -> None:
            for address in self.addresses:
                copies.pop(address, None)

    def delivering(samples: Any, rows: Any, *rest: Any) -> Any:
        open_copies.extend(row.values.data_ptr() for row in rows.values())
        copies.update(dict.fromkeys(open_copies))
        return deliver(samples, rows, *rest)

    def gathering(source: Tensor, spans: Any, out: Tensor) -> Tensor:
        assert out.data_ptr() not in copies, "it overwrites what is on its way"
        return gather(source, spans, out)

    def recorded() -> Copied:
        event = Copied([*open_copies])
        open_copies.clear()
        return event

    stream = SimpleNamespace(record_event=recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(
        torch, "empty", lambda *shape, pin_memory=False, **more: empty(*shape, **more)
    )
    monkeypatch.setattr(part, "deliver", delivering)
    monkeypatch.setattr(part, "gather", gathering)
    loader = make("memmap", Windows, folder, settings("full"))
    loader.pin = True
    for _ in range(4):  # left at its first batch
        next(batches := loader.epoch(0))
        batches.close()
    assert len(list(loader.epoch(0))) == len(loader)
    loader.close()


# ---- resident rows -------------------------------------------------------------------------------


class OnCard(Tensor):
    """A tensor that says it is a GPU's."""

    is_cuda = True


@pytest.mark.parametrize("shape", [(9,), (5, 3)])
@pytest.mark.parametrize("row", [(), (4,), (2, 3)])
def test_ragged_rows_are_gathered_with_two_numbers_a_span(
    shape: tuple[int, ...], row: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may wait for the stream with more than 64 kB of ordinary memory: widths must not count."""
    part, random = module("engine.resident", "memmap"), np.random.default_rng(3)
    source = torch.from_numpy(random.normal(size=(400, *row)))
    lengths = random.integers(0, 40, shape)
    starts = np.where(lengths > 0, random.integers(0, 360, shape), 0)
    spans, moved = module("engine.seams", "memmap").Spans(starts, lengths, 40), []
    expected = part.rows.gather(source, spans)

    def counted(source: Tensor, values: np.ndarray) -> Tensor:
        moved.append(values.nbytes)
        return torch.from_numpy(values)

    monkeypatch.setattr(part.rows, "on_device", counted)
    found = part.gather(source.as_subclass(OnCard), spans)
    assert found.as_subclass(Tensor).equal(expected)
    assert sum(moved) <= 16 * starts.size


# ---- random numbers of a card --------------------------------------------------------------------


class Generators:
    """CUDA's generators of some visible devices, of which one is in use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, current: int):
        self.states = [torch.full((2,), 10 * number) for number in range(count)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.states[current].clone())
        monkeypatch.setattr(
            torch.cuda, "set_rng_state", lambda state: self.states[current].copy_(state)
        )


@pytest.mark.parametrize(("count", "current"), [(1, 0), (2, 1), (8, 3)])
def test_a_run_finds_its_random_numbers_on_another_number_of_cards(
    count: int, current: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = module("engine.progress", "memmap")
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    there = Generators(monkeypatch, 4, 2)
    there.states[2] += 7
    saved = part.random_state()
    assert [state.tolist() for state in saved["cuda"]] == [[27, 27]]
    here = Generators(monkeypatch, count, current)
    others = [state.tolist() for state in here.states]
    part.set_random_state(saved)
    others[current] = [27, 27]
    assert [state.tolist() for state in here.states] == others


@pytest.mark.parametrize(("count", "wanted"), [(4, [12, 12]), (2, [10, 10])])
def test_older_checkpoints_have_a_state_for_each_card(
    count: int, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = module("engine.progress", "memmap")
    state = part.random_state() | {"cuda": [torch.full((2,), 11 + number) for number in range(4)]}
    here = Generators(monkeypatch, count, 1)
    part.set_random_state(state)
    assert here.states[1].tolist() == wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # on a CPU they are left alone
    part.set_random_state(state)


# ---- what the libraries say, and when they read what ------------------------------------------------


@pytest.mark.parametrize(
    ("said", "gpu"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("CUDA error: device-side assert triggered", False),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False),
    ],
)
def test_memory_that_a_library_lacks_is_memory(
    said: str, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator has a class for it; CUDA, cuBLAS and cuDNN, which take memory beside it, have words."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    given = imported(render(), "config").load(None, None, [], {})
    found = module("engine.errors", "memmap").explain(RuntimeError(said), given, None)
    assert (
        found is not None and str(found).startswith("out of GPU memory: NVIDIA L4, 1.0 of 8.0")
    ) is gpu


def test_a_driver_without_growing_segments_is_named_with_the_switch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Virtual GPUs and some WSL drivers refuse them at the first allocation (pytorch#192330)."""
    main = imported(render(), "__main__")

    def refused(*_: Any) -> None:
        raise RuntimeError("CUDA driver error: operation not supported")

    verb = SimpleNamespace(__doc__="Fake.", arguments=lambda parser: None, run=refused)
    monkeypatch.setattr(main, "import_module", lambda *_: verb)
    assert main.main(["train"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: CUDA driver error: operation not supported: train: ")
    assert last.endswith("PYTORCH_ALLOC_CONF=expandable_segments:False")


STUB = """
import json, os, sys
print(json.dumps({name: os.environ.get(name) for name in sys.argv[0:0] + %r}))
sys.stdout.flush()
os._exit(0)
"""
NAMES = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"]


def at_import(folder: Path, *words: Any, path: Path) -> dict[str, str | None]:
    """The environment as it is when the first module asks for torch."""
    (folder / "torch.py").write_text(STUB % NAMES)
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    clean["PYTHONPATH"] = os.pathsep.join(map(str, (folder, path)))
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=clean, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("verb", ["train", "profile"])
def test_the_allocator_is_told_before_torch_loads(verb: str, tmp_path: Path) -> None:
    source = render(extras=["profile"]) / "src"
    found = at_import(tmp_path, "-m", "my_training", verb, path=source)
    assert (
        found["PYTORCH_ALLOC_CONF"]
        == found["PYTORCH_CUDA_ALLOC_CONF"]
        == "expandable_segments:True"
    )


def test_benchmarks_ask_for_what_their_last_row_needs_before_their_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLAS is asked whether it repeats itself at the first product of a process, and never again."""
    (tmp_path / "graph-dataloader-pytorch").symlink_to(render(workload="graph"))
    monkeypatch.setenv("FASTTRAIN_PROJECTS", str(tmp_path))
    found = at_import(tmp_path, REPOSITORY / "benchmarks/gpu/graph.py", path=REPOSITORY / "tests")
    assert found == {**dict.fromkeys(NAMES[:2], "expandable_segments:True"), NAMES[2]: ":4096:8"}


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "error", "leaves"), [("cuda", True, 0), ("cuda", False, 1), ("cpu", True, 1)]
)
def test_a_rank_that_fails_alone_does_not_wait_for_the_others_to_leave(
    device: str, error: bool, leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's leave-taking waits for all ranks of a host, which wait for this one until it ends."""
    part = imported(render(distributed="ddp"), "engine.group")
    group, left = object.__new__(part.Group), []
    group.device, group._vote = torch.device(device), None
    monkeypatch.setattr(part.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(part.dist, "destroy_process_group", lambda: left.append(True))
    monkeypatch.setattr(part.time, "sleep", lambda seconds: None)

    def session() -> None:
        try:
            if error:
                raise ValueError("of this rank")
        finally:
            group.close()

    if error:
        with pytest.raises(ValueError, match="of this rank"):
            session()
    else:
        session()
    assert len(left) == leaves


# ---- number formats ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [128, 4096])
def test_an_lstm_in_float16_has_room_for_gradients_that_are_sums(batch: int) -> None:
    """Under bf16 torch gives cuDNN's LSTM float16 without a loss scale, and ours are sums, not means."""
    project, random = render(workload="windows", loader="chunk"), torch.Generator().manual_seed(1)
    given = imported(project, "config").load(None, None, [("model.width", "64")], {})
    facts = {
        "mean": [0.0] * 12,
        "std": [1.0] * 12,
        "target_mean": [0.0] * 8,
        "target_std": [1.0] * 8,
    }
    torch.manual_seed(1)
    model, largest = imported(project, "model").build_model(given, facts), [0.0]
    features = torch.randn(batch, 24, 12, generator=random)
    target = 5 + torch.randn(
        batch, 8, generator=random
    )  # all errors point the same way, as they never do
    output = model(
        {"features": features, "target": target, "present": torch.ones(batch, dtype=torch.bool)}
    )
    output.loss.backward(gradient=output.weight)
    for name, parameter in model.encoder.named_parameters():
        assert parameter.grad is not None, name
        largest.append(float(parameter.grad.abs().max()))
    assert 1 < max(largest) < torch.finfo(torch.float16).max / 4
