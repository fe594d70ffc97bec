"""The course of an experiment: plan, test, `check`, the second test on fresh seeds, verdict."""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from statistics import median

from ..engine.errors import UserError, note
from ..engine.files import digest
from ..engine.monitoring.report import duration, show
from .ledger import FOLDER, final_uses
from .paired import FEWEST, interval, variance_left, verdict
from .sides import Failed, Result, Side, Trainings

Pair = tuple[Result, Result]
"""The results of the parent and of the edit with one seed."""

TIMED_STEPS = 30
TIMINGS = 6  # of each side: all six ratios are on one side of 1 by luck in 3 % of cases
CHECK_SECONDS = 3600
REASONS = {
    "keep": "",
    "discard": "no gain of {worth:g} %",
    "undecided": "{seeds} seeds cannot decide it",
}
SHARED = (("training", "max_steps"), ("training", "epochs"), ("reproducibility", "seed"))
DETAILS = ("first_loss", "parameters", "step_ms", "memory_mb")


@dataclass
class Experiment:
    """An edit, its parent and their trainings.

    facts: what the ledger says of the edit. A training of the edit may take ten times as long as
    that of its parent, and a minute.
    """

    arguments: argparse.Namespace
    parent: Side
    edit: Side
    facts: Result
    scale = 1.0  # of the lengths in the schedule

    def __post_init__(self) -> None:
        self.trainings = Trainings(FOLDER / "trainings")
        self.start_time = time.monotonic()
        self.split = "test" if self.arguments.final else "validation"
        self.steps = [self.arguments.steps] * 2

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.start_time) / 60

    def run(self) -> Result:
        """Return the row of the ledger. Raises `UserError` if the parent fails."""
        try:
            self.identify()
            if self.edit.identity == self.parent.identity:
                return self.row("discard", "the same program and settings", [])
            self.plan()
            return self.decide()
        except Failed as error:
            if error.name == "parent":
                remedy = "correct and commit it, or name another commit"
                if "unknown setting" in str(error):
                    remedy = "give it to the edit alone, with --set"
                raise UserError(str(error), self.facts["parent"], remedy) from error
            return self.row("discard", str(error), [])

    # --- before the first training

    def identify(self) -> None:
        """Wait for the sides. Raises `UserError` if they have other data."""
        self.parent.ready()
        facts = self.parent.facts
        # The parent names the metric and its direction, which is also that of an average (ema).
        self.metric = self.arguments.metric or facts["metric"]
        name = self.metric.removesuffix("_averaged")
        self.sign = 1 if name in facts["higher_is_better"] else -1
        self.edit.ready(600 * self.minutes + 60)
        if self.edit.facts["data"] != facts["data"]:
            what = "edit and parent have other data, so their losses cannot be compared"
            raise UserError(what, self.facts["edit"], "use the same prepared data for both")
        own = self.edit.facts["settings"]
        for section, name in SHARED:
            if own[section][name] != facts["settings"][section][name]:
                note(f"{section}.{name}: both sides have equal steps and seeds; see --steps")

    def plan(self) -> None:
        """Find the length of the trainings, and print how long they take.

        Raises `UserError` if a verdict is not possible in time.
        """
        arguments = self.arguments
        seed = self.seed(0)
        given = self.parent.facts["settings"]["training"]["max_steps"]
        timed = self.trainings.result(
            self.parent, self.request(seed, given, stop_after=TIMED_STEPS)
        )
        length = timed["steps"]
        steps = arguments.steps or length
        self.scale = steps / length
        self.steps = [steps, steps]
        step = timed["wall_ms"] / 1000
        other = max(timed["seconds"] - step * min(TIMED_STEPS, length), 0)
        is_known = self.trainings.path(self.parent, self.request(seed, steps)).exists()
        pair = (other + step * steps) / 60 * (1 if is_known else 2)

        least = FEWEST * pair
        times = f"about {duration(60 * least)} to {duration(60 * arguments.seeds * pair)}"
        say(f"{FEWEST} to {arguments.seeds} seeds of {steps:,} steps, {times}; twice if promising")
        if least > arguments.minutes:
            what = f"{FEWEST} pairs of trainings take about {least:.1f} minutes"
            remedy = f"use --minutes {math.ceil(least)}"
            fitting = int((60 * arguments.minutes / FEWEST / 2 - other) / step)
            if fitting > 0:
                remedy += f", or --steps {fitting}"
            raise UserError(what, f"--minutes {arguments.minutes:g}", remedy)
        if arguments.equal == "time":
            self.steps[1] = self.equal_time(steps)

    def equal_time(self, steps: int) -> int:
        """Return the steps of the edit that take as long as `steps` of its parent.

        The sides are timed alternately. If the ratios are not all on one side of 1, it is `steps`.
        """
        ratios = []
        for number in range(TIMINGS + 1):
            request = self.request(number, steps, stop_after=2 * TIMED_STEPS)
            before = self.parent.ask("training", **request)["step_ms"]
            after = self.edit.ask("training", CHECK_SECONDS, **request)["step_ms"]
            ratios.append(after / before)
        ratios = ratios[1:]  # the first one fills caches
        ratio = median(ratios)
        text = f"  a step of the edit takes {ratio:.3f}× as long"
        say(f"{text} ({min(ratios):.3f} to {max(ratios):.3f})")
        if min(ratios) <= 1 <= max(ratios):
            return steps
        return max(1, round(steps / ratio))

    # --- trainings

    def seed(self, number: int, *source: str) -> int:
        """Return a seed that follows from `source`, by default the parent.

        So another parent has other seeds: a chain of edits does not learn its seeds.
        """
        return int(digest([source or self.parent.identity, number])[:8], 16)

    def request(self, seed: int, steps: int, **more: int) -> Result:
        """Return the request of a training."""
        fixed = {"reproducibility.seed": seed, "training.max_steps": steps}
        return {"fixed": fixed, "scale": self.scale, "split": self.split, **more}

    def pair(self, seed: int) -> Pair:
        """Train both sides with a seed. Raises `UserError` if they have other samples."""
        requests = [self.request(seed, steps) for steps in self.steps]
        before = self.trainings.result(self.parent, requests[0])
        after = self.trainings.result(self.edit, requests[1], 10 * before["seconds"] + 60)
        if before["samples"] != after["samples"]:
            what = f"{after['samples']:,} samples in the edit, {before['samples']:,} in its parent"
            remedy = "keep what a sample is: these losses cannot be compared"
            raise UserError(what, self.facts["edit"], remedy)
        return before, after

    def gain(self, pair: Pair) -> float:
        """Return by how many percent the edit is better. Raises `Failed` if it is not finite."""
        before = self.parent.metric(pair[0], self.metric)
        after = self.edit.metric(pair[1], self.metric)
        return 100 * self.sign * (after - before) / (abs(before) or 1) + 0.0  # not -0.0

    def test(self, *source: str) -> tuple[str, str, list[Pair]]:
        """Train pairs until there is a verdict or no time; return it, its reason and the pairs.

        source: of the seeds, see `seed`.
        """
        arguments = self.arguments
        start = self.minutes
        pairs: list[Pair] = []
        while True:
            pair = self.pair(self.seed(len(pairs), *source))
            pairs.append(pair)
            gains = [self.gain(pair) for pair in pairs]
            values = [f"{result['metrics'][self.metric]:.6g}" for result in pair]
            say(f"  seed {len(pairs)}: {' -> '.join(values)} ({gains[-1]:+.3g} %)")
            if have_equal_bits(pairs):
                return "discard", "equal bits with 2 seeds", pairs
            decided = verdict(gains, arguments.worth, arguments.seeds)
            if decided:
                return decided, REASONS[decided].format(**vars(arguments)), pairs
            minutes_of_pair = (self.minutes - start) / len(pairs)
            if self.minutes + minutes_of_pair > arguments.minutes:
                why = f"{arguments.minutes:g} minutes are over; with more, it continues"
                return "undecided", why, pairs

    # --- the verdict

    def decide(self) -> Result:
        """Test the edit, then check it, then test it again with fresh seeds."""
        identities = (self.parent.identity, self.edit.identity)
        if self.arguments.final:
            used = final_uses()
            if used:
                note(f"the test split was used {used} times before: its results are too good")
            return self.row(*self.test(*identities, "final"))
        decided, why, pairs = self.test()
        if decided != "keep":
            return self.row(decided, why, pairs)
        say("promising; now `check`")
        judge = self.edit.judge or self.edit
        failed = judge.ask("check", CHECK_SECONDS)["failed"]
        if failed:
            return self.row("discard", f"promising, but a check fails: {failed[0]}", pairs)
        if self.arguments.no_confirm:
            return self.row("keep", "unconfirmed", pairs)
        say("passed; now fresh seeds")
        decided, why, pairs = self.test(*identities)
        if decided != "keep":
            why = f"promising, but not with fresh seeds: {why}"
        return self.row(decided, why, pairs)

    def row(self, decided: str, why: str, pairs: list[Pair]) -> Result:
        """Return the row of the ledger."""
        gains = [self.gain(pair) for pair in pairs]
        arguments = self.arguments
        row = {"metric": self.metric, "split": self.split, "steps": self.steps}
        row |= {"worth": arguments.worth, "no_confirm": arguments.no_confirm}
        return {
            **self.facts,
            **row,
            "key": digest([self.parent.identity, self.edit.identity, row])[:16],
            "verdict": decided,
            "why": why,
            "seeds": len(pairs),
            "effect": median(gains) if gains else None,
            "interval": interval(gains),
            "trainings": self.trainings.count,
            "minutes": round(self.minutes, 1),
            "time": time.time(),
            "details": details(pairs, self.metric),
        }


def say(text: str) -> None:
    """Print what happens; the verdict alone is on stdout."""
    print(text, file=sys.stderr, flush=True)


def have_equal_bits(pairs: list[Pair]) -> bool:
    """Whether two pairs have equal metrics; those that only the edit has do not count."""
    # As a text, nan is equal to nan.
    return len(pairs) == 2 and all(
        str(after["metrics"] | before["metrics"]) == str(after["metrics"])
        for before, after in pairs
    )


def details(pairs: list[Pair], metric: str) -> list[str]:
    """Return lines about what the sides share, and about parameters, time and memory."""
    if not pairs:
        return []
    before, after = pairs[0]
    shared = "same initial weights and random numbers"
    if before["random"] != after["random"]:
        shared = "same initial weights, but other random numbers"
    if before["initial"] != after["initial"]:
        shared = "other initial weights"
    if len(pairs) > 2:
        values = [[pair[side]["metrics"][metric] for pair in pairs] for side in (0, 1)]
        shared += f": {variance_left(*values):.2g} of the variance of unpaired trainings"
    lines = [shared]
    if before["initial"] == after["initial"] and before["first_loss"] != after["first_loss"]:
        lines.append("another loss at step 1: if the loss function changed, name another --metric")
    for name in DETAILS:
        numbers = [show(median(pair[side][name] for pair in pairs), 3) for side in (0, 1)]
        lines.append(f"{name} {' -> '.join(numbers)}")
    return lines
