"""The rows of a table: their metadata, and their arrays in the prepared dataset.

* `features` (N, F): float32 in the columns' own units, with NaN for empty cells
* `categories` (N, C): int32, with 0 for missing and unknown values
* `target` (N,): float32, or the int64 number of a class
* `row` (N,): int64, the row of the file, from 0; of several files, the row of all of them together
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.data.store import Store, StoreWriter
from ..engine.errors import UserError
from .scaling import BLOCK_ROWS, Scaler
from .splits import Lines

# Rows are gathered and written in pieces of this size, which fit into the processor's cache.
PIECE_ROWS = 16_384
Facts = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows in the order of their file, in memory or memory-mapped, including the target.

    A code is 0 for a missing cell, otherwise the index of its value plus 1.
    """

    kinds: dict[str, Any]  # what each column holds, see `columns.py`
    levels: dict[str, list[str]]  # values of each category
    target: str  # empty for rows to predict
    numbers: np.ndarray  # (N, columns) float32
    codes: np.ndarray  # (N, categories) int32
    file_rows: np.ndarray | None = None  # (N,) int64, the row of the file, from 0

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def names(self) -> list[str]:
        """The names of the numeric columns, including time features."""
        names = []
        for name, kind in self.kinds.items():
            if isinstance(kind, list):
                names += [f"{name} {feature}" for feature in kind]
            elif kind == "number":
                names.append(name)
        return names


def describe(table: Table, train: np.ndarray) -> tuple[Facts, Lines]:
    """Return the metadata that a model is built from, and a summary line for each column.

    Only the rows in `train` (N,) bool count. Raises `UserError` for a column without any value and
    for a class that no training row has.
    """
    scaler, counts = _count(table, train)
    features = _scales(table.names, scaler)
    lines = scaler.columns(table.names)
    categories: dict[str, Facts] = {}
    for name, count in counts.items():
        values = _known(table.levels[name], count)
        categories[name] = {"name": name, "values": values}
        missing = f"{count[0] / count.sum():.1%}"
        lines.append((name, "category", "", f"{len(values)} values", missing))

    kinds = dict(table.kinds)
    del kinds[table.target]
    facts: Facts = {"task": "regression", "columns": kinds}
    if table.target in features:
        facts["target"] = features.pop(table.target)
    else:
        classes = categories.pop(table.target)["values"]
        facts["task"] = "classification"
        facts["target"] = _describe_classes(table, classes, counts[table.target])
    facts["features"] = list(features.values())
    facts["categories"] = list(categories.values())
    return facts, lines


def _count(table: Table, train: np.ndarray) -> tuple[Scaler, dict[str, np.ndarray]]:
    """Return the scales of numbers and the counts of categories, over the rows in `train`."""
    scaler = Scaler(len(table.names))
    counts = {name: np.zeros(len(values) + 1, int) for name, values in table.levels.items()}
    for start in range(0, len(table), BLOCK_ROWS):
        rows = start + np.flatnonzero(train[start : start + BLOCK_ROWS])
        scaler.add(table.numbers.take(rows, 0))
        for count, codes in zip(counts.values(), table.codes.take(rows, 0).T, strict=True):
            count += np.bincount(codes, minlength=len(count))
    return scaler, counts


def _scales(names: list[str], scaler: Scaler) -> dict[str, Facts]:
    """Return name, mean, standard deviation and number of missing values of each column."""
    facts = {}
    for name, mean, std, count in zip(names, *scaler.scale(), scaler.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
        missing = scaler.rows - int(count)
        facts[name] = {"name": name, "mean": float(mean), "std": float(std), "missing": missing}
    return facts


def _describe_classes(table: Table, classes: list[str], counts: np.ndarray) -> Facts:
    where = f"column '{table.target}'"
    values = table.levels[table.target]
    for name in values:
        if name not in classes:
            what = f"class '{name}' is in no training row"
            raise UserError(what, where, "remove its rows, or try another --seed")
    if len(classes) == 1:
        raise UserError("all training rows have one class", where, "check --target and --split")
    codes = [values.index(name) + 1 for name in classes]
    return {"name": table.target, "classes": classes, "counts": counts[codes].tolist()}


def _known(values: list[str], counts: np.ndarray) -> list[str]:
    """Return the values that occur in training rows, sorted."""
    known = [value for value, count in zip(values, counts[1:], strict=True) if count]
    # Sort numbers by size: 2 comes before 10.
    return sorted(known, key=lambda value: (len(value) * value.isdecimal(), value))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value (N,) from 1; equal values have the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    return (last_ranks - (counts - 1) / 2)[places]


def write(writer: StoreWriter, table: Table, facts: Facts, order: np.ndarray) -> None:
    """Write the rows with the numbers `order`, with categories coded as in `facts`."""
    # If a column had no gap in training, a gap becomes the mean.
    gaps = [np.nan if column["missing"] else column["mean"] for column in facts["features"]]
    fill = np.array(gaps, np.float32)
    new_codes = _new_codes(table, facts)

    for start in range(0, len(order), PIECE_ROWS):
        rows = order[start : start + PIECE_ROWS]
        features = dict(zip(table.names, table.numbers.take(rows, 0).T, strict=True))
        categories = {}
        for name, codes in zip(table.levels, table.codes.take(rows, 0).T, strict=True):
            categories[name] = new_codes[name][codes]
        if table.target in features:
            writer.append("target", features.pop(table.target))
        elif table.target:
            writer.append("target", categories.pop(table.target).astype(np.int64) - 1)
        if features:
            values = np.stack(list(features.values()), 1)
            writer.append("features", np.where(np.isnan(values), fill, values))
        if categories:
            writer.append("categories", np.stack(list(categories.values()), 1))
        if table.file_rows is not None:
            writer.append("row", table.file_rows[rows])
    writer.facts = facts


def _new_codes(table: Table, facts: Facts) -> dict[str, np.ndarray]:
    """Map each code of a table to its code in `facts`; 0 for values that training does not have."""
    known = {column["name"]: column["values"] for column in facts["categories"]}
    known[table.target] = facts["target"].get("classes", [])
    new_codes = {}
    for name, values in table.levels.items():
        code_of = {value: code for code, value in enumerate(known[name], 1)}
        codes = [code_of.get(value, 0) for value in values]
        new_codes[name] = np.array([0, *codes], np.int32)
    return new_codes


def file_rows(store: Store, split: str, index: np.ndarray) -> dict[str, np.ndarray]:
    """Return `row` (N,) of the samples `index`, from 1 in its file; and `file` if it is a folder.

    Synthetic rows are in no file. Other data may have no `row`.
    """
    if "row" not in store.arrays:
        return {"row of the split": index + 1}
    first, last = store.splits[split]
    rows = store.arrays["row"].rows()[first:last][index]
    starts = np.array([start for start, _ in store.source["files"]])
    names = np.array([name for _, name in store.source["files"]])
    place = starts.searchsorted(rows, "right") - 1
    of_file = {"row": rows - starts[place] + 1}
    return {"file": names[place], **of_file} if len(names) > 1 else of_file
