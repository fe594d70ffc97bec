"""What only CUDA runs, on made-up devices: the bugs that a reading of these paths has found.

Copies of side streams wait here until an event needs them, as on a real card at times.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import test_loaders
import torch
from importing import imported
from rendering import render
from test_loaders import Pages, assert_equal, delivered, make, module, settings
from torch import Tensor

folder = test_loaders.folder  # its fixture
CARD = torch.device("cuda", 1)
ONE_AT_A_TIME = threading.Lock()


class Event:
    """Knows what was queued before it."""

    def __init__(self):
        self.works: list[Work] = []

    def record(self, stream):
        self.works = [*stream.queue]

    def synchronize(self):
        with ONE_AT_A_TIME:
            for work in self.works:
                work.run()


class Work:
    """A piece of work that is done once."""

    def __init__(self, function):
        self.function: Callable[[], Any] | None = function

    def run(self):
        if self.function is not None:
            self.function()
        self.function = None


class Stream:
    """A queue of works. A thread `may_write` once it has waited for what used the memory before."""

    def __init__(self, device=CARD):
        self.device = CARD
        self.queue: list[Work] = []
        self.own = threading.local()

    def wait_event(self, event):
        event.synchronize()
        self.own.may_write = True


class Gpu:
    """Card 1 of two, in place of `torch.cuda`; its memory is the host's."""

    def __init__(self, monkeypatch):
        self.main = Stream()
        self.calls: dict[str, list[Any]] = {}  # of each thread, in their order
        self.own = threading.local()
        empty = torch.empty
        copy = Tensor.copy_

        def copy_later(target, source, non_blocking=False):
            stream = getattr(self.own, "stream", None)
            if stream is None:
                return copy(target, source)
            assert stream.own.may_write, "it overwrites what a step still reads"
            stream.own.may_write = False
            stream.queue.append(Work(lambda: copy(target, source)))
            return target

        def plain(*shape, pin_memory=None, device=None, **more):
            return empty(*shape, **more)

        def note(call):
            self.calls.setdefault(threading.current_thread().name, []).append(call)

        @contextlib.contextmanager
        def select(stream):
            self.own.stream = stream
            yield
            self.own.stream = None

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", select)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.main)
        monkeypatch.setattr(torch.cuda, "set_device", note)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(torch, "empty", plain)
        monkeypatch.setattr(Tensor, "copy_", copy_later)


@pytest.fixture
def gpu(monkeypatch):
    loader = module("engine.loading.loader")
    deliver = loader.deliver

    def stay(*arguments):
        return deliver(*arguments[:-1], torch.device("cpu"))

    monkeypatch.setattr(loader, "deliver", stay)
    monkeypatch.setattr(module("engine.loading.chunks"), "free_for_chunks", lambda device: 3 << 28)
    return Gpu(monkeypatch)


def chunk_loader(folder, order, size, resident="auto"):
    given = settings(order, size, resident=resident)
    samples = Pages(module("engine.interfaces").Spans, False)
    store = module("engine.loading.store").Store.open(folder)
    ordered = module("engine.training.project").make_order(samples, given, 0, 1, False)
    return module("engine.loading.loader").Loader(samples, store, given, ordered, CARD)


@pytest.mark.parametrize("size", [4e-4, "auto"])
def test_late_copies_give_the_same_batches_by_threads_on_their_own_card(
    size, folder, gpu, monkeypatch
):
    """A new thread is on device 0: leaving a stream there opens a context on another's card."""
    expected = delivered(make("memmap", Pages, folder, settings("full"), train=False))
    monkeypatch.setattr(module("engine.loading.reader"), "BLOCK_BYTES", 1 << 16)
    assert_equal(delivered(chunk_loader(folder, "full", size)), expected)
    threads = [calls for name, calls in gpu.calls.items() if name.startswith("chunk-reader")]
    assert threads
    assert all(calls == [CARD] for calls in threads)


FULL = "out of GPU memory: train: try, in this order: "
SAID = {  # by a CUDA library, none of it by a class of its own; and what is explained
    "CUDA error: out of memory\nCUDA kernel errors might be reported later": FULL,
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": FULL,
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": FULL,
    # Virtual GPUs and some WSL drivers refuse expandable segments (pytorch#192330).
    "CUDA driver error: operation not supported": "CUDA driver error: operation not supported: ",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": "None",
}


def test_a_lack_of_memory_names_every_remedy_that_the_project_has():
    for loader, has_chunks in (("chunk", True), ("memmap", False)):
        project = render(workload="windows" if has_chunks else "timeseries", loader=loader)
        explain = imported(project, "engine.training.explanations").explain
        line = str(
            explain(
                torch.OutOfMemoryError("out of memory"),
                imported(project, "settings").Settings.load(),
            )
        )
        named = ("data.batch_size 32", "gradient_checkpointing true", "low_memory", "adafactor")
        assert all(name in line for name in named)
        assert line.endswith("; a smaller model")
        assert ("data.chunk_size_gb with 60 % of the GPU's memory" in line) == has_chunks
        settings = imported(project, "settings").Settings.load(
            overrides=[("optimizer.name", "adafactor")]
        )
        assert "adafactor" not in str(explain(torch.OutOfMemoryError("out of memory"), settings))


@pytest.mark.parametrize("said", SAID)
def test_what_a_library_lacks_is_explained(said):
    project = render(extras=["diagnose"])
    given = imported(project, "settings").Settings.load()
    explained = imported(project, "engine.training.explanations").explain(RuntimeError(said), given)
    assert str(explained).startswith(SAID[said])


NAMES = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
STUB = f"""
import json, os
print(json.dumps([os.environ.get(name) for name in {NAMES}]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("given", ["", "backend:cudaMallocAsync"])
def test_what_torch_reads_once_is_set_before_it_loads(given, tmp_path):
    """The allocator's options, unless the user has set them."""
    (tmp_path / "torch.py").write_text(STUB)
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{render() / 'src'}"
    if given:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = given
    command = [sys.executable, "-m", "my_training", "train"]
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).stdout
    assert json.loads(out.splitlines()[-1]) == [given or "expandable_segments:True"] * 2
