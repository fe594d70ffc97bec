"""Decides from paired trainings whether an edit helps; you may look after every seed.

The test bets on wins. A win is a seed with which the edit is better. If the edit were no better at
the median seed, each seed would be a win with a chance of at most 1/2, whatever the distribution of
losses. Then a stake of 1 grows to 20 with a chance of at most 5 %, however often you look (Ville
1939). With up to 20 seeds, this chance is 3.39 %. No test of a mean is valid for losses without a
bound (Bahadur & Savage 1956).

Assumption: the seeds are independent. The samples of one validation split are not: all of them see
the same two sets of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import variance

ENOUGH = 20  # what a stake must become: 1 / 5 %
FEWEST = 5  # seeds with which a verdict is possible: all are wins


def wealth(wins: int, seeds: int) -> float:
    """Return what a stake of 1 has become.

    One half was bet on winning every time. The other half was spread evenly over all chances of a
    win from 1/2 to 1.
    """
    spread = sum(comb(seeds + 1, k) for k in range(wins + 1)) / ((seeds + 1) * comb(seeds, wins))
    always = 2.0**wins if wins == seeds else 0.0
    return (spread + always) / 2


def decide(wins: int, losses: int, seeds: int, most: int) -> str:
    """Return keep, discard or undecided; nothing if further seeds, up to `most`, can decide.

    A tie is neither a win nor a loss, so it counts against both verdicts.
    """
    if wealth(wins, seeds) >= ENOUGH:
        return "keep"
    if wealth(losses, seeds) >= ENOUGH:
        return "discard"
    reachable = wealth(max(wins, losses) + most - seeds, most)
    return "" if reachable >= ENOUGH else "undecided"


def verdict(gains: Sequence[float], worth: float, most: int) -> str:
    """Decide whether the median gain exceeds `worth`; see `decide`."""
    wins = sum(gain > worth for gain in gains)
    losses = sum(gain < worth for gain in gains)
    return decide(wins, losses, len(gains), most)


def interval(gains: Sequence[float]) -> tuple[float, float] | None:
    """Return the values that the median gain may have; each end is wrong in at most 5 % of cases.

    They are those that the test does not reject. None: there are too few seeds.
    """
    ordered = sorted(gains)
    seeds = len(ordered)
    num_rejected = sum(wealth(seeds - place, seeds) >= ENOUGH for place in range(seeds))
    if not num_rejected:
        return None
    return ordered[num_rejected - 1], ordered[-num_rejected]


def variance_left(parent: Sequence[float], edit: Sequence[float]) -> float:
    """Return the variance of the paired differences, as a fraction of that of unpaired ones."""
    unpaired = variance(parent) + variance(edit)
    differences = [after - before for before, after in zip(parent, edit, strict=True)]
    return variance(differences) / unpaired if unpaired else 0.0
