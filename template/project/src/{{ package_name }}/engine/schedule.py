"""Learning rate as a function of the step: warm-up + cosine, OneCycle, linear, constant.

A closed formula instead of a stateful scheduler: nothing to restore but the length, and no Python
object between the loop and the optimizer.
"""

from __future__ import annotations

import math
from typing import Any

from .errors import UserError

ONECYCLE_START = (
    1 / 25
)  # learning rate of the first step over the peak (Smith & Topin 2018; PyTorch's OneCycleLR)
ONECYCLE_END = ONECYCLE_START / 1e4


def factor(name: str, step: int, total: int, warmup: int, final: float) -> float:
    """Learning rate of step `step` (from 0) over its peak, for a run of `total` steps.

    warmup: steps of rise, linear but for OneCycle. final: value at the end; OneCycle has its own.
    """
    if name == "onecycle":
        if step < warmup:
            return _cosine(ONECYCLE_START, 1.0, step / max(warmup - 1, 1))
        return _cosine(1.0, ONECYCLE_END, (step - warmup + 1) / max(total - warmup, 1))
    if step < warmup:
        return (step + 1) / warmup
    passed = min((step - warmup) / max(total - warmup, 1), 1.0)
    if name == "cosine":
        return _cosine(1.0, final, passed)
    if name == "linear":
        return 1.0 + (final - 1.0) * passed
    return 1.0


def _cosine(start: float, end: float, passed: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2


def warmup_steps(schedule: Any, total: int) -> int:
    """Steps of rise; `auto` leaves a short run time to decay: 100, or a tenth, and 30 % for OneCycle."""
    if schedule.warmup_steps != "auto":
        return schedule.warmup_steps
    return round(0.3 * total) if schedule.name == "onecycle" else min(100, total // 10)


class Schedule:
    """Sets the learning rate of every parameter group; `total` steps is the run's length."""

    def __init__(self, optimizer: Any, settings: Any, total: int):
        self.optimizer = optimizer  # not its groups: loading a state puts new ones in their place
        self.settings, self.total = settings.schedule, total
        self.peak = settings.optimizer.learning_rate
        self.warmup = warmup_steps(self.settings, total)
        self.learning_rate = self.peak

    def set(self, step: int) -> None:
        """Prepares the optimizer for step number `step` (from 0)."""
        schedule = self.settings
        share = factor(schedule.name, step, self.total, self.warmup, schedule.final_factor)
        self.learning_rate = self.peak * share
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "name": self.settings.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `UserError` where the run's length or schedule is another than the checkpoint's."""
        if state != self.state_dict():
            was, now = (
                f"{state['name']} over {state['total']} steps",
                f"{self.settings.name} over {self.total}",
            )
            what = f"the schedule changed from {was} to {now}: a resumed run would not be the same"
            remedy = "keep epochs, max_steps, batch size and schedule, or start a new run"
            raise UserError(what, "--resume", remedy)
