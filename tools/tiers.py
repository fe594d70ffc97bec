"""Which tests `make test` runs: all that have no mark, and of those with one of these some.

    full        none: `make test-all` alone
    first(n)    the first n cases
    cover(n)    so many cases that each combination of values of any n parameters occurs: 1 is
                every value, 2 every pair, 3 every triple; a set of answers is a parameter for
                each question; with names these count alone, and the others vary as they may

The others get the mark `full`; `make test-all` runs all of them.
"""

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
        first = cases[0].get_closest_marker("first")
        if first:
            kept = set(range(first.args[0]))
        else:
            strength, *names = cases[0].get_closest_marker("cover").args
            pairs = [values(case) for case in cases]
            combined = []
            for case in pairs:
                counted = [pair for pair in case if not names or pair[0] in names]
                combined.append(set(itertools.combinations(counted, strength)))
            kept = covering(combined, [set(case) for case in pairs] if names else None)
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.full)


def values(case: Any) -> list[tuple[str, str]]:
    """A case's parameters, by name."""
    pairs: list[tuple[str, str]] = []
    for name, value in case.callspec.params.items():
        answers = value if isinstance(value, dict) else {name: value}
        pairs += [(key, str(answer)) for key, answer in answers.items()]
    return pairs


def covering(cases: Sequence[set[Any]], more: Sequence[set[Any]] | None = None) -> set[int]:
    """Numbers of some cases that together have what all of them have; the same each time.

    more: further values of each case, which decide between cases that are alike.
    """
    missing = set().union(*cases)
    kept: set[int] = set()
    others = more or [set() for _ in cases]
    while missing:
        seen = set().union(*(others[number] for number in kept))
        gains = []
        for case, other in zip(cases, others, strict=True):
            gains.append((len(case & missing), len(other - seen)))
        best = gains.index(max(gains))
        kept.add(best)
        missing -= cases[best]
    return kept
