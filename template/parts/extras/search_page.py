"""What a search found: the lines of its verdict, `search.md` and `search.png`."""

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

COLUMNS = 3  # panels of the picture in a row
NOTES = (
    "The loss is that of the best evaluation on the validation split, as for `checkpoints/best`; no trial "
    "opens the test split.",
    "All trials have the seed of the configuration. The lowest loss of many is lucky as well as good: the "
    "repeats, with other seeds, say what is left of it.",
    "A trial is stopped where its best evaluation so far is worse than the median of the others' at that "
    "number of evaluations.",
)


class Row(NamedTuple):
    """A training as the page has it: a trial, or a repeat with another seed."""

    name: str
    values: Overrides
    result: dict[str, Any]

    @property
    def loss(self) -> float | None:
        """Of a training that came to its end."""
        return None if self.result.get("pruned") else self.result.get("loss")

    @property
    def state(self) -> str:
        if "error" in self.result:
            return f"failed: {self.result['error']}"
        if not self.result:
            return "running"
        state = f"loss {self.result['loss']:.5g}"
        return (
            f"stopped after {self.result['evaluations']} evaluations, {state}" if self.loss is None else state
        )


class Spread(NamedTuple):
    """Losses of one configuration with several seeds."""

    losses: list[float]

    def __str__(self) -> str:
        return f"{mean(self.losses):.5g} ± {stdev(self.losses):.2g}"

    @property
    def range(self) -> float:
        return max(self.losses) - min(self.losses)


class Found(NamedTuple):
    """All that is known of a search. repeats: those of the best, and `configured-*`."""

    space: Space
    trials: list[Row]
    repeats: list[Row]
    best: Row | None

    def verdict(self) -> list[str]:
        """What the best settings are worth, in lines that stand in tuned.yaml too."""
        if self.best is None:
            return ["no trial came to its end yet"]
        count = len(self.trials)
        lines = [f"lowest validation loss of {count} trials {self.best.loss:.5g}: {words(self.best.values)}"]
        if not self.repeats:
            return [*lines, "the configuration was the best: nothing changes"]
        losses: tuple[list[float], list[float]] = ([], [])
        for row in self.repeats:
            losses[not row.name.startswith("configured")].append(row.result["loss"])
        before, after = map(Spread, losses)
        if min(map(len, (before.losses, after.losses))) < 2:
            return lines
        gain, seeds = mean(before.losses) - mean(after.losses), len(after.losses)
        worth = "no better: keep the configuration" if gain <= 0 else "within the spread"
        worth = "better by more than the spread" if gain > max(before.range, after.range) else worth
        lines.append(f"best {after} over {seeds} other seeds, as configured {before}: {worth}")
        return lines


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {show(value, 4)}" for key, value in overrides.items())


def write_page(folder: Path, found: Found) -> None:
    """Writes `search.md` and `search.png` into the study's folder."""
    draw(folder / "search.png", found)
    order = sorted(found.trials, key=lambda row: (row.loss is None, row.loss or 0.0))
    keys = list(found.space)
    why = [row.state if row.loss is None else "" for row in order]
    trials = [(row.name, row.loss, *map(row.values.get, keys), x) for row, x in zip(order, why, strict=True)]
    repeats = [(row.name, row.loss) for row in found.repeats]
    parts = [
        ["# Search"],
        listed("Result", found.verdict()),
        ["![losses over the trials, and over each setting](search.png)"],
        table("Trials, the lowest loss first", ("", "loss", *keys, ""), trials),
        table("Repeated with other seeds", ("", "loss"), repeats),
        listed("Notes", list(NOTES)),
    ]
    write_text(folder / "search.md", "\n\n".join("\n".join(part) for part in parts if part) + "\n")


def draw(path: Path, found: Found) -> None:
    """Losses over the trials with the lowest so far, then over each setting."""
    from matplotlib.figure import Figure

    rows = [row for row in found.trials if "loss" in row.result]
    losses, count = [row.result["loss"] for row in rows], 1 + len(found.space)
    wide, high = min(count, COLUMNS), math.ceil(count / COLUMNS)
    figure = Figure(figsize=(4 * wide, 3.2 * high), layout="constrained")
    first, *panels = figure.subplots(high, wide, squeeze=False, sharey=True).flat
    numbers = list(range(1, len(rows) + 1))
    ended = [row.result["loss"] if row.loss is not None else math.inf for row in rows]
    first.step(numbers, list(accumulate(ended, min)), where="post", color="C3", linewidth=1.2, label="lowest")
    scatter(first, numbers, rows)
    tidy(first, "", "trial", "validation loss")
    first.legend(frameon=False)
    for axes, (key, scale) in zip(panels, found.space.items(), strict=False):
        places, choices = [row.values[key] for row in rows], getattr(scale, "choices", None)
        if choices is not None:
            places = [choices.index(value) for value in places]
            axes.set_xticks(range(len(choices)), [str(value) for value in choices])
        elif scale.log:
            axes.set_xscale("log")
        scatter(axes, places, rows)
        tidy(axes, "", key)
    if losses and 0 < 20 * min(losses) < max(losses):
        first.set_yscale("log")
    for axes in [first, *panels]:
        axes.set_visible(axes in (first, *panels[: len(found.space)]))
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)


def scatter(axes: Any, places: list[Any], rows: list[Row]) -> None:
    """A point for each trial; one that was stopped is hollow, at its lowest loss until then."""
    for ended, face, label in ((True, "C0", "trial"), (False, "none", "stopped")):
        chosen = [n for n, row in enumerate(rows) if (row.loss is not None) == ended]
        x, y = [places[n] for n in chosen], [rows[n].result["loss"] for n in chosen]
        axes.scatter(x, y, facecolors=face, edgecolors="C0", s=22, label=label)
