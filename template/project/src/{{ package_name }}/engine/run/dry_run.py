"""Runs one batch before the first step, and checks what model.py and dataset.py return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..interfaces import Batch, Output, require_attributes
from .explanations import out_of_memory
from .progress import random_state, set_random_state

if TYPE_CHECKING:
    from .project import Project

FORWARD = "model.py, forward"
PREDICT = "model.py, predict"


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
    """Check what the model returns in evaluation, for two samples and without compiling."""
    batches = loader.epoch(0)
    batch = {name: values[:2] for name, values in next(batches).items()}
    batches.close()
    model = project.model
    was_training = model.training
    model.eval()
    with torch.compiler.set_stance("force_eager"), project.precision.autocast():
        check_output(model(batch))
        check_predictions(model.predict(batch), batch)
    model.train(was_training)


def reserve_averages(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Reserve as much memory as the optimizer's averages will take in the first step."""
    reserved: list[Tensor] = []
    for group in optimizer.param_groups:
        count = 2 * ("betas" in group) + ("momentum" in group)  # AdamW has two, Muon has one
        reserved += [torch.empty_like(parameter) for parameter in group["params"] * count]
    return reserved


# --- the contract of interfaces.py; each breach is one line that names the place


def check_model(model: Any) -> None:
    """Raise `UserError` if `build_model` returned anything but a model with weights."""
    if not isinstance(model, nn.Module):
        what = f"build_model returns {kind(model)}, not an nn.Module"
        raise UserError(what, "model.py, build_model", "return the model")
    title = f"the model {type(model).__name__}"
    require_attributes(("predict", "blocks"), model, title)
    if not list(model.parameters()):
        remedy = "assign layers to attributes, and a list of layers as nn.ModuleList"
        raise UserError(f"{title} has no weights", "model.py", remedy)
    blocks: Any = model.blocks()  # type: ignore[operator]
    is_list = isinstance(blocks, list | tuple | nn.ModuleList)
    if not is_list or not all(isinstance(block, nn.Module) for block in blocks):
        remedy = "return a list of modules; it may be empty"
        raise UserError(f"blocks returns {kind(blocks)}", "model.py, blocks", remedy)


def check_batch(batch: Batch) -> None:
    """Raise `UserError` if a tensor's first axis is not the samples."""
    check_samples(batch, len(batch["present"]), "dataset.py, Samples.batch")


def check_samples(values: Batch, count: int, where: str) -> None:
    """Raise `UserError` for a value that is not a tensor of `count` samples."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (count,):
            what = f"'{name}' of {count} samples is {kind(value)}"
            raise UserError(what, where, "return a tensor whose first axis is the samples")


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


def check_predictions(predictions: Any, batch: Batch) -> None:
    """Raise `UserError` if a prediction has no row for each sample, or other axes than `target`."""
    if not isinstance(predictions, dict):
        remedy = "return a dictionary of tensors by name"
        raise UserError(f"predict returns {kind(predictions)}", PREDICT, remedy)
    check_samples(predictions, len(batch["present"]), PREDICT)
    if "prediction" not in predictions or "target" not in batch:
        return
    prediction = predictions["prediction"]
    target = batch["target"]
    # (B, 1) minus (B,) is (B, B), without an error.
    are_alike = prediction.squeeze().shape == target.squeeze().shape
    if are_alike and prediction.shape != target.shape:
        what = f"'prediction' is {kind(prediction)}, and 'target' is {kind(target)}"
        raise UserError(what, PREDICT, "give both the same axes, as by squeeze(1)")


def kind(value: object) -> str:
    """Describe a value in an error: `(8, 6) float32`, or its type."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
