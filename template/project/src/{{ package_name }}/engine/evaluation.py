"""A full pass over a split: sums and counts in float64, over all batches and ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from .precision import Precision
from .seams import Output

TIMED_BATCHES = 2


def evaluate(
    model: Any, loader: Any, precision: Precision, distributed: Any, stop: Callable[[], bool] = bool
) -> dict[str, float] | None:
    """Return metrics by name, each the sum over its own denominator, and `loss` per target.

    None when `stop()` said so. One host sync, at the end. Draws no random number: training
    continues as it was.
    """
    totals: dict[str, Tensor] = {}  # by metric: (sum, count)
    was_training = model.training
    bar = tqdm(loader.epoch(0), "evaluating", len(loader), leave=False, disable=None, unit="batch")
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

    sums = distributed.sum(torch.stack(list(totals.values()))).tolist()
    metrics = {}
    for name, (total, count) in zip(totals, sums, strict=True):
        metrics[name] = total / max(count, 1.0)
    return metrics


def add_output(totals: dict[str, Tensor], output: Output) -> None:
    """Add the sums and counts of a batch to `totals`."""
    parts = {"loss": (output.loss * output.weight, output.weight), **output.metrics}
    for name, (total, count) in parts.items():
        value = torch.stack([total.detach().double(), count.double()])
        totals[name] = totals[name] + value if name in totals else value


class FirstBatches:
    """A loader of the first few batches of another."""

    def __init__(self, loader: Any, count: int):
        self.loader = loader
        self.count = min(count, len(loader))

    def __len__(self) -> int:
        return self.count

    def epoch(self, number: int) -> Iterator[Any]:
        """Yield its batches; the other loader's epoch ends with them."""
        with closing(self.loader.epoch(number)) as batches:
            yield from islice(batches, self.count)


def seconds_of(model: Any, loader: Any, precision: Precision, distributed: Any) -> float:
    """Estimate what a pass over a loader takes, by its first batches.

    The first one is not timed: it may compile.
    """
    few = FirstBatches(loader, TIMED_BATCHES)
    evaluate(model, FirstBatches(loader, 1), precision, distributed)
    _, seconds = timed(lambda: evaluate(model, few, precision, distributed))
    return seconds / len(few) * len(loader)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result and its seconds; it must have synchronised with the device."""
    start = time.perf_counter()
    return function(), time.perf_counter() - start
