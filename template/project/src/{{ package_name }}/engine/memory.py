"""Whether a batch fits into the memory that is free, asked before the first step.

A system that runs out of memory kills the process without a message. So what a batch needs is estimated
from a few samples: its rows on every device, and on a CPU what forward keeps for backward. On a GPU the
dry run shows the latter, because CUDA reports an error (see `optimization.dry_run`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .errors import UserError
from .optimization import compiles
from .progress import random_state, set_random_state
from .rows import deliver, gather, mapped, stored_dtype
from .seams import Batch, Rows

if TYPE_CHECKING:
    from .config import Settings
    from .order import Order
    from .project import Project

CPU = torch.device("cpu")
LOOKED_AT = 64  # samples, evenly spaced
NUMBERS_BYTES = 64  # of a sample, for what an order computes and the masks of a batch
SMALL_BATCHES = (2, 4)  # samples; the difference of what forward keeps is that of two samples
WORTH_MEASURING = 1 / 16  # of the free memory, for a rough guess that exceeds the truth as a rule
USABLE = 0.8  # of the free memory, for the batch size that an error suggests
STATES = {"adamw": 2, "muon": 1}  # tensors of the optimizer for each weight
CGROUPS = Path("/sys/fs/cgroup")


def check_memory(project: Project, loader: Any, validation: Any) -> None:
    """Raise `UserError` where a batch of training or of the validation cannot fit.

    validation: its loader, or None. Each rank may have another answer.
    """
    for used in (loader, validation):
        if used is not None:
            _check_rows(project, used)
    if _is_measurable(project, loader):
        _check_forward(project, loader)


# --- what a batch needs


def _check_rows(project: Project, loader: Any) -> None:
    """Compare the rows of a batch, as they are stored, with each memory that holds them."""
    size = stored_bytes(project, loader) + NUMBERS_BYTES
    for device in dict.fromkeys((CPU, project.device)):
        free = free_memory(device)
        if size * loader.order.batch_size > free:
            raise too_large(project.settings, loader.order, 0, size, free, device)


def stored_bytes(project: Project, loader: Any) -> int:
    """The mean size of a sample's rows, padding included."""
    numbers = _looked_at(loader)
    total = 0
    for name, spans in loader.samples.spans(numbers, 0).items():
        total += spans.starts.size * spans.width * project.store.arrays[name].row_bytes
    return total // len(numbers)


def _is_measurable(project: Project, loader: Any) -> bool:
    """Whether to measure what forward keeps: on a CPU, and where a rough guess is a good part of the memory.

    Compiled blocks keep less than they do here, and a sharded model's forward waits for other ranks.
    """
    if project.device.type != "cpu" or project.distributed.forward_exchanges:
        return False
    if compiles(project.settings, None)[0]:
        return False
    spans = loader.samples.spans(_looked_at(loader), 0)
    if any(project.store.arrays[name].offset is None for name in spans):
        return False  # packed rows, which HDF5 alone can read

    outputs = sum(weight.shape[0] for weight in project.model.parameters() if weight.dim() > 1)
    guess: float = 4 * outputs * stored_bytes(project, loader) * loader.order.batch_size
    return guess > WORTH_MEASURING * free_memory(CPU)


def _check_forward(project: Project, loader: Any) -> None:
    """Compare gradients, the optimizer's state, rows and what forward keeps with the free memory."""
    trained = [weight for weight in project.model.parameters() if weight.requires_grad]
    states = STATES.get(project.settings.optimizer.name, 0)
    fixed = (1 + states) * sum(weight.nbytes for weight in trained)

    number = _typical(loader)
    kept = []
    with _unchanged(project):
        for count in SMALL_BATCHES:
            kept.append(kept_bytes(project, _small_batch(project, loader, number, count)))
    fewer, more = SMALL_BATCHES
    kept_by_sample = max(kept[1] - kept[0], 0) // (more - fewer)
    size = kept_by_sample + stored_bytes(project, loader) + NUMBERS_BYTES

    free = free_memory(CPU)
    if fixed + size * loader.order.batch_size > free:
        raise too_large(project.settings, loader.order, fixed, size, free, CPU)


def _looked_at(loader: Any) -> np.ndarray:
    """Numbers of some samples, evenly spaced."""
    places = np.linspace(0, loader.order.count - 1, LOOKED_AT).astype(np.int64)
    numbers: np.ndarray = loader.order.sample(np.unique(places))
    return numbers


def _typical(loader: Any) -> int:
    """The number of a sample with as many rows as most have."""
    numbers = _looked_at(loader)
    rows = np.zeros(len(numbers), np.int64)
    for spans in loader.samples.spans(numbers, 0).values():
        rows += spans.lengths.reshape(len(numbers), -1).sum(1)
    return int(numbers[np.argsort(rows)[len(rows) // 2]])


def _small_batch(project: Project, loader: Any, number: int, count: int) -> Batch:
    """One sample `count` times, read without the loader, which would prepare for full batches."""
    samples = loader.samples
    numbers = np.full(count, number)
    rows = {}
    for name, spans in samples.spans(numbers, 0).items():
        array = project.store.arrays[name]
        values = gather(mapped(array), spans).view(stored_dtype(array))
        rows[name] = Rows(values, torch.from_numpy(spans.lengths))
    if hasattr(samples, "host"):
        rows = samples.host(rows, numbers, 0)
    return deliver(samples, rows, numbers, np.ones(count, bool), project.device)


def kept_bytes(project: Project, batch: Batch) -> int:
    """Bytes that forward keeps for backward, each memory once."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), project.precision.autocast():
        output = project.model(batch)
    del output  # it holds what was kept until here, so that no address was used twice
    return sum(kept.values())


@contextmanager
def _unchanged(project: Project) -> Iterator[None]:
    """Put random numbers and the model's buffers back."""
    state = random_state()
    buffers = {name: buffer.clone() for name, buffer in project.model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in project.model.named_buffers():
                buffer.copy_(buffers[name])
        set_random_state(state)


# --- what is free


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device; of a host's memory the part of this process."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return min([_available(), *_left_in_groups()]) // processes


def _available() -> int:
    """What the system can give without swapping; all of its memory where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_in_groups() -> Iterator[int]:
    """What the limits of a container or a job leave; pages of files that can go count as free."""
    try:
        place = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
    except OSError:
        return
    for folder in (CGROUPS / place, *(CGROUPS / place).parents):
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # no such group, or "max"
            continue
        counts = dict(line.split() for line in lines)
        yield limit - used + int(counts.get("inactive_file", 0))


# --- what to say


def too_large(
    settings: Settings, order: Order, fixed: int, size: int, free: int, device: torch.device
) -> UserError:
    """The error for a batch that needs more than is free.

    fixed: bytes that do not depend on the batch. size: bytes of a sample.
    """
    own = not order.train and settings.evaluation.batch_size
    key = "evaluation.batch_size" if own else "data.batch_size"
    needed = _shown(fixed + size * order.batch_size)
    where = "GPU memory" if device.type == "cuda" else "memory"
    batch = f"a batch of {order.batch_size:,} samples needs about {needed}"
    what = f"out of {where}: {batch}, {_shown(free)} are free"
    return UserError(what, key, _remedy(settings, order, key, int(USABLE * free - fixed) // size))


def _remedy(settings: Settings, order: Order, key: str, fitting: int) -> str:
    """Name a batch size that fits, a power of two."""
    if fitting < 1:
        return "choose a smaller model, or a machine with more memory"
    size = 1 << (fitting.bit_length() - 1)
    if not order.train:
        return f"--evaluation.batch_size {size}"
    samples = order.batch_size * settings.training.gradient_accumulation_steps
    groups = -(-samples // size)
    return f"--{key} {size}, with --training.gradient_accumulation_steps {groups} for as many samples a step"


def _shown(size: int) -> str:
    """Bytes for a reader: `43.1 GB`, `512 MB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
