"""Finds out why a loss or a gradient became nan or inf: a sample, forward, weights, or settings.

The run has ended by then, so its weights may be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..engine.compute.precision import own
from ..engine.errors import NonFinite, UserError
from ..engine.interfaces import Batch
from ..engine.training.explanations import advice

if TYPE_CHECKING:
    from ..engine.training.project import Project
    from ..engine.training.run import Run

SHOWN = 4  # numbers of samples in an error
OTHERS = 4  # batches, and samples of each, to evaluate before one sample is blamed
FORWARD = "model.py, forward"


class Step(NamedTuple):
    """The micro-batches of a step on the process where it failed."""

    rank: int
    epoch: int  # from 0
    batches: range


class Cause(NamedTuple):
    """Three parts of an error's line."""

    why: str
    where: str
    remedy: str


def explain_non_finite(error: NonFinite, run: Run) -> UserError:
    """Return the error with its cause, as far as it is known, and a remedy that fits the run."""
    weights = dict(run.project.model.named_parameters())
    broken = [name for name, weight in weights.items() if not own(weight).isfinite().all()]
    epoch, first, end = run.batches_of(error.step - 1)
    step = Step(error.rank, epoch, range(first, end))
    in_epoch = f"epoch {epoch + 1}"
    changes = advice(run.settings, run.project.precision.name)
    try:
        cause = find_cause(run.project, step)
    except Exception:  # a failure of the search must not hide the error
        cause = None
    if cause is not None:
        # The weights of the first step cannot be the cause: they break after its loss.
        if cause.where == FORWARD and broken and error.step > 1:
            cause = cause._replace(remedy=f"{cause.remedy}; or {changes}")
        return UserError(f"{error}: {cause.why}", f"{in_epoch}, {cause.where}", cause.remedy)

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
    where = f"{in_epoch}, training samples {shown}, …"
    return UserError(f"{error}: {why}", where, changes)


def find_cause(project: Project, step: Step) -> Cause | None:
    """Return what makes the loss of a single sample nan or inf; None if the samples are fine.

    The weights are made small and finite first, because diverged weights would make every sample
    look bad.
    """
    if project.distributed.forward_exchanges:  # another rank may not take part
        return None
    tame(project.model)
    project.model.eval()
    sample = bad_sample(project, step)
    if sample is None:
        return None
    where = f"training sample {int(sample['index'])}"
    why = explain_sample(project, sample)
    remedy = "fix that sample, or the way dataset.py converts it"
    repaired = {name: values.nan_to_num(0.0, 0.0, 0.0) for name, values in sample.items()}
    if loss_is_finite(project, repaired):
        return Cause(why, where, remedy)

    # Its values are not the cause. A model that fails for most samples is no fault of this one.
    are_finite = finite_losses(project, step.epoch + 1)
    num_bad = are_finite.count(False)
    if 2 * num_bad > len(are_finite):
        count = f"{num_bad} of {len(are_finite)} other samples"
        why = f"{count} have no finite loss either, even with small weights"
        remedy = "look for a division by 0, a log, an exp, or too many layers"
        return Cause(why, FORWARD, remedy)
    return Cause(why, where, f"{remedy}, or forward in model.py")


def bad_sample(project: Project, step: Step) -> Batch | None:
    """Return the first sample of the step whose own loss is not finite, as a batch of one."""
    loader: Any = project.loader("train", train=True)
    loader.order.rank = step.rank
    try:
        for batch in islice(loader.epoch(step.epoch, step.batches.start), len(step.batches)):
            if loss_is_finite(project, batch):
                continue
            for sample in samples_of(batch):
                if not loss_is_finite(project, sample):
                    return sample
    finally:
        loader.close()
    return None


def finite_losses(project: Project, epoch: int) -> list[bool]:
    """Return for a few samples of an epoch whether the loss of each is finite."""
    loader: Any = project.loader("train", train=True)
    results = []
    try:
        for batch in islice(loader.epoch(epoch), OTHERS):
            for sample in islice(samples_of(batch), OTHERS):
                results.append(loss_is_finite(project, sample))
    finally:
        loader.close()
    return results


def samples_of(batch: Batch) -> Iterator[Batch]:
    """Yield each sample as a batch of one, without padding rows."""
    for row in batch["present"].nonzero().view(-1).tolist():
        yield {name: values[row : row + 1] for name, values in batch.items()}


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
