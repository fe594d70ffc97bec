"""Warns once if a run waits for its data, diverges, or is shorter than its warm-up.

To turn these alerts off, delete this file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..engine.run.explanations import advice

if TYPE_CHECKING:
    from ..engine.run.run import Run

WAIT_FRACTION = 0.15  # of the time: a longer wait for data is an alert
WAIT_SECONDS = 10.0  # the wait is judged after so much time
DIVERGENCE_FACTOR = 3.0  # a loss above so many times the best loss is an alert
LEARNING_STEPS = 20  # every model is bad in its first steps
LEARNING_FRACTION = 0.1  # of the steps: after them, a model must beat the baseline


class Hook:
    """Judges each record of metrics and each evaluation. No host sync."""

    trials = False

    def __init__(self) -> None:
        self.seconds = 0.0  # of training
        self.waited = 0.0  # for data
        self.baseline: float | None = None

    def before_first_batch(self, run: Run) -> None:
        """Note a warm-up that the run does not complete."""
        warmup = run.settings.schedule.warmup_steps
        if warmup != "auto" and warmup > run.num_steps:
            what = f"the warm-up of {warmup:,} steps is longer than the run of {run.num_steps:,}"
            remedy = "lower schedule.warmup_steps, or train longer"
            run.notes.append(f"{what}, so the learning rate stays below its peak: {remedy}")

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """Judge the wait for data. The first record does not count: its steps fill caches."""
        if run.record is None:
            return
        seconds = run.meter.num_steps * record["step_ms"] / 1000
        self.seconds += seconds
        self.waited += seconds * record["data_wait_fraction"]
        fraction = self.waited / self.seconds
        if self.seconds > WAIT_SECONDS and fraction > WAIT_FRACTION:
            remedy = f"raise data.batch_size ({run.settings.data.batch_size})"
            workers = getattr(run.loader, "workers", None)
            if workers is not None:
                remedy += f", or data.num_workers ({workers}) if a batch takes over 5 ms to read"
            remedy += ", or move work from dataset.py to `prepare`"
            what = f"input-bound: the loop waits for data {fraction:.0%} of the time"
            run.log.alert(run.step, "input-bound", f"{what}: {remedy}")

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the loss with the best one so far, and with the baseline, measured once."""
        if not run.project.distributed.is_main:
            return
        if self.baseline is None:
            store = run.project.store
            self.baseline = run.project.ask_dataset("baseline_loss", math.inf, store, "validation")
            if math.isfinite(self.baseline):
                run.log.event(run.step, "baseline_loss", loss=self.baseline)
        loss = metrics["loss"]
        best_loss = run.progress.best_loss
        has_learned = run.step >= max(LEARNING_FRACTION * run.num_steps, LEARNING_STEPS)
        if loss > DIVERGENCE_FACTOR * best_loss > 0:
            what = f"{loss:.4g} is more than {DIVERGENCE_FACTOR:g}× the best one, {best_loss:.4g}"
        elif has_learned and not loss <= self.baseline:  # nan is never better
            what = f"{loss:.4g} is worse than the baseline, {self.baseline:.4g}"
        else:
            return
        remedy = advice(run.settings, run.project.precision.name)
        text = f"divergence: the validation loss {what}: {remedy}"
        run.log.alert(run.step, "divergence", text)
