"""The rows of a table: what a model must know of them, and their arrays in the store.

The store holds `features` (N, F) in the columns' own units, NaN where a cell was empty;
`categories` (N, C) int32, where 0 is missing or unknown; and `target` (N,), float32 or the int64
number of a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.errors import UserError
from ..engine.store import StoreWriter
from .scaling import BLOCK_ROWS, PIECE_ROWS, Scaler

Facts = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows in the order of their file, in memory or mapped.

    A code is 0 where a cell is missing, else the place of its value plus 1.
    """

    kinds: dict[str, Any]  # of all columns, see `columns.py`
    features: np.ndarray  # (N, F) float32
    categories: np.ndarray  # (N, C) int32
    targets: np.ndarray  # (N, 1) float32, or int32 codes of classes
    levels: dict[str, list[str]]  # values of each category
    target: str = ""  # none in rows to predict
    classes: list[str] | None = None
    rows_read: int = 0  # also those without a target, which are left out

    def __len__(self) -> int:
        return len(self.features)


def feature_names(kinds: dict[str, Any], target: str) -> list[str]:
    """The names of the features: columns of numbers, and parts of times."""
    names = []
    for name, kind in kinds.items():
        if isinstance(kind, list):
            names += [f"{name} {part}" for part in kind]
        elif kind == "number" and name != target:
            names.append(name)
    return names


def _slices(num_rows: int, size: int) -> Iterator[slice]:
    for start in range(0, num_rows, size):
        yield slice(start, start + size)


# --- facts


class _Counts:
    """Scales and counts of the training rows."""

    def __init__(self, table: Table):
        self.table = table
        self.features = Scaler(table.features.shape[1])
        self.target = Scaler(1)  # of a regression
        self.classes = np.zeros(len(table.classes or ()) + 1, np.int64)
        self.levels = [np.zeros(len(values) + 1, np.int64) for values in table.levels.values()]

    def add(self, numbers: np.ndarray) -> None:
        """numbers: of rows that come next."""
        targets = self.table.targets.take(numbers, 0)
        self.features.add(self.table.features.take(numbers, 0))
        for counts, codes in zip(
            self.levels, self.table.categories.take(numbers, 0).T, strict=True
        ):
            counts += np.bincount(codes, minlength=len(counts))
        if self.table.classes:
            self.classes += np.bincount(targets[:, 0], minlength=len(self.classes))
        else:
            self.target.add(targets)


def describe(table: Table, train: np.ndarray) -> tuple[Facts, list[tuple[str, ...]]]:
    """The facts that a model is built from, and a line for each column.

    They are of the rows `train` (N,) bool alone. Categories are numbered in the order of their
    values; those that no training row has are left out. Raises `UserError` for a column without any
    value and for a class that no training row has.
    """
    counts = _Counts(table)
    for block in _slices(len(table), BLOCK_ROWS):
        counts.add(block.start + np.flatnonzero(train[block]))

    names = feature_names(table.kinds, table.target)
    for name, count in zip(names, counts.features.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
    categories = []
    for (name, values), of_values in zip(table.levels.items(), counts.levels, strict=True):
        categories.append({"name": name, "values": _known(values, of_values)})
    facts: Facts = {
        "task": "classification" if table.classes else "regression",
        "target": _describe_target(counts),
        "features": _scales(names, counts.features),
        "categories": categories,
        "columns": {name: kind for name, kind in table.kinds.items() if name != table.target},
    }
    return facts, _lines(counts, names)


def _describe_target(counts: _Counts) -> Facts:
    table = counts.table
    if not table.classes:
        return _scales([table.target], counts.target)[0]
    classes = _known(table.classes, counts.classes)
    for name in table.classes:
        if name not in classes:
            what = f"class '{name}' is in no training row"
            remedy = "leave its rows out, or try another --seed"
            raise UserError(what, f"column '{table.target}'", remedy)
    codes = [table.classes.index(value) + 1 for value in classes]
    return {"name": table.target, "classes": classes, "counts": counts.classes[codes].tolist()}


def _lines(counts: _Counts, names: list[str]) -> list[tuple[str, ...]]:
    """(name, type, lowest, highest, missing) of each column."""
    table = counts.table
    lines = counts.features.columns(names)
    if counts.target.rows:
        lines += counts.target.columns([table.target])
    categories = [*zip(table.levels, counts.levels, strict=True), (table.target, counts.classes)]
    for name, of_values in categories:
        if len(of_values) > 1:
            missing = f"{of_values[0] / max(of_values.sum(), 1):.1%}"
            num_values = (of_values[1:] > 0).sum()
            lines.append((name, "category", "", f"{num_values} values", missing))
    return lines


def _scales(names: list[str], scaler: Scaler) -> list[Facts]:
    """Name, mean, standard deviation and number of missing values of each column."""
    mean, std = scaler.scale()
    missing = (scaler.rows - scaler.count).astype(int)
    keys = ("name", "mean", "std", "missing")
    columns = zip(names, mean.tolist(), std.tolist(), missing.tolist(), strict=True)
    return [dict(zip(keys, column, strict=True)) for column in columns]


def _known(values: list[str], counts: np.ndarray) -> list[str]:
    """The values that training rows have, in their order."""
    known = [value for value, count in zip(values, counts[1:], strict=True) if count]
    return sorted(known, key=_by_number)


def _by_number(value: str) -> tuple[int, str, str]:
    """Sorts 2 before 10, without int(), which refuses more than 4,300 digits."""
    if not value.isdecimal():
        return (-1, "", value)
    digits = value.lstrip("0")
    return (len(digits), digits, value)


# --- arrays


def write(writer: StoreWriter, table: Table, facts: Facts, order: np.ndarray) -> None:
    """Write rows of a table, by their numbers in `order`, in the codes of `facts`."""
    mean = np.float32([column["mean"] for column in facts["features"]])
    had_gaps = np.array([column["missing"] > 0 for column in facts["features"]], bool)
    codes = []
    for column in facts["categories"]:
        codes.append(_renumber(table.levels[column["name"]], column["values"]))
    class_codes = _renumber(table.classes or [], facts["target"].get("classes", []))

    for piece in _slices(len(order), PIECE_ROWS):
        numbers = order[piece]
        if facts["features"]:
            values = table.features.take(numbers, 0)
            # A gap in a column that had none in training becomes the mean.
            values = np.where(np.isnan(values) & ~had_gaps, mean, values)
            writer.append("features", values)
        if codes:
            columns = table.categories.take(numbers, 0).T
            renumbered = [new[old] for new, old in zip(codes, columns, strict=True)]
            writer.append("categories", np.stack(renumbered, 1))
        if table.target:
            targets = table.targets.take(numbers)
            if table.classes:
                targets = class_codes[targets].astype(np.int64) - 1
            writer.append("target", targets)
    writer.facts = facts


def _renumber(values: list[str], known: list[str]) -> np.ndarray:
    """Codes of a table → those of the facts, 0 for what training has not."""
    code_of = {value: code for code, value in enumerate(known, 1)}
    codes = [code_of.get(value, 0) for value in values]
    return np.array([0, *codes], np.int32)
