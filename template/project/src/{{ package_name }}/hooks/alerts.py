"""Warns if a part of a run takes too long, and if it diverges, overflows or only warms up.

If the steps of fp16 overflow for too long, the run ends. To turn all of this off, delete this file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError, UserErrors
from ..engine.training.explanations import advice

if TYPE_CHECKING:
    from ..engine.training.run import Run

LARGER_BATCH = "raise data.batch_size ({settings.data.batch_size})"
# The kinds of time that are an alert: above which fraction of the time, and what to do.
TIME_LIMITS = {
    "data wait": (
        0.15,
        f"{LARGER_BATCH}, or move work from dataset.py to `prepare` "
        "(loader {loader[state]}, {loader[why]})",
    ),
    "validation": (
        0.3,
        "raise evaluation.every_steps or evaluation.batch_size, or lower evaluation.fraction "
        "({settings.evaluation.fraction:g})",
    ),
    "saving": (0.1, "raise checkpoint.every_steps, and evaluation.every_steps for the best one"),
    "optimizer": (0.5, f"{LARGER_BATCH} or training.gradient_accumulation_steps"),
    "Python": (0.5, f"{LARGER_BATCH}, or look for slow code in hooks/ and train.py"),
}
LEAST_SECONDS = 10.0  # the times are judged after so much time
DIVERGENCE_FACTOR = 3.0  # a loss above so many times the best loss is an alert
LEARNING_STEPS = 20  # every model is bad in its first steps
LEARNING_FRACTION = 0.5  # of the steps: after them, a model must beat the baseline
OVERFLOWS = 20  # skipped steps in a row: so many are an alert
# So many are an error: each one halves the loss scale (torch.amp.GradScaler), and the range of fp16
# is 40 powers of two, from 2**-24 to 2**16. A finite gradient fits, or is 0, after 40 halvings.
MOST_OVERFLOWS = 40


class Hook:
    """Judges each record of metrics and each evaluation. No host sync."""

    trials = False

    def __init__(self) -> None:
        self.baseline: float | None = None

    def before_first_batch(self, run: Run) -> None:
        """Note a warm-up that the run does not complete."""
        warmup = run.settings.schedule.warmup_steps
        if warmup != "auto" and warmup > run.num_steps:
            what = f"the warm-up of {warmup:,} steps is longer than the run of {run.num_steps:,}"
            remedy = "lower schedule.warmup_steps, or train longer"
            run.notes.append(f"{what}, so the learning rate stays below its peak: {remedy}")

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """Judge the overflows, then where the time of all calls of `train` went."""
        self._judge_overflows(run, record.get("skipped_steps", 0))
        times = run.meter.times
        seconds = times.total()
        for kind, (limit, remedy) in TIME_LIMITS.items():
            fraction = times[kind] / seconds
            if seconds > LEAST_SECONDS and fraction > limit:
                text = (
                    f"{kind} takes {fraction:.0%} of the time: "
                    f"{remedy.format(settings=run.settings, loader=run.loader.describe()[-1])}"
                )
                run.log.alert(run.step, kind, text)

    def _judge_overflows(self, run: Run, num_skipped: int) -> None:
        """Count the steps of records in which each one overflowed: such a run learns nothing."""
        progress = run.progress  # a resume continues the count
        progress.skipped += num_skipped
        if num_skipped < run.meter.num_steps:
            progress.skipped = 0
        text = (
            f"fp16: the last {progress.skipped} steps overflowed and changed no weight: set "
            "training.precision bf16 or fp32, or let model.py compute smaller values"
        )
        if progress.skipped >= min(MOST_OVERFLOWS, run.num_steps):
            raise UserErrors([UserError(text)])
        if progress.skipped >= OVERFLOWS:
            run.log.alert(run.step, "overflow", text)

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the loss with the best one so far, and with the baseline, measured once."""
        baseline = metrics.pop("baseline_loss", None)
        if not run.project.distributed.is_main:
            return
        if self.baseline is None:
            project = run.project
            if baseline is None:
                baseline = project.ask_dataset(
                    "baseline_loss", math.inf, project.store, "validation"
                )
            self.baseline = baseline
            if math.isfinite(self.baseline):
                run.log.event(run.step, "baseline_loss", loss=self.baseline)
        loss = metrics["loss"]
        best_loss = run.progress.best_loss
        has_learned = run.step >= max(LEARNING_FRACTION * run.num_steps, LEARNING_STEPS)
        if loss > DIVERGENCE_FACTOR * best_loss > 0:
            what = f"{loss:.4g} is more than {DIVERGENCE_FACTOR:g}× the best one, {best_loss:.4g}"
        elif has_learned and not -math.inf < loss <= self.baseline:  # nan is never better
            what = f"{loss:.4g} is worse than the baseline, {self.baseline:.4g}"
        else:
            return
        remedy = advice(run.settings, run.project.precision.name)
        text = f"divergence: the validation loss {what}: {remedy}"
        run.log.alert(run.step, "divergence", text)
