"""Averages the weights over the steps of a run (Polyak & Juditsky 1992): often better than the last ones.

An average of its own for each weight, on the device: as much memory as the weights, and one pass over both
for each update, without a host sync. Evaluations measure it beside the weights that are trained, in columns
that end in `_averaged`; `evaluate`, `predict`, `generate` and `export` take it with `--weights averaged`. A
sharded model has sharded averages. Buffers, such as running statistics, are those of the trained model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..engine.config import Section, defaults
from ..engine.errors import UserError
from ..engine.files import read_rows
from ..engine.report import losses, numbers, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..engine.run import Run

WEIGHTS = "averaged"
"""What `--weights` calls them."""


class Ema(Section):
    """The averaged weights."""

    decay: float = Field(0.999, ge=0, lt=1, description="share of the average that an update leaves")
    start_step: int = Field(0, ge=0, description="step of the phase from which on it averages")
    every_steps: int = Field(1, ge=1, description="optimizer steps between two updates")


class Sections(Section):
    """The section of config.yaml that belongs to this hook."""

    ema: Ema = defaults(Ema)


class Hook:
    """Keeps the averages, and measures them at evaluations. No host sync."""

    def __init__(self) -> None:
        self.averages: dict[str, Tensor] = {}
        self.updates = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averages, self.updates = state["averages"], state["updates"]

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages, "updates": self.updates}

    def start(self, run: Run) -> None:
        """Goes on with what was restored, else from the weights as they are."""
        from ..engine.weights import fill

        self.settings, model = run.project.settings.ema, run.project.model
        saved, self.averages = self.averages, {n: p.detach().clone() for n, p in model.named_parameters()}
        if saved:
            for name, average in self.averages.items():
                fill(average, saved[name])
        self.weights = list(model.parameters())

    def after_step(self, run: Run) -> None:
        """A step towards the weights; a longer one at first, so that the beginning is soon forgotten."""
        import torch

        from ..engine.weights import own

        if run.progress.step % self.settings.every_steps:
            return
        share = 1.0
        if run.step_of_phase > self.settings.start_step:
            self.updates += 1
            share = max(1 - self.settings.decay, 9 / (10 + self.updates))
        with torch.no_grad():
            torch._foreach_lerp_([*map(own, self.averages.values())], [*map(own, self.weights)], share)

    @contextmanager
    def evaluating(self, run: Run) -> Iterator[None]:
        """Measures the averages before the weights: a signal meanwhile leaves both to the resume."""
        from ..engine.evaluation import evaluate

        project = run.project
        parts = project.wrapped, run.validation, project.precision, project.distributed
        self._exchange()
        try:
            self.metrics = evaluate(*parts, run.agree) or {}
        finally:
            self._exchange()
        yield

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Adds what was measured to the row; the best checkpoint is that of the trained weights' loss."""
        metrics |= {f"{name}_{WEIGHTS}": value for name, value in self.metrics.items()}

    def _exchange(self) -> None:
        """Swaps weights and averages in place, one by one, so that graphs and buckets find them."""
        import torch

        from ..engine.weights import own

        with torch.no_grad():
            for mine, other in zip(map(own, self.averages.values()), map(own, self.weights), strict=True):
                kept = other.clone()
                other.copy_(mine)
                mine.copy_(kept)


def use(model: nn.Module, states: dict[str, Any]) -> None:
    """Puts the averages of a checkpoint's hooks into a model. Raises `UserError` where there are none."""
    if "ema" not in states:
        remedy = "take --weights trained, or train on: the extra ema averages from now on"
        raise UserError("the checkpoint has no averaged weights", f"--weights {WEIGHTS}", remedy)
    from ..engine.weights import fill

    for name, parameter in model.named_parameters():
        fill(parameter, states["ema"]["averages"][name])


def report(run: Path) -> list[str]:
    """First, best and last loss of the averaged weights, for report.md."""
    rows = [row for row in read_rows(run / "metrics.jsonl") if "split" in row]
    series = {"validation": numbers(rows, f"loss_{WEIGHTS}")}
    return table("Losses of the averaged weights", ("", "loss", "step"), losses(series))
