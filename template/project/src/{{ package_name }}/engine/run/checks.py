"""Checks what your model.py and dataset.py return: each breach is one line that names the place.

The contract itself is in `interfaces.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ..errors import UserError
from ..interfaces import Batch, Output

FORWARD = "model.py, forward"
PREDICT = "model.py, predict"
PADDING_TOLERANCE = 0.05


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
    count = len(batch["present"])
    for name, value in batch.items():
        if not _has_samples(value, count):
            what = f"batch['{name}'] of {count} samples is {kind(value)}"
            raise UserError(what, "dataset.py, Samples.batch", "make the samples its first axis")


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


def leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that get a gradient from this loss."""
    seen = set[Any]()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        if hasattr(node, "variable"):
            yield node.variable


def check_registered(model: nn.Module, loss: Tensor) -> None:
    """Raise `UserError` if the loss depends on a weight that is not one of the model's."""
    known = {id(weight) for weight in model.parameters()}
    for weight in leaves(loss):
        if id(weight) not in known:
            what = f"a weight of shape {tuple(weight.shape)} is not registered"
            remedy = "use nn.ModuleList or nn.ParameterList instead of a list"
            raise UserError(f"{what}, so it is not trained or saved", "model.py", remedy)


def check_mask(padded: Output, alone: Output) -> None:
    """Raise `UserError` if padding rows change the result: samples with padding, and alone."""
    for name in ("loss", "total_weight"):
        with_padding = float(getattr(padded, name))
        without = float(getattr(alone, name))
        # Half precision may round batches of another size differently.
        if abs(with_padding - without) > PADDING_TOLERANCE * abs(without) + 1e-6:
            what = f"padding rows change {name} from {without:.5g} to {with_padding:.5g}"
            raise UserError(what, FORWARD, 'count only rows with batch["present"]')


def check_predictions(predictions: Any, batch: Batch) -> None:
    """Raise `UserError` if a prediction has no row for each sample, or other axes than `target`."""
    if not isinstance(predictions, dict):
        remedy = "return a dictionary of tensors by name"
        raise UserError(f"predict returns {kind(predictions)}", PREDICT, remedy)
    count = len(batch["present"])
    for name, value in predictions.items():
        if not _has_samples(value, count):
            what = f"'{name}' of {count} samples is {kind(value)}"
            raise UserError(what, PREDICT, "return a tensor whose first axis is the samples")
    if "prediction" not in predictions or "target" not in batch:
        return
    prediction = predictions["prediction"]
    target = batch["target"]
    # (B, 1) minus (B,) is (B, B), without an error.
    are_alike = prediction.squeeze().shape == target.squeeze().shape
    if are_alike and prediction.shape != target.shape:
        what = f"'prediction' is {kind(prediction)}, and 'target' is {kind(target)}"
        raise UserError(what, PREDICT, "give both the same axes, as by squeeze(1)")


def _has_samples(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:1] == (count,)


def kind(value: object) -> str:
    """Describe a value in an error: `(8, 6) float32`, or its type."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def require_attributes(names: Iterable[str], value: object, title: str) -> None:
    """Raise `UserError` if an object from your model.py lacks one of the attributes `names`."""
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        what = f"{title} has no {' and no '.join(missing)}"
        raise UserError(what, "model.py", "add it; engine/interfaces.py has the contract")
