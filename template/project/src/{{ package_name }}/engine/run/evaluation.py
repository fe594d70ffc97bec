"""Evaluation: one pass over a split, with sums and counts in float64 over all batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..compute.precision import Precision
from ..interfaces import Batch, Output


def evaluate(
    model: Any,
    loader: Any,
    precision: Precision,
    distributed: Any,
    stop: Callable[[], bool] = bool,
) -> dict[str, float] | None:
    """Return metrics by name: each is a sum divided by its own count, and `loss` is per target.

    Return None if `stop()` becomes true. There is one host sync, at the end. No random number is
    drawn, so an evaluation does not change the training.
    """
    totals: dict[str, Tensor] = {}  # by metric: (sum, count)
    was_training = model.training
    batches = loader.epoch(0)
    bar = tqdm(batches, "evaluating", len(loader), leave=False, disable=None, unit="batch")
    model.eval()
    try:
        with torch.no_grad():
            for batch in bar:
                if stop():
                    return None
                with precision.autocast():
                    output = model(batch)
                add_output(totals, output)
    finally:
        model.train(was_training)

    sums = distributed.sum_over_ranks(torch.stack(list(totals.values()))).tolist()
    of_metrics = zip(totals, sums, strict=True)
    return {name: total / max(count, 1.0) for name, (total, count) in of_metrics}


def add_output(totals: dict[str, Tensor], output: Output) -> None:
    """Add the sums and counts of a batch to `totals`."""
    parts = {"loss": (output.loss * output.total_weight, output.total_weight), **output.metrics}
    for name, (total, count) in parts.items():
        value = torch.stack([total.detach().double(), count.double()])
        totals[name] = totals.get(name, 0) + value


def predictions(
    project: Any, loader: Any, answer: Callable[[Batch], Batch] | None = None
) -> Iterator[tuple[Batch, Batch]]:
    """Yield each batch of a loader with its predictions, by `answer` or the model's `predict`.

    The next batch may reuse the memory of this one.
    """
    predict = answer or project.model.predict
    for batch in loader.epoch(0):
        with torch.no_grad(), project.precision.autocast():
            predicted = predict(batch)
        yield batch, predicted


def first_predictions(
    project: Any,
    loader: Any,
    names: Iterable[str] | None = None,
    num_batches: int | None = None,
    answer: Callable[[Batch], Batch] | None = None,
) -> tuple[Batch, Batch]:
    """Return samples of a loader and their predictions, on the CPU and without padding.

    names: of the values of a batch that are returned, by default all of them. num_batches: by
    default all. answer: see `predictions`.
    """
    batches = []
    answers = []
    pairs = islice(predictions(project, loader, answer), num_batches)
    total = num_batches or len(loader)
    for batch, predicted in tqdm(pairs, "predicting", total, leave=False, disable=None):
        present = batch["present"]
        kept = {name: batch[name] for name in names or batch if name in batch}
        batches.append(present_rows(kept, present))
        answers.append(present_rows(predicted, present))
    return joined(batches), joined(answers)


def present_rows(values: Batch, present: Tensor) -> Batch:
    """Return the rows that are not padding, on the CPU. values: may have only the first rows."""
    return {name: rows[present[: len(rows)]].cpu() for name, rows in values.items()}


def joined(batches: list[Batch]) -> Batch:
    """Concatenate several batches into one."""
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
