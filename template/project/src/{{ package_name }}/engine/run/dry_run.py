"""Runs one batch before the first step, and checks what model.py returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import UserError
from ..interfaces import require_attributes
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
        try:
            with project.precision.autocast():
                # The model is called without its wrapper, so that no gradients are exchanged.
                output = project.model(batch)
            check_output(output)
            if not output.loss.requires_grad:
                raise UserError("the loss has no gradient", FORWARD, "do not detach it")
            output.loss.backward(gradient=output.total_weight)
        except torch.cuda.OutOfMemoryError as error:
            # The other ranks wait in the exchange, and end when this process ends.
            if project.distributed.forward_exchanges:
                raise
            raise out_of_memory("GPU memory", project.settings) from error
        project.optimizer.zero_grad()
        batches.close()
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


# --- the contract of interfaces.py; each breach is one line that names the place


def check_model(model: Any) -> None:
    """Raise `UserError` if `build_model` did not return a model with weights and its methods."""
    title = f"the {type(model).__name__} that build_model returns"
    require_attributes(("parameters", "predict", "blocks"), model, title)
    require_attributes(("__len__",), model.blocks(), "the result of blocks()")
    if not any(weight.requires_grad for weight in model.parameters()):
        raise UserError(f"{title} has no weight to train", "model.py", "add a layer")


def check_output(output: Any) -> None:
    """Raise `UserError` if a result of `forward` is not an `Output` of scalars."""
    name = "loss"
    try:
        pairs = {"loss": (output.loss, output.total_weight), **output.metrics}
        for name, (total, count) in pairs.items():  # noqa: B007 - the error names it
            if total.dim() or count.dim():
                raise ValueError(f"shapes {tuple(total.shape)} and {tuple(count.shape)}")
    except (AttributeError, TypeError, ValueError) as error:
        what = f"forward returns a wrong '{name}' ({error})"
        remedy = "return loss, total_weight, and of each metric (sum, count), as tensors ()"
        raise UserError(what, FORWARD, remedy) from error
