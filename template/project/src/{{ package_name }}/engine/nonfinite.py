"""Why a loss became nan or inf: the samples of that step first, then the weights, then the run's settings.

The run is over when this is asked, so its weights may be changed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from .errors import NonFinite, UserError
from .seams import Batch

if TYPE_CHECKING:
    from ..assemble import Project
    from ..config import Settings
    from .run import Run

SHOWN = 4  # numbers of samples in an error
NARROW = ("fp16", "fp8")  # precisions that overflow where fp32 does not


def explain_non_finite(error: NonFinite, run: Run) -> UserError:
    """The error with its cause, as far as it shows, and a remedy that fits the run."""
    order = run.loader.order
    order.rank = error.rank  # of the process where it happened
    numbers = order.numbers(error.epoch, *error.batches)[0].ravel()
    where = f"epoch {error.epoch + 1}, {_listed(numbers[numbers >= 0].tolist())}"

    broken = broken_weights(run.project.model)
    try:
        found = bad_sample(run.project, error)
    except Exception:  # a look that fails must not hide the error
        found = None
    if found is not None:
        number, why = found
        where = f"epoch {error.epoch + 1}, training sample {number}"
        return UserError(
            f"{error}: {why}", where, "fix that sample, or what dataset.py makes of it"
        )
    if broken:
        count = sum(1 for _ in run.project.model.parameters())
        why = f"the samples are fine, {len(broken)} of {count} weights are not finite, such as {broken[0]}"
        return UserError(f"{error}: {why}", where, advice(run.settings, run.project.precision.name))
    why = "samples and weights are finite, so forward overflows"
    return UserError(f"{error}: {why}", where, advice(run.settings, run.project.precision.name))


def advice(settings: Settings, precision: str) -> str:
    """What to change in this run, best first. precision: the one in use, never `auto`."""
    remedies = [f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"]
    clip = settings.training.gradient_clip
    if not clip:
        remedies.append("set training.gradient_clip 1")
    elif clip > 1:
        remedies.append(f"lower training.gradient_clip ({clip:g})")
    warmup = settings.schedule.warmup_steps
    if warmup != "auto":
        remedies.append(f"raise schedule.warmup_steps ({warmup})")
    if precision in NARROW:
        remedies.insert(0, f"set training.precision bf16 or fp32 ({precision})")
    elif precision != "fp32":
        remedies.append(f"set training.precision fp32 ({precision})")
    return "; or ".join(remedies)


def broken_weights(model: Any) -> list[str]:
    """Names of the weights with a nan or inf; of a sharded one by the part that is here."""
    broken = []
    for name, weight in model.named_parameters():
        here = weight.to_local() if hasattr(weight, "to_local") else weight
        if not here.isfinite().all():
            broken.append(name)
    return broken


def bad_sample(project: Project, error: NonFinite) -> tuple[int, str] | None:
    """The number of a sample whose own loss is not finite, and why; None where the samples are fine.

    The weights are made small and finite for it: what they have become says nothing about the samples.
    """
    if project.distributed.forward_exchanges:  # another rank may not take part
        return None
    loader: Any = project.loader("train", train=True)
    loader.order.rank = error.rank
    first, last = error.batches
    tame(project.model)
    project.model.eval()
    try:
        for batch in islice(loader.epoch(error.epoch, first), last - first):
            row = bad_row(project, batch)
            if row is not None:
                return int(batch["index"][row]), explain_sample(project, taken(batch, row, row + 1))
    finally:
        loader.close()
    return None


@torch.no_grad()
def tame(model: Any) -> None:
    """Make weights and buffers finite, in place, and so small that no layer's output outgrows its input.

    A loss that overflows nevertheless is the fault of a sample. No weight becomes 0, which would hide values.
    """
    for weight in model.parameters():
        inputs = weight[0].numel() if weight.dim() > 1 else 1
        limit = 1 / max(inputs, 1)
        weight.nan_to_num_(limit, limit, -limit).clamp_(-limit, limit)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.nan_to_num_(0.0, 0.0, 0.0)


def bad_row(project: Project, batch: Batch) -> int | None:
    """A row of the batch whose loss is not finite, found by halves; None where the loss is."""
    first, last = 0, len(batch["index"])
    if is_finite(project, batch):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        if is_finite(project, taken(batch, first, middle)):
            first = middle
        else:
            last = middle
    return first


def taken(batch: Batch, first: int, last: int) -> Batch:
    """Some rows of a batch."""
    return {name: values[first:last] for name, values in batch.items()}


@torch.no_grad()
def is_finite(project: Project, batch: Batch) -> bool:
    """Whether the loss of a batch is, in float32 and without what is compiled."""
    with (
        torch.compiler.set_stance("force_eager"),
        torch.autocast(project.device.type, enabled=False),
    ):
        return bool(project.model(dict(batch)).loss.isfinite())


def explain_sample(project: Project, sample: Batch) -> str:
    """What is wrong with a sample, a batch of one: the array and the place that make its loss bad."""
    broken = [name for name, values in sample.items() if not values.isfinite().all()]
    for name in broken:
        others = {
            other: sample[other].nan_to_num(0.0, 0.0, 0.0) for other in broken if other != name
        }
        if not is_finite(project, sample | others):
            return _place(project, name, sample[name][0])
    if broken:
        return _place(project, broken[0], sample[broken[0]][0])
    name, most = max(_largest(sample).items(), key=lambda pair: pair[1], default=("", 0.0))
    return f"a sample's values are finite, and its loss is not: '{name}' reaches {most:.3g}"


def _largest(sample: Batch) -> dict[str, float]:
    """The largest absolute value of each array of floats."""
    floats = {name: values for name, values in sample.items() if values.is_floating_point()}
    return {name: float(values.abs().max()) for name, values in floats.items() if values.numel()}


def _place(project: Project, name: str, values: torch.Tensor) -> str:
    """`'features' has nan in column 3 (price)`. values: of one sample."""
    places = (~values.isfinite()).nonzero()
    place = places[0].tolist()
    shown = f"'{name}' has {float(values[tuple(place)])}"
    if not place:
        return shown
    facts = project.store.facts
    columns = facts.get(name, facts.get("columns"))
    if not isinstance(columns, list) or len(columns) != values.shape[-1]:
        return f"{shown} in column {place[-1]}"
    column = columns[place[-1]]
    title = column.get("name", "") if isinstance(column, dict) else column
    return f"{shown} in column {place[-1]} ({title})"


def _listed(numbers: list[int]) -> str:
    """`training samples 384, 385, 386, 387 and 124 more`."""
    text = f"training samples {', '.join(map(str, numbers[:SHOWN]))}"
    if len(numbers) > SHOWN:
        text += f" and {len(numbers) - SHOWN:,} more"
    return text
