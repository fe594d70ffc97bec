"""Estimates before the first batch whether batches fit into the free memory.

A system that runs out of memory kills the process without a message. Therefore the size of a
batch's rows is estimated before they are read. On a CPU, the memory that forward keeps for backward
is measured with a few samples. A GPU reports a lack of memory as an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..engine.compute.optimization import compiles
from ..engine.errors import UserError
from ..engine.interfaces import Batch
from ..engine.training.dry_run import without_trace
from .host_memory import free_host_memory

if TYPE_CHECKING:
    from ..engine.loading.order import Order
    from ..engine.settings import EngineSettings
    from ..engine.training.project import Project

CPU = torch.device("cpu")
NUM_PROBES = 64  # samples whose rows are counted
EXTRA_BYTES = 64  # per sample, for its place in the order and for the masks of a batch
USABLE = 0.8  # fraction of the free memory for the batch size that an error suggests


def check_rows(project: Project, loaders: list[Any]) -> None:
    """Raise `UserError` if the rows of a batch do not fit. The result may differ between ranks."""
    for loader in loaders:
        sample_bytes = row_bytes(project, loader)
        for device in {CPU, project.device}:
            _check(project.settings, loader.order, 0, sample_bytes, device)


def row_bytes(project: Project, loader: Any) -> int:
    """Return the mean size of the first samples' rows as they are stored, padding included."""
    indices = loader.order.sample(np.arange(min(NUM_PROBES, loader.order.count)))
    total = 0
    for name, spans in loader.samples.spans(indices, 0).items():
        total += spans.starts.size * spans.width * project.store.arrays[name].row_bytes
    return EXTRA_BYTES + total // len(indices)


def check_forward(project: Project, loader: Any) -> None:
    """Check that gradients, averages, rows and what forward keeps fit into the memory of a CPU.

    There is no check of compiled blocks, which keep less than is measured here, of checkpointed
    ones, most of whose memory is allocated in backward, or of a sharded model, whose forward waits
    for other ranks.
    """
    is_compiled, _ = compiles(project.settings, None)
    is_other = is_compiled or project.settings.training.gradient_checkpointing
    if project.device.type != "cpu" or project.distributed.forward_exchanges or is_other:
        return
    batches = loader.epoch(0)
    batch = next(batches)
    batches.close()
    gradients = [weight for weight in project.model.parameters() if weight.requires_grad]
    averages = reserve_averages(project.optimizer)
    fixed = sum(tensor.nbytes for tensor in [*gradients, *averages])
    del averages
    with without_trace(project.model):
        kept_by_two = kept_bytes(project, batch, 2)
        kept_by_four = kept_bytes(project, batch, 4)
    sample_bytes = row_bytes(project, loader) + max(kept_by_four - kept_by_two, 0) // 2
    _check(project.settings, loader.order, fixed, sample_bytes, CPU)


def reserve_averages(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Reserve as much memory as the optimizer's averages will take in the first step."""
    reserved: list[Tensor] = []
    for group in optimizer.param_groups:
        count = 2 * ("betas" in group) + ("momentum" in group)  # AdamW has two, Muon has one
        reserved += [torch.empty_like(parameter) for parameter in group["params"] * count]
    return reserved


def kept_bytes(project: Project, batch: Batch, count: int) -> int:
    """Return the bytes that forward keeps for backward with `count` copies of the first sample."""
    small_batch = {name: values[[0] * count] for name, values in batch.items()}
    kept: dict[int, int] = {}  # by address, so that each storage counts once

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), project.precision.autocast():
        output = project.model(small_batch)
    del output  # until here it held what was kept, so that no address was used twice
    return sum(kept.values())


# --- free memory


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or of the host for a CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_host_memory()


# --- the error


def _check(
    settings: EngineSettings, order: Order, fixed: int, size: int, device: torch.device
) -> None:
    """Raise `UserError` if `fixed` bytes and `size` bytes a sample exceed what is free."""
    free = free_memory(device)
    needed = fixed + size * order.batch_size
    if needed <= free:
        return
    memory = "GPU memory" if device.type == "cuda" else "memory"
    batch = f"a batch of {order.batch_size:,} samples needs about {needed / 1e6:,.1f} MB"
    what = f"out of {memory}: {batch}, and {free / 1e6:,.1f} MB are free"
    key = "data.batch_size"
    if not order.train and settings.evaluation.batch_size:
        key = "evaluation.batch_size"

    fitting = int(USABLE * free - fixed) // size
    if fitting < 1:
        raise UserError(what, key, "choose a smaller model, or a machine with more memory")
    suggested = 1 << (fitting.bit_length() - 1)  # a power of two
    remedy = f"use --{key} {suggested}"
    if order.train:
        samples = order.batch_size * settings.training.gradient_accumulation_steps
        remedy += f" --training.gradient_accumulation_steps {-(-samples // suggested)}"
    raise UserError(what, key, remedy)
