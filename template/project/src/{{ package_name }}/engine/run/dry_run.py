"""Runs one batch before the first step, and checks what model.py returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..interfaces import Output, require_attributes
from .explanations import out_of_memory
from .progress import random_state, set_random_state

if TYPE_CHECKING:
    from .project import Project

FORWARD = "model.py, forward"


def dry_run(project: Project, loader: Any) -> float:
    """Run one batch forward and backward, so that memory and compile errors show at the start.

    Random state, buffers and gradients are restored. Returns the total weight of the batch. Raises
    `UserError` if forward breaks its contract, or memory is too small.
    """
    batches = loader.epoch(0)
    with without_trace(project.model):
        batch = next(batches)
        reserved = reserve_averages(project.optimizer)
        try:
            with project.precision.autocast():
                # The model is called without its wrapper, so that no gradients are exchanged.
                output = project.model(batch)
            check_output(output)
            output.loss.backward(gradient=output.total_weight)
        except torch.cuda.OutOfMemoryError as error:
            # The other ranks wait in the exchange, and end when this process ends.
            if project.distributed.forward_exchanges:
                raise
            raise out_of_memory("GPU memory", project.settings, loader.order.batch_size) from error
        project.optimizer.zero_grad()
        batches.close()
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


def reserve_averages(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Reserve as much memory as the optimizer's averages will take in the first step."""
    reserved: list[Tensor] = []
    for group in optimizer.param_groups:
        count = 2 * ("betas" in group) + ("momentum" in group)  # AdamW has two, Muon has one
        reserved += [torch.empty_like(parameter) for parameter in group["params"] * count]
    return reserved


# --- the contract of interfaces.py; each breach is one line that names the place


def check_model(model: Any) -> None:
    """Raise `UserError` if `build_model` returned anything but a model with its methods."""
    if not isinstance(model, nn.Module):
        what = f"build_model returns {kind(model)}, not an nn.Module"
        raise UserError(what, "model.py, build_model", "return the model")
    require_attributes(("predict", "blocks"), model, f"the model {type(model).__name__}")
    blocks: Any = model.blocks()  # type: ignore[operator]
    if not isinstance(blocks, list | tuple | nn.ModuleList):
        remedy = "return a list of modules; it may be empty"
        raise UserError(f"blocks returns {kind(blocks)}", "model.py, blocks", remedy)


def check_output(output: Any) -> None:
    """Raise `UserError` if a result of `forward` is not an `Output` of scalars."""
    require_attributes(Output._fields, output, f"the {type(output).__name__} that forward returns")
    if not isinstance(output.metrics, dict):
        remedy = "return a dictionary of (sum, count) by name"
        raise UserError(f"metrics is {kind(output.metrics)}", FORWARD, remedy)
    scalars = [("loss", output.loss), ("total_weight", output.total_weight)]
    for name, pair in output.metrics.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            what = f"metric '{name}' is {kind(pair)}, not (sum, count)"
            raise UserError(what, FORWARD, "return both as tensors ()")
        scalars += [(f"a value of metric '{name}'", value) for value in pair]
    for name, value in scalars:
        if not isinstance(value, Tensor) or value.shape:
            remedy = "return a tensor (), as sum() and mean() do"
            raise UserError(f"{name} is {kind(value)}, not a tensor ()", FORWARD, remedy)


def kind(value: object) -> str:
    """Describe a value in an error: `(8, 6) float32`, or its type."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
