"""Finds out why a loss or a gradient became nan or inf: a sample, the weights, or the settings.

The run has ended by then, so its weights may be changed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from .errors import NonFinite, UserError
from .interfaces import Batch
from .shards import own

if TYPE_CHECKING:
    from .config import Settings
    from .project import Project
    from .run import Run

SHOWN = 4  # numbers of samples in an error


def explain_non_finite(error: NonFinite, run: Run) -> UserError:
    """Return the error with its cause, as far as it is known, and a remedy that fits the run."""
    weights = dict(run.project.model.named_parameters())
    broken = [name for name, weight in weights.items() if not own(weight).isfinite().all()]
    epoch, first, end = run.place_of(error.step - 1 - run.progress.phase_start)
    try:
        sample = bad_sample(run.project, error.rank, epoch, range(first, end))
    except Exception:  # a failure of the search must not hide the error
        sample = None
    if sample is not None:
        index, why = sample
        remedy = "fix that sample, or the way dataset.py converts it"
        where = f"epoch {epoch + 1}, training sample {index}"
        return UserError(f"{error}: {why}", where, remedy)

    why = "samples and weights are finite, so forward overflows"
    if error.kind == "gradient":
        why = "its losses are, so backward overflows, or divides by 0 or takes a root of it"
    elif broken:
        count = f"{len(broken)} of {len(weights)} weights are not finite"
        why = f"the samples are fine, {count}, such as {broken[0]}"
    order = run.loader.order
    order.rank = error.rank  # of the process where it happened
    indices = order.indices(epoch, first, end)[0].ravel()
    shown = ", ".join(map(str, indices[indices >= 0][:SHOWN]))
    where = f"epoch {epoch + 1}, training samples {shown}, …"
    return UserError(f"{error}: {why}", where, advice(run.settings, run.project.precision.name))


def advice(settings: Settings, precision: str) -> str:
    """Return what to change in this run, best first. precision: the one in use, never `auto`."""
    remedies = [f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"]
    if not settings.training.gradient_clip:
        remedies.append("set training.gradient_clip 1")
    if settings.schedule.warmup_steps != "auto":
        remedies.append(f"raise schedule.warmup_steps ({settings.schedule.warmup_steps})")
    if precision != "fp32":
        remedies.append(f"set training.precision fp32 ({precision})")
    return "; or ".join(remedies)


def bad_sample(project: Project, rank: int, epoch: int, batches: range) -> tuple[int, str] | None:
    """Return a sample whose own loss is not finite, and why; None if the samples are fine.

    rank, epoch, batches: the micro-batches to search. The weights are made small and finite first,
    because diverged weights would make every sample look bad.
    """
    if project.distributed.forward_exchanges:  # another rank may not take part
        return None
    loader: Any = project.loader("train", train=True)
    loader.order.rank = rank
    tame(project.model)
    project.model.eval()
    try:
        for batch in islice(loader.epoch(epoch, batches.start), len(batches)):
            if loss_is_finite(project, batch):
                continue
            for row, index in enumerate(batch["index"].tolist()):
                sample = {name: values[row : row + 1] for name, values in batch.items()}
                if not loss_is_finite(project, sample):
                    return index, explain_sample(project, sample)
    finally:
        loader.close()
    return None


@torch.no_grad()
def tame(model: Any) -> None:
    """Make weights and buffers finite, in place, and so small that no layer's output grows.

    If a loss still overflows, a sample is the cause. No weight becomes 0, which would hide values.
    """
    for weight in model.parameters():
        inputs = weight[0].numel() if weight.dim() > 1 else 1
        limit = 1 / max(inputs, 1)
        weight.nan_to_num_(limit, limit, -limit).clamp_(-limit, limit)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.nan_to_num_(0.0, 0.0, 0.0)


@torch.no_grad()
def loss_is_finite(project: Project, batch: Batch) -> bool:
    """Whether the loss of a batch is finite, in float32 and without torch.compile."""
    eager = torch.compiler.set_stance("force_eager")
    with eager, torch.autocast(project.device.type, enabled=False):
        return bool(project.model(dict(batch)).loss.isfinite())


def explain_sample(project: Project, sample: Batch) -> str:
    """Name the array that makes the loss of a sample nan or inf, and the place in it."""
    broken = [name for name, values in sample.items() if not values.isfinite().all()]
    if not broken:
        return "its values are finite, but its loss is not"
    cause = broken[0]
    # A nan can be harmless, such as an empty cell. The cause is the array whose repair makes the
    # loss finite.
    for name in broken:
        repaired = {name: sample[name].nan_to_num(0.0, 0.0, 0.0)}
        if loss_is_finite(project, sample | repaired):
            cause = name
            break
    return place(project, cause, sample[cause][0])


def place(project: Project, name: str, values: torch.Tensor) -> str:
    """Return `'features' has nan in column 3 (price)`. values: of one sample."""
    index = tuple((~values.isfinite()).nonzero()[0].tolist())
    text = f"'{name}' has {float(values[index])}"
    if not index:
        return text
    column = index[-1]
    text += f" in column {column}"
    columns = project.store.facts.get(name, project.store.facts.get("columns"))
    if isinstance(columns, list) and len(columns) == values.shape[-1]:
        known = columns[column]
        text += f" ({known.get('name', '') if isinstance(known, dict) else known})"
    return text
