"""Find the fastest settings of this machine by short runs, written to tuned.yaml; or those that learn best.

A setting changes only where the gain exceeds the spread of runs that were repeated in a new, random order.
The result is a whole configuration, for `train --config tuned.yaml`; its first lines say what it gave.
`--search` is another question, and `measure/search.py`: which settings give a lower validation loss.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.errors import UserError
from ..engine.files import replacing, write_text
from ..engine.gpus import Card
from ..engine.report import tidy
from ..measure.trials import Failed, Overrides, Trials, card_here, changed

if TYPE_CHECKING:
    from ..config import Settings

OUTPUT, PICTURE = Path("tuned.yaml"), Path("learning_rate.png")
KNOBS = ("batch_size", "workers", "prefetch", "chunk_size", "compile_mode")
MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
BATCH, GROUPS = "data.batch_size", "training.gradient_accumulation_steps"
REPEATS = 3  # of both sides, before a setting changes
PAYS = 1.03  # a doubled batch that gains less does not pay; after two of them the search ends
STEPS_AN_EPOCH = 8  # that a larger batch must leave
LOWEST, HIGHEST, RATES = 1e-7, 1.0, 150  # of the range test, and its number of steps


class Change(NamedTuple):
    """What one knob came to; `kept` says that the default stays."""

    gain: float
    spread: float
    kept: bool

    def __str__(self) -> str:
        return f"{self.gain:.2f} times, spread {self.spread:.1%}{': kept as it was' if self.kept else ''}"


class OutOfTime(Exception):
    """No time is left for another run."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add = parser.add_argument
    add("knobs", nargs="*", metavar="KNOB", help=f"what to tune, of {', '.join(KNOBS)} (default: all)")
    add("--minutes", type=float, help="when to stop (default: 10; of a search: none)")
    add("--steps", type=int, default=40, metavar="N", help="timed steps of a run (default: 40)")
    same = "same samples a step: accumulation makes up for it"
    add("--keep-effective-batch", action="store_true", help=same)
    add("--learning-rate", action="store_true", help="only draw the loss over a rising learning rate")
    space = "settings with a lower validation loss, by whole trainings: KEY=LOW..HIGH or KEY=VALUE,VALUE"
    add("--search", nargs="+", metavar="KEY=VALUES", help=space)
    add("--trials", type=int, default=20, metavar="N", help="trainings of a search (default: 20)")


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Writes tuned.yaml, or learning_rate.png."""
    configured = load()
    settings = configured.phase(1) if configured.phases else configured
    if unknown := [knob for knob in arguments.knobs if knob not in KNOBS]:
        raise UserError(f"unknown knob {unknown[0]!r}", "command line", f"choose of {', '.join(KNOBS)}")
    if arguments.steps < 1:
        raise UserError(f"{arguments.steps} steps are none to time", "--steps", "give at least 1")
    minutes = 10.0 if arguments.minutes is None else arguments.minutes
    if not 0 < minutes < math.inf:
        raise UserError(f"{minutes:g} minutes are no time", "--minutes", "give a number above 0")
    if arguments.search and (arguments.knobs or arguments.learning_rate):
        remedy = "give its keys and values alone, or leave it out"
        raise UserError("--search tunes no knob and draws no curve", "command line", remedy)
    if arguments.learning_rate:
        return find_learning_rate(settings)
    if arguments.search:
        from ..measure.search import search

        return search(" ".join(arguments.search), configured, arguments.trials, arguments.minutes)

    from .. import dataset
    from ..assemble import open_store
    from ..engine.loader import Loader

    card, store = card_here(), open_store(settings)
    trials = Trials(settings, store.folder, card.capability is not None)
    samples: Any = dataset.Samples(store, settings, "train")
    tuner = Tuner(settings, trials, arguments.steps, 60 * minutes)
    try:
        for knob in arguments.knobs or KNOBS:
            if knob == "batch_size":
                tuner.batch_size(len(samples), arguments.keep_effective_batch)
            else:
                present = changed(settings, tuner.chosen)
                tuner.knob(knob, list(options(knob, present, Loader.WITHOUT_EFFECT, card)))
        tuner.confirm_all()
    except OutOfTime:
        tuner.say(f"{minutes:g} minutes are over: what was not repeated stays as it was")
    finally:
        tuner.bar.close()
    lines = [f"# Tuned on {card.name}: {line}" for line in tuner.lines]
    tuned = changed(configured, tuner.chosen)
    tuned._origins = configured.origins | dict.fromkeys(tuner.chosen, "tune")
    write_text(OUTPUT, "\n".join([*lines, tuned.to_yaml()]))
    found = f"train --config {OUTPUT}" if tuner.chosen else "nothing was faster, so `train` stays as it is"
    print(f"{OUTPUT}: {found}")
    return 0


def options(knob: str, settings: Settings, without: tuple[str, ...], card: Card) -> Iterator[Overrides]:
    """What else to try for a knob; nothing where loader, device or configuration have no use for it."""
    from ..engine.optimization import compiles

    data, cores = settings.data, os.cpu_count() or 1
    if knob == "workers" and "num_workers" not in without:
        yield from ({"data.num_workers": number} for number in (0, 1, 2, 4, 8, 12, 16) if number <= cores)
    if knob == "prefetch" and "prefetch_factor" not in without and data.num_workers not in (0, "auto"):
        yield from ({"data.prefetch_factor": number} for number in (2, 4, 8))
    if knob == "chunk_size" and "chunk_size_gb" not in without:
        yield from ({"data.chunk_size_gb": size} for size in ("auto", 0.25, 1.0, 4.0))
    if knob == "compile_mode" and compiles(settings, card.capability)[0]:
        graphs = settings.training.gradient_accumulation_steps == 1  # they overwrite accumulated gradients
        yield from ({"compile.mode": mode} for mode in (MODES if graphs else MODES[:2]))


class Tuner:
    """Tries settings one knob after the other, each on top of what was chosen before.

    settings: the default. trials: as `Trials`, measures overrides. seconds: after so many it ends.
    """

    def __init__(self, settings: Settings, trials: Trials, steps: int, seconds: float):
        from tqdm import tqdm

        self.settings, self.trials, self.steps = settings, trials, steps
        self.begun, self.seconds, self.longest = time.monotonic(), seconds, 0.0
        self.chosen: Overrides = {}
        self.lines: list[str] = []
        self.changes = 0
        self.random = random.Random(settings.reproducibility.seed)
        unit = "{desc} {percentage:3.0f}% |{bar}| {postfix}"
        self.bar = tqdm(total=round(seconds), desc="time", bar_format=unit, dynamic_ncols=True)

    def say(self, line: str) -> None:
        """One line above the bar, and in tuned.yaml."""
        self.lines.append(line)
        self.bar.write(line)

    def rate(self, overrides: Overrides) -> float:
        """samples/s of one run of these settings upon the chosen ones. Raises `Failed`, `OutOfTime`."""
        begun = time.monotonic()
        if begun - self.begun + self.longest > self.seconds:
            raise OutOfTime
        self.bar.set_postfix_str(words(overrides) or "default")
        try:
            found = self.trials(self.chosen | overrides, 10, self.steps)
        finally:
            self.longest = max(self.longest, time.monotonic() - begun)
            self.bar.update(round(time.monotonic() - self.begun) - self.bar.n)
        return 1000 * found["samples"] / median(found["step_ms"])

    def now(self, overrides: Overrides) -> Overrides:
        """The present values of the same settings."""
        return {key: self.chosen.get(key, self.settings.value(key)) for key in overrides}

    def batch_size(self, samples: int, keep: bool) -> None:
        """Doubles the batch while it fits and pays. keep: accumulation is halved with it."""
        data, groups = self.settings.data, self.settings.training.gradient_accumulation_steps
        largest, best, idle = None, {BATCH: data.batch_size, GROUPS: groups}, 0
        top = rate = self.rate(best)
        for doubled in count(1):
            size, group = data.batch_size << doubled, groups >> doubled if keep else groups
            if size * group > samples / STEPS_AN_EPOCH or (keep and groups % (1 << doubled)) or idle == 2:
                break
            try:
                rate = self.rate({BATCH: size, GROUPS: group})
            except Failed as error:
                if not error.memory:
                    raise UserError(str(error), f"{BATCH} {size}", "run `train` with it") from error
                self.say(f"{BATCH} {size} does not fit")
                break
            largest, idle = size, 0 if rate > PAYS * top else idle + 1
            if not idle:
                top, best = rate, {BATCH: size, GROUPS: group}
        if largest:
            self.say(f"{BATCH}: {largest} is the largest that was tried and fits")
        self.decide("batch_size", best)
        if BATCH in self.chosen and not keep:
            self.say("more samples a step: another learning rate may suit; `tune --learning-rate` shows it")

    def knob(self, name: str, found: list[Overrides]) -> None:
        """Measures each option once, and decides between the best and what there is."""
        rates: list[tuple[float, Overrides]] = []
        present = [self.now(overrides) for overrides in found[:1]]
        for overrides in present + [overrides for overrides in found if overrides not in present]:
            try:
                rates.append((self.rate(overrides), overrides))
            except Failed as error:
                self.say(f"{words(overrides)} fails: {error}")
        if rates:
            self.decide(name, max(rates, key=lambda pair: pair[0])[1])
        else:
            self.say(f"{name}: nothing to try here")

    def decide(self, name: str, best: Overrides) -> None:
        """Takes `best` where its gain over the present values exceeds the spread of repeated runs."""
        before = self.now(best)
        if best == before:
            self.say(f"{name}: {words(before)} stays, nothing was faster")
            return
        change = compare(*self.repeat(before, best))
        self.say(f"{name}: {words(before)} -> {words(best)}: {change}")
        if not change.kept:
            self.chosen |= best
            self.changes += 1

    def repeat(self, first: Overrides, second: Overrides) -> list[list[float]]:
        """samples/s of REPEATS fresh runs of both, in random order."""
        rates: list[list[float]] = [[], []]
        for side in self.random.sample([0, 1] * REPEATS, k=2 * REPEATS):
            rates[side].append(self.rate((first, second)[side]))
        return rates

    def confirm_all(self) -> None:
        """What all changes give together, where there are several."""
        if self.changes > 1:
            chosen, self.chosen = self.chosen, {}
            try:
                self.say(f"all together: {compare(*self.repeat({}, chosen))}")
            finally:
                self.chosen = chosen


def compare(before: list[float], after: list[float]) -> Change:
    """Ratio of the medians, and the larger of the two sides' ranges relative to its median."""
    gain = median(after) / median(before)
    spread = max((max(side) - min(side)) / median(side) for side in (before, after))
    return Change(gain, spread, gain - 1 <= spread)


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {value}" for key, value in overrides.items())


def find_learning_rate(settings: Settings) -> int:
    """Trains a fresh model while the learning rate rises, until the loss is four times its lowest, or not
    finite, and draws it (Smith 2015, arXiv:1506.01186)."""
    from tqdm import tqdm

    from ..measure.steps import stepping

    rates, losses, means = [], [], []
    with stepping(settings) as step:
        for number in tqdm(range(RATES), unit="step"):
            rates.append(LOWEST * (HIGHEST / LOWEST) ** (number / (RATES - 1)))
            for group in step.project.optimizer.param_groups:
                group["lr"] = rates[-1]
            losses.append(step().item())
            means = smooth(losses)
            if not math.isfinite(losses[-1]) or (number > 10 and means[-1] > 4 * min(means)):
                break
    best = suggested(rates, means)
    draw(PICTURE, rates, losses, best)
    if best is None:
        raise UserError("the loss fell at no learning rate", str(PICTURE), "look at the data and the model")
    print(f"{PICTURE}: a tenth of where the loss is lowest: --optimizer.learning_rate {best:.1e}")
    return 0


def smooth(losses: list[float], keep: float = 0.9) -> list[float]:
    """Exponential mean of what came so far, unbiased at the start."""
    means, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = keep * mean + (1 - keep) * loss
        means.append(mean / (1 - keep**number))
    return means


def suggested(rates: list[float], means: list[float]) -> float | None:
    """A tenth of the rate at the lowest mean loss; None where that is not clearly below the first."""
    finite = [mean if math.isfinite(mean) else math.inf for mean in means]
    lowest = finite.index(min(finite))
    return rates[lowest] / 10 if finite[lowest] < finite[0] - 0.02 * abs(finite[0]) else None


def draw(path: Path, rates: list[float], losses: list[float], best: float | None) -> None:
    """The losses pale, their mean on top, the suggestion as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes, means = figure.subplots(), smooth(losses)
    axes.plot(rates, losses, color="C0", alpha=0.3, linewidth=0.9, label="loss of a step")
    axes.plot(rates, means, color="C0", linewidth=1.8, label="mean")
    if best is not None:
        axes.axvline(best, color="C3", linestyle="--", linewidth=1.2, label=f"suggested: {best:.1e}")
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite), max(finite[0], min(finite))
    axes.set_ylim(low - 0.15 * (high - low), high + 0.6 * (high - low) + 1e-12)
    axes.set_xscale("log")
    tidy(axes, "", "learning rate", "loss")
    axes.legend(frameon=False)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)
