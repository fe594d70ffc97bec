"""Which rows of a table are in which split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..engine.errors import UserError
from .dates import to_times
from .rows import KEYS, Parts, Table
from .splits import SPLITS, split_sizes


class Key(NamedTuple):
    """A column that is no feature."""

    cells: list[str]  # each value once
    codes: np.ndarray  # (N,) the cell of each row


def check_flags(flags: dict[str, Any]) -> None:
    """Raise `UserError` for flags of `prepare` that exclude each other."""
    time = flags["time_column"]
    folds = flags["folds"]
    for is_wrong, what in (
        ((flags["split_by"] == "time") != bool(time), "--split-by time needs --time-column"),
        (time and flags["group"], "a split by time may cut groups"),
        (time and folds, "folds by time would train on the future"),
        (folds and flags["validation"], "the held-out fold is the validation split"),
        (folds and folds < 2, "one fold leaves no rows to train on"),
    ):
        if is_wrong:
            raise UserError(what, "command line", "add or remove a flag; see `prepare --help`")


def take_keys(table: Table, flags: dict[str, Any]) -> tuple[Table, dict[str, Key]]:
    """Take the first categories, those of the flags `KEYS`, out of a table.

    Raises `UserError` for a missing cell.
    """
    keys: dict[str, Key] = {}
    levels = dict(table.levels)
    for flag in KEYS:
        name = flags.get(flag)
        if not name:
            continue
        codes = table.codes[:, len(keys)]
        if not codes.all():
            where = f"row {table.row[codes.argmin()] + 1}, column '{name}'"
            what = f"the {flag.partition('_')[0]} is missing"
            raise UserError(what, where, "fill it in, or remove the row")
        keys[flag] = Key(levels.pop(name), codes - 1)
    ids = {}
    if "id" in keys:
        ids[flags["id"]] = np.char.encode(keys["id"].cells, "utf-8")[keys["id"].codes]
    return replace(table, levels=levels, codes=table.codes[:, len(keys) :], ids=ids), keys


def check_ids(key: Key, name: str) -> None:
    """Raise `UserError` if an id has several rows."""
    counts = np.bincount(key.codes)
    if counts.max() > 1:
        code = counts.argmax()
        first, second, *_ = np.flatnonzero(key.codes == code) + 1
        what = f"the id '{key.cells[code]}' repeats"
        where = f"rows {first:,} and {second:,}, column '{name}'"
        raise UserError(what, where, "remove a row, or name the column with --group instead")


def arrange(table: Table, keys: dict[str, Key], flags: dict[str, Any]) -> Parts:
    """Return the rows of each split, or of each fold and of the test split.

    The rows of a group stay together. Groups, or else rows, are shuffled, and the classes are
    spread evenly over the splits. With `keep_order`, they stay in the order of the file, and with a
    time in its order. A split that has a file of its own is that file.
    """
    # The number of the row is 0 where a file begins.
    rows, *in_files = np.split(np.arange(len(table)), np.flatnonzero(table.row == 0)[1:])
    values = np.arange(len(table))  # equal ones stay together
    if "group" in keys:
        values = keys["group"].codes
    if "time_column" in keys:
        key = keys["time_column"]
        values = to_times(key.cells, flags["time_format"])[key.codes]
    group = np.unique(values[rows], return_inverse=True)[1]
    units = np.arange(group.max() + 1)
    if not flags["keep_order"] and "time_column" not in keys:
        np.random.default_rng(abs(flags["seed"])).shuffle(units)
        if table.target in table.levels:
            units = spread(units, rarest_class(table.codes[rows, -1], group))

    sizes = planned_sizes(flags, len(rows))
    cuts = whole_groups(np.bincount(group)[units].cumsum(), np.cumsum([*sizes.values()]))
    in_order = units.argsort()[group].argsort(kind="stable")
    parts = dict(zip(sizes, np.split(in_order, cuts), strict=False))
    named = [name for name in SPLITS if flags.get(name)]
    return parts | dict(zip(named, in_files, strict=True))


def planned_sizes(flags: dict[str, Any], count: int) -> dict[str, int]:
    """Return the number of rows of each split, or of each fold and of the test split.

    What belongs to a split with a file of its own is for training.
    """
    sizes = dict(zip(SPLITS, split_sizes(flags["split"], count), strict=True))
    for name in SPLITS:
        if flags.get(name):
            sizes["train"] += sizes[name]
            sizes[name] = 0
    if not flags["folds"]:
        return sizes
    in_folds = np.array_split(np.arange(sizes["train"] + sizes["validation"]), flags["folds"])
    folds = {f"fold {number}": len(rows) for number, rows in enumerate(in_folds, 1)}
    return {**folds, "test": sizes["test"]}


def rarest_class(classes: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return of each group its class with the fewest rows in the table."""
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


def whole_groups(ends: np.ndarray, cuts: np.ndarray) -> list[int]:
    """Return where splits end, moved to the nearest end of a group; no split becomes empty.

    ends: the number of rows up to each group. Raises `UserError` if there are too few groups.
    """
    sizes = np.diff(cuts, prepend=0)
    left = np.count_nonzero(sizes)  # splits that need a group
    if len(ends) < left:
        what = f"{len(ends)} groups are too few for {left} splits"
        remedy = "name another column, or use --split with a test of 0, or fewer --folds"
        raise UserError(what, "--group", remedy)
    moved = []
    taken = 0
    for size, cut in zip(sizes, cuts, strict=True):
        if size:
            left -= 1
            nearest = np.abs(ends - cut).argmin() + 1
            taken = min(max(nearest, taken + 1), len(ends) - left)
        moved.append(int(ends[taken - 1]))
    return moved


def check_parts(table: Table, keys: dict[str, Key], parts: Parts, num_folds: int) -> None:
    """Print which classes a split lacks.

    Raises `UserError` for a group in two splits, of which one is a file of its own, and for a class
    with fewer rows than folds.
    """
    if "group" in keys:
        groups = [np.unique(keys["group"].codes[rows]) for rows in parts.values()]
        values, counts = np.unique(np.concatenate(groups), return_counts=True)
        if counts.max() > 1:
            what = f"the group '{keys['group'].cells[values[counts.argmax()]]}' is in two splits"
            raise UserError(what, "--group", "remove its rows from a file, or do without --group")
    if table.target not in table.levels:
        return
    classes = np.array(table.levels[table.target])
    by_part = []
    for name, rows in parts.items():
        by_part.append(np.bincount(table.codes[rows, -1], minlength=len(classes) + 1)[1:])
        absent = ", ".join(classes[by_part[-1] == 0])
        if len(rows) and absent:
            print(f"note: no row of {name} has the class {absent}")
    in_folds = np.sum(by_part[:num_folds], 0)
    if num_folds and in_folds.min() < num_folds:
        what = f"the class '{classes[in_folds.argmin()]}' has {in_folds.min()} rows"
        raise UserError(what, f"--folds {num_folds}", "use fewer folds, or remove its rows")
