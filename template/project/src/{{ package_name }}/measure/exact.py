"""The exact losses and gradient norms of a run, step by step, as `metrics.jsonl` has them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..engine.training.run import Run

Steps = dict[int, Any]
"""By step (from 1): the loss of each micro-batch, then the gradient norm, as an array."""


def exact_steps(rows: Iterable[Any], run: Run, before: int = 0) -> Steps:
    """Return the steps of records of training; those of damaged records are left out.

    before: the step of the record before the first one.
    """
    steps: Steps = {}
    for row in rows:
        numbers = range(before + 1, row["step"] + 1)
        before = row["step"]
        batches = [run.batches_of(step - 1) for step in numbers]
        counts = [end - first for _, first, end in batches]
        num_losses = sum(counts)
        values = np.empty(0, np.float32)
        with suppress(TypeError, ValueError):
            values = np.frombuffer(bytes.fromhex(row.get("bits")), np.float32)
        # A record is longer if a resume with fewer processes took over the losses of all of them.
        if len(values) != num_losses + len(counts):
            continue
        losses = np.split(values[:num_losses], np.cumsum(counts)[:-1])
        for step, part, norm in zip(numbers, losses, values[num_losses:], strict=True):
            steps[step] = np.append(part, norm)
    return steps


def first_difference(recorded: Steps, now: Steps) -> tuple[int, str]:
    """Return the first step whose bits differ, and what differs; 0 if none of them does."""
    for step, old in recorded.items():
        if step not in now:
            return step, "the loss or the gradient is not finite now"
        new = now[step]
        places = np.flatnonzero(old.view(np.uint32) != new.view(np.uint32))
        if places.size:
            place = places[0]
            name = "gradient norm" if place == len(old) - 1 else "loss"
            return step, f"{name} {old[place]!s} in the run, {new[place]!s} now"
    return 0, ""
