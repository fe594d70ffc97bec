"""Find the fastest settings for this machine with short runs, or the settings that learn best.

A setting changes only if the gain exceeds the spread of repeated runs in random order. The result
is a complete configuration, for `train --config tuned.yaml`; its first lines report the gains.
`--search` finds settings with a better validation metric; it is in `measure/search.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.compute.gpus import Card
from ..engine.errors import UserError
from ..engine.files import replacing, write_text
from ..measure.trials import Failed, Overrides, Trials, card_here

if TYPE_CHECKING:
    from ..engine.loading.store import Store
    from ..settings import Settings

OUTPUT = Path("tuned.yaml")
PLOT = Path("learning_rate.png")
KNOBS = ("batch_size", "workers", "chunk_size", "compile_mode")
MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
BATCH = "data.batch_size"
REPEATS = 3  # repeated runs with and without a change, to decide on it
PAYS = 1.03  # required gain of a doubled batch; after two smaller gains, the search ends
STEPS_AN_EPOCH = 8  # minimum number of steps of an epoch with a larger batch
# The learning rate range test: lowest and highest rate, number of steps.
LOWEST = 1e-7
HIGHEST = 1.0
RATES = 150


class Change(NamedTuple):
    """The result of one knob; `kept` means that the default stays."""

    gain: float
    spread: float
    kept: bool

    def __str__(self) -> str:
        text = f"{self.gain:.2f}× as fast, spread {self.spread:.1%}"
        if self.kept:
            text += ": not changed"
        return text


class OutOfTime(Exception):
    """No time is left for another run."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add(
        "knobs",
        nargs="*",
        metavar="KNOB",
        help=f"what to tune: {', '.join(KNOBS)} (default: all)",
    )
    add("--minutes", type=float, help="time limit (default: 10; for --search: none)")
    add("--steps", type=int, default=40, metavar="N", help="timed steps per run (default: 40)")
    add(
        "--learning-rate",
        action="store_true",
        help="only plot the loss over a rising learning rate",
    )
    settings = "search settings with a better validation metric, in complete trainings"
    space = f"{settings}: KEY=LOW..HIGH or KEY=VALUE,VALUE"
    add("--search", nargs="+", action="extend", metavar="KEY=VALUES", help=space)
    add("--trials", type=int, metavar="N", help="trials of --search (default: 20)")


def main(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Write tuned.yaml, or learning_rate.png."""
    settings = load()
    minutes = 10.0 if arguments.minutes is None else arguments.minutes
    check(arguments, minutes)
    if arguments.learning_rate:
        return find_learning_rate(settings)
    if arguments.search:
        from ..measure.search import search

        trials = 20 if arguments.trials is None else arguments.trials
        return search(" ".join(arguments.search), settings, trials, arguments.minutes)

    from ..assemble import open_store

    card = card_here()
    store = open_store(settings)
    trials = Trials(settings, store.folder, card.capability is not None)
    tuner = Tuner(settings, trials, arguments.steps, 60 * minutes)
    try:
        tune(tuner, arguments, store, card)
    except OutOfTime:
        tuner.say(f"{minutes:g} minutes are over: settings that were not repeated do not change")
    except Failed as error:
        where = "a short training of `tune`"
        raise UserError(str(error), where, "run `train` to see all of its output") from error
    finally:
        tuner.bar.close()

    lines = [f"# Tuned on {card.name}: {line}" for line in tuner.lines]
    tuned = settings.replaced(tuner.chosen, "tune")
    write_text(OUTPUT, "\n".join([*lines, tuned.to_yaml()]))
    if tuner.chosen:
        print(f"{OUTPUT}: train --config {OUTPUT}")
    else:
        print(f"{OUTPUT}: nothing was faster, so it is the same configuration")
    return 0


def check(arguments: argparse.Namespace, minutes: float) -> None:
    """Raise `UserError` for invalid flags."""
    for knob in arguments.knobs:
        if knob not in KNOBS:
            remedy = f"choose from {', '.join(KNOBS)}"
            raise UserError(f"unknown knob {knob!r}", "command line", remedy)
    if arguments.steps < 1:
        raise UserError(f"cannot time {arguments.steps} steps", "--steps", "use at least 1")
    if not 0 < minutes < math.inf:
        raise UserError(f"invalid limit of {minutes:g} minutes", "--minutes", "use more than 0")
    if arguments.trials is not None and not arguments.search:
        raise UserError("--trials has no effect without --search", "command line", "remove it")
    given = [bool(arguments.search), arguments.learning_rate, bool(arguments.knobs)]
    if given.count(True) > 1:
        what = "--search, --learning-rate and knobs cannot be combined"
        remedy = "run the commands one after the other"
        raise UserError(what, "command line", remedy)


def tune(tuner: Tuner, arguments: argparse.Namespace, store: Store, card: Card) -> None:
    """Tune one knob after the other."""
    from .. import dataset

    samples: Any = dataset.Samples(store, tuner.settings, "train")
    for knob in arguments.knobs or KNOBS:
        if knob == "batch_size":
            tuner.batch_size(len(samples))
        else:
            present = tuner.settings.replaced(tuner.chosen, "tune")
            tuner.knob(knob, list(options(knob, present, card)))
    tuner.confirm_all()


def options(knob: str, settings: Settings, card: Card) -> Iterator[Overrides]:
    """Yield the options of a knob; none if loader, device or settings do not have it."""
    from ..engine.compute.optimization import compiles

    if knob == "workers" and "data.num_workers" in settings.origins:
        for number in (0, 1, 2, 4, 8, 12, 16):
            if number <= (os.cpu_count() or 1):
                yield {"data.num_workers": number}
    if knob == "chunk_size" and "data.chunk_size_gb" in settings.origins:
        for size in ("auto", 0.25, 1.0, 4.0):
            yield {"data.chunk_size_gb": size}
    if knob == "compile_mode" and compiles(settings, card.capability)[0]:
        modes: tuple[str, ...] = MODES
        if settings.training.gradient_accumulation_steps > 1:
            modes = MODES[:2]  # CUDA graphs overwrite accumulated gradients
        for mode in modes:
            yield {"compile.mode": mode}


class Tuner:
    """Tunes one knob after the other, each on top of the settings that were chosen before.

    settings: the default. trials: measures overrides, like `Trials`. seconds: the time limit.
    """

    def __init__(self, settings: Settings, trials: Trials, steps: int, seconds: float):
        from tqdm import tqdm

        self.settings = settings
        self.trials = trials
        self.steps = steps
        self.begun = time.monotonic()
        self.seconds = seconds
        self.longest = 0.0  # seconds of the longest run
        self.chosen: Overrides = {}
        self.lines: list[str] = []
        self.changes = 0
        self.random = random.Random(settings.reproducibility.seed)
        layout = "{desc} {percentage:3.0f}% |{bar}| {postfix}"
        self.bar = tqdm(total=round(seconds), desc="time", bar_format=layout, dynamic_ncols=True)

    def say(self, line: str) -> None:
        """Print a line above the bar, and write it to tuned.yaml."""
        self.lines.append(line)
        self.bar.write(line)

    def rate(self, overrides: Overrides) -> float:
        """Return samples/s of one run with these settings, on top of the chosen ones.

        Raises `Failed` or `OutOfTime`.
        """
        start_time = time.monotonic()
        if start_time - self.begun + self.longest > self.seconds:
            raise OutOfTime
        self.bar.set_postfix_str(words(overrides) or "default")
        try:
            measured = self.trials(self.chosen | overrides, 10, self.steps)
        finally:
            self.longest = max(self.longest, time.monotonic() - start_time)
            self.bar.update(round(time.monotonic() - self.begun) - self.bar.n)
        return 1000 * measured["samples"] / median(measured["step_ms"])

    def now(self, overrides: Overrides) -> Overrides:
        """Return the present values of the same settings."""
        return {key: self.chosen.get(key, self.settings.value(key)) for key in overrides}

    def batch_size(self, samples: int) -> None:
        """Double the batch while it fits and is faster. samples: the number in an epoch."""
        default_size = self.settings.data.batch_size
        groups = self.settings.training.gradient_accumulation_steps
        best = default_size
        best_rate = self.rate({BATCH: default_size})
        largest = 0
        without_gain = 0
        size = 2 * default_size
        while size * groups <= samples / STEPS_AN_EPOCH and without_gain < 2:
            rate = self.rate_of_batch(size)
            if rate is None:
                break
            largest = size
            without_gain += 1
            if rate > PAYS * best_rate:
                best = size
                best_rate = rate
                without_gain = 0
            size *= 2
        if largest:
            self.say(f"{BATCH}: {largest} is the largest that was tried and fits")
        self.decide("batch_size", {BATCH: best})
        if BATCH in self.chosen:
            remedy = "another learning rate may be better; run `tune --learning-rate` to see"
            self.say(f"more samples per step: {remedy}")

    def rate_of_batch(self, size: int) -> float | None:
        """Return samples/s of a batch size; None if memory is too small for it."""
        try:
            return self.rate({BATCH: size})
        except Failed as error:
            if not error.memory:
                remedy = "run `train` with this size to see all of its output"
                raise UserError(str(error), f"{BATCH} {size}", remedy) from error
            self.say(f"{BATCH} {size} does not fit")
            return None

    def knob(self, name: str, choices: list[Overrides]) -> None:
        """Measure each option once, and decide between the best and the present one."""
        candidates: list[Overrides] = []
        if choices:
            present = self.now(choices[0])
            candidates = [present, *(choice for choice in choices if choice != present)]
        rates: list[tuple[float, Overrides]] = []
        for overrides in candidates:
            try:
                rates.append((self.rate(overrides), overrides))
            except Failed as error:
                self.say(f"{words(overrides)} fails: {error}")
        if rates:
            _, best = max(rates, key=lambda pair: pair[0])
            self.decide(name, best)
        else:
            self.say(f"{name}: no options with this loader, device and configuration")

    def decide(self, name: str, best: Overrides) -> None:
        """Choose `best` if its gain over the present values exceeds the spread of repeated runs."""
        before = self.now(best)
        if best == before:
            self.say(f"{name}: {words(before)} stays, since nothing was faster")
            return
        change = compare(*self.repeat(before, best))
        self.say(f"{name}: {words(before)} -> {words(best)}: {change}")
        if not change.kept:
            self.chosen |= best
            self.changes += 1

    def repeat(self, first: Overrides, second: Overrides) -> list[list[float]]:
        """Return samples/s of `REPEATS` new runs of each side, in random order."""
        sides = (first, second)
        rates: list[list[float]] = [[], []]
        for side in self.random.sample([0, 1] * REPEATS, k=2 * REPEATS):
            rates[side].append(self.rate(sides[side]))
        return rates

    def confirm_all(self) -> None:
        """Measure all changes together, if there are several."""
        if self.changes > 1:
            chosen = self.chosen
            self.chosen = {}
            try:
                self.say(f"all together: {compare(*self.repeat({}, chosen))}")
            finally:
                self.chosen = chosen


def compare(before: list[float], after: list[float]) -> Change:
    """Compare the ratio of the medians with the larger of the relative ranges."""
    gain = median(after) / median(before)
    spread = max((max(side) - min(side)) / median(side) for side in (before, after))
    return Change(gain, spread, kept=gain - 1 <= spread)


def words(overrides: Overrides) -> str:
    return ", ".join(f"{key} {value}" for key, value in overrides.items())


def find_learning_rate(settings: Settings) -> int:
    """Train a new model while the learning rate rises, and plot the loss (Smith 2015).

    It ends when the loss exceeds four times its minimum, or when a loss or gradient is not finite.
    See arXiv:1506.01186.
    """
    from tqdm import tqdm

    from ..engine.errors import NonFinite
    from ..measure.trial import trial
    from ..train import take_step

    rates: list[float] = []
    losses: list[float] = []
    means: list[float] = []
    with trial(settings) as run:
        for number in tqdm(range(RATES), unit="step"):
            rate = LOWEST * (HIGHEST / LOWEST) ** (number / (RATES - 1))
            run.end_step(take_step(run, rate))
            try:
                _, _, metrics = run.meter.read()
            except NonFinite:
                if not losses:  # no learning rate is the cause
                    raise
                break
            rates.append(rate)
            losses.append(metrics["loss"])
            means = smooth(losses)
            if number > 10 and means[-1] > 4 * min(means):
                break
    best = suggested(rates, means)
    draw(PLOT, rates, losses, best)
    if best is None:
        what = "the loss did not fall at any learning rate"
        raise UserError(what, str(PLOT), "check the data and the model")
    flag = f"--optimizer.learning_rate {best:.1e}"
    print(f"{PLOT}: a tenth of the rate with the lowest loss: {flag}")
    return 0


def smooth(losses: list[float], keep: float = 0.9) -> list[float]:
    """Return the exponential moving averages of the losses, with bias correction."""
    means = []
    mean = 0.0
    for number, loss in enumerate(losses, start=1):
        mean = keep * mean + (1 - keep) * loss
        means.append(mean / (1 - keep**number))
    return means


def suggested(rates: list[float], means: list[float]) -> float | None:
    """Return a tenth of the rate with the lowest mean; None if that is hardly below the first."""
    finite = [mean if math.isfinite(mean) else math.inf for mean in means]
    lowest = min(finite)
    if lowest < finite[0] - 0.02 * abs(finite[0]):
        return rates[finite.index(lowest)] / 10
    return None


def draw(path: Path, rates: list[float], losses: list[float], best: float | None) -> None:
    """Plot the losses, their mean, and the suggested rate as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    means = smooth(losses)
    axes.plot(rates, losses, color="C0", alpha=0.3, label="loss of a step")
    axes.plot(rates, means, color="C0", label="mean")
    if best is not None:
        axes.axvline(best, color="C3", linestyle="--", label=f"suggested: {best:.1e}")
    finite = [mean for mean in means if math.isfinite(mean)]
    axes.set_ylim(top=2 * max(finite[0], min(finite)) - min(finite) + 1e-12)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120)
