"""Which rows of a table are in which split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..engine.errors import UserError
from .rows import Table
from .splits import borders

Splits = dict[str, list[int]]


def take_group(table: Table, name: str) -> tuple[Table, np.ndarray]:
    """Take the first category, of this name, out of a table: return the group (N,) of each row.

    Raises `UserError` for a missing cell.
    """
    group = table.codes[:, 0]
    if not group.all():
        where = f"row {group.argmin() + 1}, column '{name}'"
        raise UserError("the group is missing", where, "fill it in, or remove the row")
    levels = dict(table.levels)
    del levels[name]
    return replace(table, levels=levels, codes=table.codes[:, 1:]), group - 1


def arrange(
    table: Table, group: np.ndarray | None, split: str, seed: int, keep_order: bool
) -> tuple[np.ndarray, Splits]:
    """Return the rows, split by split, and the borders of the splits among them.

    The rows of a group stay together. Groups, or else rows, are shuffled, and the classes are
    spread evenly over the splits. With `keep_order`, they stay in the order of the file.
    """
    splits = borders(split, len(table))
    units = np.arange(len(table) if group is None else group.max() + 1)
    if not keep_order:
        np.random.default_rng(abs(seed)).shuffle(units)
        if table.target in table.levels:
            units = spread(units, rarest_class(table.codes[:, -1], group))
    rows = units
    if group is not None:
        turns = np.empty_like(units)
        turns[units] = np.arange(len(units))
        rows = turns[group].argsort(kind="stable")
        splits = whole_groups(np.bincount(group)[units].cumsum(), splits)
    return rows[: splits["test"][1]], splits


def rarest_class(classes: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Return of each group its class with the fewest rows in the table. No group: of each row."""
    if group is None:
        return classes
    common_first = np.lexsort((-np.bincount(classes)[classes], group))  # group by group
    return classes[common_first[np.bincount(group).cumsum() - 1]]


def spread(units: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Reorder units (N,) such that those of each label have equal distances.

    Any part of the result has about the same fraction of each label. A single unit of a label is in
    the middle.
    """
    order = labels[units].argsort(kind="stable")
    label = labels[units[order]]
    counts = np.bincount(label)
    number = np.arange(len(units)) - (counts.cumsum() - counts)[label]  # within its label
    place = np.empty(len(units))
    place[order] = (number + 0.5) / counts[label]
    return units[place.argsort(kind="stable")]


def whole_groups(ends: np.ndarray, splits: Splits) -> Splits:
    """Return the borders, moved to the nearest end of a group; no split becomes empty.

    ends: the number of rows up to each group. Raises `UserError` if there are too few groups.
    """
    left = sum(first < last for first, last in splits.values())  # splits that need a group
    if len(ends) < left:
        what = f"{len(ends)} groups are too few for {left} splits"
        raise UserError(what, "--group", "name another column, or use --split with a test of 0")
    moved = {}
    start = 0
    taken = 0
    for name, (first, last) in splits.items():
        if first < last:
            left -= 1
            nearest = np.abs(ends - last).argmin() + 1
            taken = min(max(nearest, taken + 1), len(ends) - left)
        moved[name] = [start, int(ends[taken - 1])]
        start = moved[name][1]
    return moved
