"""Warns once about a run that waits for data or that gets worse.

Each function of this file returns a text or None. Delete the file to have no such alerts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..engine.nonfinite import advice

if TYPE_CHECKING:
    from ..engine.run import Run

WAIT_FRACTION = 0.15  # of the time, above which waiting for data is an alert
WAIT_SECONDS = 10.0  # shortest time that is judged
DIVERGENCE_FACTOR = 3.0  # loss over the best loss, above which it is an alert
LEARNING_STEPS = 20  # every model is bad in its first steps
LEARNING_FRACTION = 0.1  # of the steps, after which a model must beat the baseline


class Hook:
    """Judges each record of metrics and each evaluation. No host sync."""

    trials = False

    def __init__(self) -> None:
        self.row: dict[str, Any] | None = None  # the last record that was judged
        self.seconds = 0.0  # since the wait for data was last judged
        self.waited = 0.0
        self.baseline: float | None = None

    def after_step(self, run: Run) -> None:
        row = run.monitor.row
        if row is None or row is self.row:
            return
        # Not the first record: its steps compile, and fill caches.
        if self.row is not None:
            self._judge_wait(run, row, row["step"] - self.row["step"])
        self.row = row

    def _judge_wait(self, run: Run, row: dict[str, Any], num_steps: int) -> None:
        seconds = num_steps * row["step_ms"] / 1000
        self.seconds += seconds
        self.waited += seconds * row["data_wait_fraction"]
        if self.seconds < WAIT_SECONDS:
            return
        workers = run.loader.stats().get("workers")
        text = data_wait(self.waited / self.seconds, workers)
        if text:
            run.monitor.alert(row["step"], "input-bound", text)
        self.seconds = 0.0
        self.waited = 0.0

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the loss with its best so far, and with the baseline, measured once."""
        if not run.project.distributed.is_main:
            return
        step = run.progress.step
        if self.baseline is None:
            self.baseline = run.project.baseline_loss("validation")
            finite = self.baseline if math.isfinite(self.baseline) else None
            run.monitor.event(step, "baseline_loss", loss=finite)
        text = divergence(metrics["loss"], self.baseline, run)
        if text:
            run.monitor.alert(step, "divergence", text)


def data_wait(fraction: float, workers: float | None) -> str | None:
    """Judge the fraction of the time that the loop waits. workers: None if the loader has none."""
    if fraction <= WAIT_FRACTION:
        return None
    remedy = "a faster disk, or work that moves from dataset.py to `prepare`"
    if workers is not None:
        remedy = f"raise data.num_workers ({workers}), then data.prefetch_factor; or {remedy}"
    return f"input-bound: the loop waits for data {fraction:.0%} of the time: {remedy}"


def divergence(loss: float, baseline: float, run: Run) -> str | None:
    """Judge the loss of an evaluation. baseline: the loss without a model.

    A loss or a baseline that is nan is never better.
    """
    progress = run.progress
    must_beat_baseline = progress.step >= max(LEARNING_FRACTION * run.last_step, LEARNING_STEPS)
    if loss > DIVERGENCE_FACTOR * progress.best_loss > 0:
        best = f"its best {progress.best_loss:.4g} at step {progress.best_step}"
        what = f"{loss:.4g} is over {DIVERGENCE_FACTOR:g} times {best}"
    elif must_beat_baseline and not loss <= baseline:
        what = f"{loss:.4g} is worse than {baseline:.4g} without a model"
    else:
        return None
    remedy = advice(run.settings, run.project.precision.name)
    return f"divergence: the validation loss {what}: {remedy}"
