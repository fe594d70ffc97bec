"""Which tests `make test` runs: all that have no mark, and of those with one of these some.

    full        none: `make test-all` alone
    first(n)    the first n cases
    cover(n)    so many cases that each combination of values of any n parameters occurs: 1 is every value,
                2 every pair, 3 every triple; a set of answers is a parameter for each question; with names
                these count alone

The others get the mark `full`; `make test-all` runs all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

MARKS = ("first", "cover")


def sort_out(items: Iterable[pytest.Item]) -> None:
    """Marks as `full` what `make test` leaves out."""
    marked = [item for item in items if any(item.get_closest_marker(mark) for mark in MARKS)]
    groups: dict[str, list[Any]] = {}
    for item in marked:
        groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        if first := cases[0].get_closest_marker("first"):
            kept = set(range(first.args[0]))
        else:
            kept = covering([combinations(case) for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.full)


def combinations(case: Any) -> set[Any]:
    """What a case has of any n of its parameters' values."""
    strength, *names = case.get_closest_marker("cover").args
    found: list[tuple[str, str]] = []
    for name, value in case.callspec.params.items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        found += [(key, str(part)) for key, part in parts if not names or key in names]
    return set(itertools.combinations(found, strength))


def covering(cases: Sequence[set[Any]]) -> set[int]:
    """Numbers of some cases that have together what all of them have; the same each time."""
    missing, kept = set().union(*cases), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(cases[number] & missing))
        kept.add(best)
        missing -= cases[best]
    return kept
