"""Warns once if a run waits for its data, and once if it diverges.

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
# Passing a batch between processes takes milliseconds. Measured on two cores: if reading a batch
# takes 3 ms, a step takes longer with one or two workers than without; from 6 ms on, two help.
WORKER_MS = 5.0
DIVERGENCE_FACTOR = 3.0  # a loss above so many times the best loss is an alert
LEARNING_STEPS = 20  # every model is bad in its first steps
LEARNING_FRACTION = 0.1  # of the steps: after them, a model must beat the baseline


class Hook:
    """Judges each record of metrics and each evaluation. No host sync."""

    trials = False

    def __init__(self) -> None:
        self.seconds = 0.0  # since the wait for data was last judged
        self.waited = 0.0
        self.baseline: float | None = None

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """Judge the wait for data. The first record does not count: its steps fill caches."""
        if run.record is None:
            return
        seconds = run.meter.num_steps * record["step_ms"] / 1000
        self.seconds += seconds
        self.waited += seconds * record["data_wait_fraction"]
        if self.seconds < WAIT_SECONDS:
            return
        fraction = self.waited / self.seconds
        self.seconds = 0.0
        self.waited = 0.0
        if fraction > WAIT_FRACTION:
            remedy = remedy_for_wait(run, fraction * record["step_ms"] / run.accumulation)
            text = f"input-bound: the loop waits for data {fraction:.0%} of the time: {remedy}"
            run.log.alert(run.step, "input-bound", text)

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the loss with the best one so far, and with the baseline, measured once."""
        if not run.project.distributed.is_main:
            return
        if self.baseline is None:
            store = run.project.store
            self.baseline = run.project.ask_dataset("baseline_loss", math.inf, store, "validation")
            if math.isfinite(self.baseline):
                run.log.event(run.step, "baseline_loss", loss=self.baseline)
        text = divergence(metrics["loss"], self.baseline, run)
        if text:
            run.log.alert(run.step, "divergence", text)


def remedy_for_wait(run: Run, milliseconds: float) -> str:
    """Return what to change, best first. milliseconds: how long the loop waits for a batch."""
    workers = getattr(run.loader, "workers", None)
    if milliseconds < WORKER_MS:
        remedy = f"raise data.batch_size ({run.settings.data.batch_size})"
        if workers:
            remedy += f", or set data.num_workers 0 ({workers})"
        return f"{remedy}: the wait is only {milliseconds:.2g} ms a batch"
    remedy = "use a faster disk, or move work from dataset.py to `prepare`"
    if workers is None:
        return remedy
    return f"raise data.num_workers ({workers}), then data.prefetch_factor; or {remedy}"


def divergence(loss: float, baseline: float, run: Run) -> str | None:
    """Judge the loss of an evaluation; return the alert, if any. baseline: without a model.

    A loss or a baseline that is nan is never better.
    """
    progress = run.progress
    must_beat_baseline = progress.step >= max(LEARNING_FRACTION * run.num_steps, LEARNING_STEPS)
    if loss > DIVERGENCE_FACTOR * progress.best_loss > 0:
        best = f"the best one, {progress.best_loss:.4g} at step {progress.best_step}"
        what = f"{loss:.4g} is more than {DIVERGENCE_FACTOR:g}× {best}"
    elif must_beat_baseline and not loss <= baseline:
        what = f"{loss:.4g} is worse than the baseline, {baseline:.4g}"
    else:
        return None
    remedy = advice(run.settings, run.project.precision.name)
    return f"divergence: the validation loss {what}: {remedy}"
