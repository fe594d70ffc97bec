"""The exact numbers of a run, step by step, as `metrics.jsonl` has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.files import read_rows

if TYPE_CHECKING:
    from ..engine.training.run import Run

Steps = dict[int, dict[str, Any]]
"""By step (from 1): an array for each kind of number, in the order in which they are computed."""


class Comparison:
    """The recorded steps of a run up to `last`, and the same steps in a replay of it.

    replay: it is at its start.
    """

    def __init__(self, rows: Sequence[Any], replay: Run, last: int):
        self.replay = replay
        start = replay.step
        steps = exact_steps(rows, replay).items()
        self.recorded = {step: numbers for step, numbers in steps if start < step <= last}
        # The first record also has the steps since the last one before the checkpoint.
        self.before = max((row["step"] for row in rows if row["step"] <= start), default=0)

    def first_difference(self) -> tuple[int, str]:
        """Return the first step whose bits differ, and what differs; 0 if none of them does."""
        rows = read_rows(self.replay.folder / "metrics.jsonl")
        steps = exact_steps(rows, self.replay, self.before)
        for step, recorded in self.recorded.items():
            if step not in steps:
                return step, "the loss or the gradient is not finite now"
            for name, now in steps[step].items():
                for old, new in zip(recorded.get(name, ()), now, strict=False):
                    if old.tobytes() != new.tobytes():
                        return step, f"{name} {old!s} in the run, {new!s} now"
        return 0, ""


def exact_steps(rows: Sequence[Any], run: Run, before: int = 0) -> Steps:
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
        hashes = row.get("gradients", {})
        for step, part, norm in zip(numbers, losses, values[num_losses:], strict=True):
            steps[step] = {"loss": part, "gradient norm": [norm]}
            if str(step) in hashes:
                steps[step]["hash of the gradients"] = [np.str_(hashes[str(step)])]
    return steps
