"""Checks before the first step that a batch fits into the free memory, and what a model returns.

A system that runs out of memory kills the process without a message. Therefore the size of a
batch's rows is estimated before they are read. On a CPU, the memory that forward keeps for backward
is measured with one sample of the batch. A GPU reports a lack of memory as an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .errors import UserError
from .explanations import out_of_memory
from .host_memory import free_host_memory
from .interfaces import (
    FORWARD,
    Batch,
    check_batch,
    check_mask,
    check_output,
    check_predictions,
    check_registered,
)
from .optimization import compiles
from .progress import random_state, set_random_state
from .rows import count_bytes

if TYPE_CHECKING:
    from .config import Settings
    from .order import Order
    from .project import Project

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
    return EXTRA_BYTES + count_bytes(loader.samples, project.store, indices) // len(indices)


def dry_run(project: Project, loader: Any, validation: Any = None) -> float:
    """Run one batch forward and backward, so that memory and compile errors show at the start.

    Random state, buffers and gradients are restored. Returns the total weight of the batch.
    validation: a loader for the checks in evaluation. Raises `UserError` if model.py or dataset.py
    breaks its contract, or memory is too small.
    """
    state = random_state()
    buffers = {name: buffer.clone() for name, buffer in project.model.named_buffers()}
    batches = loader.epoch(0)
    batch = next(batches)
    reserved = reserve_averages(project.optimizer)
    try:
        check_batch(batch)
        if validation is not None:
            check_answers(project, validation)
        _check_forward_memory(project, loader, batch, reserved)
        with project.precision.autocast():
            # The model is called without its wrapper, so that no gradients are exchanged.
            output = project.model(batch)
        check_output(output)
        if not output.loss.requires_grad:
            remedy = "compute it without detach, item and no_grad"
            raise UserError("the loss has no gradient", FORWARD, remedy)
        if not project.distributed.forward_exchanges:  # shards are not the tensors of a forward
            check_registered(project.model, output.loss)
        output.loss.backward(gradient=output.total_weight)
    except torch.cuda.OutOfMemoryError as error:
        # The other ranks wait in the exchange, and end when this process ends.
        if project.distributed.forward_exchanges:
            raise
        raise out_of_memory("GPU memory", project.settings, loader.order.batch_size) from error
    del reserved
    batches.close()

    project.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in project.model.named_buffers():
            buffer.copy_(buffers[name])
    set_random_state(state)
    return float(output.total_weight)


@torch.no_grad()
def check_answers(project: Project, loader: Any) -> None:
    """Check what the model returns in evaluation, with two samples and without compiling.

    They are of the last batch, which is often padded.
    """
    model = project.model
    batches = loader.epoch(0, len(loader) - 1)
    batch = next(batches)
    samples = batch["present"].nonzero()[:2, 0]
    padding = (~batch["present"]).nonzero()[:2, 0]
    rows = torch.cat([samples, padding])
    padded = {name: values[rows] for name, values in batch.items()}
    alone = padded
    if len(samples):
        alone = {name: values[: len(samples)] for name, values in padded.items()}
    was_training = model.training
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"), project.precision.autocast():
            # A sharded model needs as many calls on every rank, whatever its padding.
            outputs = [model(padded), model(alone)]
            for output in outputs:
                check_output(output)
            check_predictions(model.predict(alone), alone)
        if len(samples) and len(padding):
            check_mask(*outputs)
    finally:
        model.train(was_training)
        batches.close()


def reserve_averages(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Reserve as much memory as the optimizer's averages will take in the first step."""
    reserved: list[Tensor] = []
    for group in optimizer.param_groups:
        count = 2 * ("betas" in group) + ("momentum" in group)  # AdamW has two, Muon has one
        reserved += [torch.empty_like(parameter) for parameter in group["params"] * count]
    return reserved


def _check_forward_memory(
    project: Project, loader: Any, batch: Batch, reserved: list[Tensor]
) -> None:
    """Check that gradients, averages, rows and what forward keeps fit into the memory of a CPU.

    There is no check of compiled blocks, which keep less than is measured here, or of a sharded
    model, whose forward waits for other ranks.
    """
    is_compiled, _ = compiles(project.settings, None)
    if project.device.type != "cpu" or project.distributed.forward_exchanges or is_compiled:
        return
    gradients = [weight for weight in project.model.parameters() if weight.requires_grad]
    fixed = sum(tensor.nbytes for tensor in [*gradients, *reserved])
    kept_by_two = kept_bytes(project, batch, 2)
    kept_by_four = kept_bytes(project, batch, 4)
    sample_bytes = row_bytes(project, loader) + max(kept_by_four - kept_by_two, 0) // 2
    _check(project.settings, loader.order, fixed, sample_bytes, CPU)


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


def _check(settings: Settings, order: Order, fixed: int, size: int, device: torch.device) -> None:
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
