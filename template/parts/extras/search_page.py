"""The result of a search: the lines of its verdict, `search.md` and `search.png`."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.files import replacing, write_text
from ..engine.report import listed, show, table, tidy
from .trials import Overrides

if TYPE_CHECKING:
    from .search_space import Space

COLUMNS = 3  # panels of the plot in a row
NOTES = (
    "The loss is that of the best evaluation on the validation split, as for `checkpoints/best`; "
    "no trial opens the test split.",
    "All trials have the seed of the configuration. The lowest loss of many is lucky as well as "
    "good: the repeats, with other seeds, say what is left of it.",
    "A trial is stopped where its best evaluation so far is worse than the median of the others' "
    "at that number of evaluations.",
)


class Row(NamedTuple):
    """A training for the page: a trial, or a repeat with another seed."""

    name: str
    values: Overrides
    result: dict[str, Any]

    @property
    def loss(self) -> float | None:
        """The loss of a training that came to its end."""
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
    """The trainings of a search. repeats: those of the best, and `configured-*`."""

    space: Space
    trials: list[Row]
    repeats: list[Row]
    best: Row | None

    def verdict(self) -> list[str]:
        """Say what the best settings are worth, in lines that are written to tuned.yaml, too."""
        if self.best is None:
            return ["no trial came to its end yet"]
        lowest = f"lowest validation loss of {len(self.trials)} trials {self.best.loss:.5g}"
        lines = [f"{lowest}: {words(self.best.values)}"]
        if not self.repeats:
            return [*lines, "the configuration was the best: nothing changes"]

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
            worth = "within the spread"
        else:
            worth = "no better: keep the configuration"
        seeds = f"{len(after.losses)} other seeds"
        lines.append(f"best {after} over {seeds}, as configured {before}: {worth}")
        return lines


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {show(value, 4)}" for key, value in overrides.items())


def write_page(folder: Path, found: Found) -> None:
    """Write `search.md` and `search.png` into the study's folder."""
    draw(folder / "search.png", found)
    keys = list(found.space)
    trials = []
    for row in sorted(found.trials, key=lambda row: (row.loss is None, row.loss or 0.0)):
        why = row.state if row.loss is None else ""
        trials.append((row.name, row.loss, *map(row.values.get, keys), why))
    repeats = [(row.name, row.loss) for row in found.repeats]
    parts = [
        ["# Search"],
        listed("Result", found.verdict()),
        ["![losses over the trials, and over each setting](search.png)"],
        table("Trials, the lowest loss first", ("", "loss", *keys, ""), trials),
        table("Repeated with other seeds", ("", "loss"), repeats),
        listed("Notes", list(NOTES)),
    ]
    paragraphs = ["\n".join(part) for part in parts if part]
    write_text(folder / "search.md", "\n\n".join(paragraphs) + "\n")


def draw(path: Path, found: Found) -> None:
    """Draw losses over the trials with the lowest so far, then over each setting."""
    from matplotlib.figure import Figure

    rows = [row for row in found.trials if "loss" in row.result]
    num_panels = 1 + len(found.space)
    columns = min(num_panels, COLUMNS)
    lines = math.ceil(num_panels / COLUMNS)
    figure = Figure(figsize=(4 * columns, 3.2 * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
    for unused in axes[num_panels:]:
        unused.set_visible(False)

    draw_trials(axes[0], rows)
    for panel, (key, scale) in zip(axes[1:], found.space.items(), strict=False):
        draw_setting(panel, key, scale, rows)
    losses = [row.result["loss"] for row in rows]
    if losses and 0 < 20 * min(losses) < max(losses):
        axes[0].set_yscale("log")
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)


def draw_trials(axes: Any, rows: list[Row]) -> None:
    numbers = list(range(1, len(rows) + 1))
    losses = [math.inf if row.loss is None else row.result["loss"] for row in rows]
    lowest = list(accumulate(losses, min))
    axes.step(numbers, lowest, where="post", color="C3", linewidth=1.2, label="lowest")
    scatter(axes, numbers, rows)
    tidy(axes, "", "trial", "validation loss")
    axes.legend(frameon=False)


def draw_setting(axes: Any, key: str, scale: Any, rows: list[Row]) -> None:
    places = [row.values[key] for row in rows]
    choices = getattr(scale, "choices", None)
    if choices is not None:
        places = [choices.index(value) for value in places]
        axes.set_xticks(range(len(choices)), [str(value) for value in choices])
    elif scale.log:
        axes.set_xscale("log")
    scatter(axes, places, rows)
    tidy(axes, "", key)


def scatter(axes: Any, places: list[Any], rows: list[Row]) -> None:
    """Draw a point for each trial, hollow if it was stopped, at its lowest loss until then."""
    for has_ended, face, label in ((True, "C0", "trial"), (False, "none", "stopped")):
        x = []
        y = []
        for place, row in zip(places, rows, strict=True):
            if (row.loss is not None) == has_ended:
                x.append(place)
                y.append(row.result["loss"])
        axes.scatter(x, y, facecolors=face, edgecolors="C0", s=22, label=label)
