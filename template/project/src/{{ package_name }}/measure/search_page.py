"""The results of a search: the verdict, `search.md` and `search.png`."""

from __future__ import annotations

import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.files import replacing, write_text
from ..engine.monitoring.report import show, table
from .trials import Overrides

if TYPE_CHECKING:
    from optuna import Study

    from .search_space import Space


class Row(NamedTuple):
    """A training on the page: a trial, or a repeat with another seed."""

    name: str
    values: Overrides
    result: dict[str, Any]

    @property
    def loss(self) -> float | None:
        """The loss of a finished training, otherwise None."""
        if self.result.get("pruned"):
            return None
        return self.result.get("loss")

    @property
    def state(self) -> str:
        if "error" in self.result:
            return f"failed: {self.result['error']}"
        if not self.result:
            return "running"
        state = f"loss {self.result['loss']:.5g}"
        if self.loss is None:
            return f"stopped after {self.result['evaluations']} evaluations, {state}"
        return state


class Spread(NamedTuple):
    """The losses of one configuration with several seeds."""

    losses: list[float]

    def __str__(self) -> str:
        return f"{mean(self.losses):.5g} ± {stdev(self.losses):.2g}"

    @property
    def range(self) -> float:
        return max(self.losses) - min(self.losses)


class Found(NamedTuple):
    """The trainings of a search. repeats: of the best settings, and of the configured ones."""

    space: Space
    trials: list[Row]
    repeats: list[Row]
    best: Row | None

    def verdict(self) -> list[str]:
        """Return lines that compare the best settings with the configured ones."""
        if self.best is None:
            return ["no trial has finished yet"]
        lowest = f"lowest validation loss of {len(self.trials)} trials {self.best.loss:.5g}"
        lines = [f"{lowest}: {words(self.best.values)}"]
        if not self.repeats:
            return [*lines, "the configured settings are the best, so nothing changes"]

        before = Spread([])
        after = Spread([])
        for row in self.repeats:
            side = before if row.name.startswith("configured") else after
            side.losses.append(row.result["loss"])
        if len(before.losses) < 2 or len(after.losses) < 2:
            return lines
        gain = mean(before.losses) - mean(after.losses)
        if gain > max(before.range, after.range):
            worth = "better by more than the spread"
        elif gain > 0:
            worth = "better, but within the spread"
        else:
            worth = "not better, so keep the configuration"
        seeds = f"{len(after.losses)} other seeds"
        lines.append(f"best {after} over {seeds}, as configured {before}: {worth}")
        return lines


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {show(value, 4)}" for key, value in overrides.items())


def write_page(folder: Path, found: Found, study: Study) -> None:
    """Write `search.md` and `search.png` into the study's folder."""
    draw(folder / "search.png", study)
    keys = list(found.space)
    trials = []
    for row in sorted(found.trials, key=lambda row: (row.loss is None, row.loss or 0.0)):
        why = row.state if row.loss is None else ""
        trials.append((row.name, row.loss, *map(row.values.get, keys), why))
    repeats = [(row.name, row.loss) for row in found.repeats]
    sections = [
        ["# Search"],
        ["## Result", "", *(f"- {line}" for line in found.verdict())],
        ["![losses of the trials over each setting](search.png)"],
        table("Trials, the lowest loss first", ("", "loss", *keys, ""), trials),
        table("Repeated with other seeds", ("", "loss"), repeats),
    ]
    paragraphs = ["\n".join(section) for section in sections if section]
    write_text(folder / "search.md", "\n\n".join(paragraphs) + "\n")


def draw(path: Path, study: Study) -> None:
    """Plot the losses of finished trials over each setting."""
    import numpy
    from matplotlib import pyplot
    from optuna.visualization.matplotlib import plot_slice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that its plots are experimental
        axes = numpy.asarray(plot_slice(study, target_name="validation loss")).ravel()
    figure = axes[0].figure
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)
