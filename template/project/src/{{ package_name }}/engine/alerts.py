"""What a run warns about: waiting for data, a model that gets worse. Each returns text or None."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Settings
    from .progress import Progress

WAIT_FRACTION = 0.15  # of the time, above which waiting for data is an alert
WAIT_SECONDS = 10.0  # shortest time that is judged
DIVERGENCE_FACTOR = 3.0  # loss over the best loss, above which it is an alert
LEARNING_STEPS = 20  # every model is bad in its first steps
LEARNING_FRACTION = 0.1  # of the steps, after which a model must beat the baseline
DAY = 24 * 3600.0  # seconds
MONTH = 30 * DAY
YEAR = 365 * DAY


class DataWait:
    """Adds up how long the loop waits for data, and judges it every `WAIT_SECONDS`."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.seconds = 0.0

    def judge(self, waited: float, seconds: float, loader: Any) -> str | None:
        self.waited += waited
        self.seconds += seconds
        if self.seconds < WAIT_SECONDS:
            return None
        fraction = self.waited / self.seconds
        self.waited = 0.0
        self.seconds = 0.0
        if fraction <= WAIT_FRACTION:
            return None

        remedy = "a faster disk, or work that moves from dataset.py to `prepare`"
        workers = loader.stats().get("workers")
        if workers is not None:
            settings = f"data.num_workers ({workers}), then data.prefetch_factor"
            remedy = f"raise {settings}; or {remedy}"
        return f"input-bound: the loop waits for data {fraction:.0%} of the time: {remedy}"


def divergence(
    split: str, loss: float, baseline: float, progress: Progress, end: int, settings: Settings
) -> str | None:
    """Judge the loss of an evaluation. baseline: the loss without a model. end: of the steps.

    A loss or a baseline that is nan is never better.
    """
    best_loss = progress.best_loss
    must_beat_baseline = progress.step >= max(LEARNING_FRACTION * end, LEARNING_STEPS)
    if loss > DIVERGENCE_FACTOR * best_loss > 0:
        best = f"its best {best_loss:.4g} at step {progress.best_step}"
        what = f"the {split} loss {loss:.4g} is over {DIVERGENCE_FACTOR:g} times {best}"
    elif must_beat_baseline and not loss <= baseline:
        what = f"the {split} loss {loss:.4g} is worse than {baseline:.4g} without a model"
    else:
        return None

    remedy = f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"
    if not settings.training.gradient_clip:
        remedy += ", or set training.gradient_clip 1"
    return f"divergence: {what}: {remedy}"


def plain_duration(seconds: float) -> str:
    """A time for a reader, in one unit: `1:02:03`, `12 days`, `3 months`, `5,660 years`."""
    if seconds < 2 * DAY:
        return str(timedelta(seconds=round(seconds)))
    if seconds < 2 * MONTH:
        return f"{seconds / DAY:.0f} days"
    if seconds < 2 * YEAR:
        return f"{seconds / MONTH:.0f} months"
    return f"{seconds / YEAR:,.0f} years"


def long_run(seconds_left: float, settings: Settings) -> str | None:
    """Warn about a run that takes longer than a month."""
    if seconds_left <= MONTH:
        return None
    training = settings.training
    length = f"training.epochs ({training.epochs:,})"
    if training.max_steps:
        length = f"training.max_steps ({training.max_steps:,})"
    left = f"this run takes another {plain_duration(seconds_left)} at this pace"
    return f"{left}: lower {length}, or let `train --minutes N` choose the number of steps"
