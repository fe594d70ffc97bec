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
    def score(self) -> float | None:
        """The metric of a finished training, otherwise None."""
        if self.result.get("pruned"):
            return None
        return self.result.get("value")

    @property
    def state(self) -> str:
        if "error" in self.result:
            return f"failed: {self.result['error']}"
        if not self.result:
            return "running"
        state = f"{self.result['metric']} {self.result['value']:.5g}"
        if self.score is None:
            return f"stopped after {self.result['evaluations']} evaluations, {state}"
        return state


class Spread(NamedTuple):
    """The results of one configuration with several seeds."""

    values: list[float]
    costs: list[float]  # the same, negated if higher is better

    def __str__(self) -> str:
        return f"{mean(self.values):.5g} ± {stdev(self.values):.2g}"

    @property
    def range(self) -> float:
        return max(self.values) - min(self.values)


class Found(NamedTuple):
    """The trainings of a search. repeats: of the best settings, and of the configured ones."""

    metric: str  # the one that decides
    space: Space
    trials: list[Row]
    repeats: list[Row]
    best: Row | None

    def verdict(self) -> list[str]:
        """Return lines that compare the best settings with the configured ones."""
        if self.best is None:
            return ["no trial has finished yet"]
        best = f"best validation {self.metric} of {len(self.trials)} trials {self.best.score:.5g}"
        lines = [f"{best}: {words(self.best.values)}"]
        if not self.repeats:
            return [*lines, "the configured settings are the best, so nothing changes"]

        before = Spread([], [])
        after = Spread([], [])
        for row in self.repeats:
            side = before if row.name.startswith("configured") else after
            side.values.append(row.result["value"])
            side.costs.append(row.result["cost"])
        if len(before.values) < 2 or len(after.values) < 2:
            return lines
        gain = mean(before.costs) - mean(after.costs)
        if gain > max(before.range, after.range):
            worth = "better by more than the spread"
        elif gain > 0:
            worth = "better, but within the spread"
        else:
            worth = "not better, so keep the configuration"
        seeds = f"{len(after.values)} other seeds"
        lines.append(f"best {after} over {seeds}, as configured {before}: {worth}")
        return lines


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {show(value, 4)}" for key, value in overrides.items())


def write_page(folder: Path, found: Found, study: Study) -> None:
    """Write `search.md` and `search.png` into the study's folder."""
    metric = found.metric
    draw(folder / "search.png", study, metric)
    keys = list(found.space)
    trials = []
    for row in sorted(found.trials, key=lambda row: (row.score is None, row.result.get("cost", 0))):
        why = row.state if row.score is None else ""
        trials.append((row.name, row.score, *map(row.values.get, keys), why))
    repeats = [(row.name, row.score) for row in found.repeats]
    sections = [
        ["# Search"],
        ["## Result", "", *(f"- {line}" for line in found.verdict())],
        ["![results of the trials over each setting](search.png)"],
        table(f"Trials, the best {metric} first", ("", metric, *keys, ""), trials),
        table("Repeated with other seeds", ("", metric), repeats),
    ]
    paragraphs = ["\n".join(section) for section in sections if section]
    write_text(folder / "search.md", "\n\n".join(paragraphs) + "\n")


def draw(path: Path, study: Study, metric: str) -> None:
    """Plot the metric of finished trials over each setting."""
    import numpy
    from matplotlib import pyplot
    from optuna.visualization.matplotlib import plot_slice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that its plots are experimental
        axes = numpy.asarray(plot_slice(study, target_name=f"validation {metric}")).ravel()
    figure = axes[0].figure
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)
