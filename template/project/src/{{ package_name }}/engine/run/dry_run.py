"""Runs one batch before the first step, and checks what model.py and dataset.py return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .checks import (
    FORWARD,
    check_batch,
    check_mask,
    check_output,
    check_predictions,
    check_registered,
)
from .explanations import out_of_memory
from .progress import random_state, set_random_state

if TYPE_CHECKING:
    from .project import Project


def dry_run(project: Project, loader: Any, validation: Any = None) -> float:
    """Run one batch forward and backward, so that memory and compile errors show at the start.

    Random state, buffers and gradients are restored. Returns the total weight of the batch.
    validation: a loader for the checks in evaluation. Raises `UserError` if model.py or dataset.py
    breaks its contract, or memory is too small.
    """
    batches = loader.epoch(0)
    with without_trace(project.model):
        batch = next(batches)
        reserved = reserve_averages(project.optimizer)
        try:
            check_batch(batch)
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
        batches.close()
        project.optimizer.zero_grad()
        # After the step, because the loader may keep samples in the memory that a step leaves free.
        if validation is not None:
            check_answers(project, validation)
        del reserved
    return float(output.total_weight)


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Restore the random state and the model's buffers at the end."""
    state = random_state()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    set_random_state(state)


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
