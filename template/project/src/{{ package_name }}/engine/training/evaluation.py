"""Evaluation and predictions: one pass over a split, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..interfaces import Batch, Groups, Loader
from .project import Project


@torch.no_grad()
def evaluate(
    project: Project,
    loader: Loader,
    split: str,
    stop: Callable[[], bool] = bool,
    calibrate: bool = False,
) -> Any:
    """Return metrics by name: each is a sum divided by its own count, and `loss` is per target.

    Sums and counts are float64, over all batches and ranks; `finish` in dataset.py completes them.
    Return None if `stop()` becomes true. The host waits at the end only. No random number is drawn,
    so an evaluation does not change the training.

    calibrate: let the model set what it calibrates, if it has something. `project.sums` becomes the
    sums by group.
    """
    totals: dict[str, Tensor] = {}  # by metric: sum and count, (2,)
    sums: Batch = {}
    # A float32 sum ignores summands that are 16 million times smaller than itself, so over a long
    # split it would be too small.
    zeros = torch.zeros(2, dtype=torch.float64, device=project.device)
    model = project.wrapped
    was_training = model.training
    model.eval()
    try:
        for batch in tqdm(loader.epoch(0), "evaluating", len(loader), leave=False, disable=None):
            if stop():
                return None
            with project.precision.autocast():
                output = model(batch)
            loss = (output.loss * output.total_weight, output.total_weight)
            for name, pair in {"loss": loss, **output.metrics}.items():
                totals[name] = totals.get(name, zeros) + torch.stack(pair)
            for name, groups in output.by_group.items():
                sums[name] = added(groups, sums.get(name))
    finally:
        model.train(was_training)

    metrics = means(project, totals)
    for name, values in sums.items():
        sums[name] = project.distributed.sum_over_ranks(values).cpu()
    project.sums = sums
    if calibrate and hasattr(project.model, "calibrate"):
        project.model.calibrate(sums)
    return project.ask_dataset("finish", metrics, metrics, project.store, split, sums)


def means(project: Project, totals: dict[str, Tensor]) -> dict[str, float]:
    """Return the mean of each metric, over all ranks (host sync)."""
    sums = project.distributed.sum_over_ranks(torch.stack(list(totals.values())))
    values = sums[:, 0] / sums[:, 1].clamp(min=1)
    return dict(zip(totals, values.tolist(), strict=True))


def added(groups: Groups, sums: Tensor | None = None) -> Tensor:
    """Return the sums of the groups (size, …), in float64, added to those so far."""
    numbers = groups.numbers.double()
    if sums is None:
        sums = numbers.new_zeros(groups.size, *numbers.shape[1:])
    return sums.index_add_(0, groups.group, numbers)


def predictions(
    project: Project,
    loader: Loader,
    names: tuple[str, ...] = (),
    predict: Callable[[Batch], Batch] | None = None,
) -> Iterator[tuple[Batch, Batch]]:
    """Yield each batch of a loader and its predictions, on the CPU and without padding.

    names: of the values of a batch to yield, as far as it has them; by default all. predict: by
    default that of the model; it may predict the first samples of a batch only.
    """
    predict = predict or project.model.predict
    for batch in loader.epoch(0):
        with torch.no_grad(), project.precision.autocast():
            predicted = predict(batch)
        present = batch["present"]
        known = {name: batch[name] for name in names or batch if name in batch}
        yield _without_padding(known, present), _without_padding(predicted, present)


def _without_padding(values: Batch, present: Tensor) -> Batch:
    return {name: rows[present[: len(rows)]].cpu() for name, rows in values.items()}


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenate several batches into one."""
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
