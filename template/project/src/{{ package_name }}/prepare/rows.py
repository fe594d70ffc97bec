"""The rows of a table: their metadata, and their arrays in the prepared dataset.

* `features` (N, F): float32 in the columns' own units, with NaN for empty cells
* `categories` (N, C): int32, with 0 for missing and unknown values
* `target` (N,): float32, or the int64 number of a class; of several targets (N, G)
* `row` (N,): int64, the row of the file, from 0; of several files, the row of all of them together
* `id` (N,): the cell of the column `--id`, in UTF-8, if there is one

If float32 has too few digits for a column, such as for Julian dates, numbers are float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import Store, StoreWriter
from .scaling import BLOCK_ROWS, Scaler

# Rows are gathered and written in pieces of this size, which fit into the processor's cache.
PIECE_ROWS = 16_384
Facts = dict[str, Any]
Parts = dict[str, np.ndarray]
"""The rows of each split, by its name."""

MOST_SHOWN = 50  # columns in the summary of `prepare`
KEYS = ("id", "group", "time_column")  # the flags of columns that are no features


@dataclass(frozen=True)
class Table:
    """Rows in the order of their file, in memory or memory-mapped.

    A code is 0 for a missing cell, otherwise the index of its value plus 1. The targets are the
    last columns of the numbers; a class is the last column of the codes.
    """

    names: list[str]  # of the columns of numbers
    levels: dict[str, list[str]]  # values of each category
    targets: list[str]  # empty for rows to predict
    numbers: np.ndarray  # (N, columns) float32 or float64
    codes: np.ndarray  # (N, categories) int32
    row: np.ndarray  # (N,) int64, the number in the file, from 0
    dates: dict[str, str] = field(default_factory=dict)  # formats; their parts are first in `names`
    ids: dict[str, np.ndarray] = field(default_factory=dict)  # the column --id, (N,) bytes
    min_count: int = 1  # values of a category with fewer training rows count as missing

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def label(self) -> str:
        """The target if it is a class; otherwise empty."""
        return "".join(name for name in self.targets if name in self.levels)


# --- metadata


def describe(table: Table, train: np.ndarray) -> Facts:
    """Return the metadata that a model is built from.

    Only the rows in `train` (N,) bool count. Raises `UserError` for a column without any value and
    for a class that no training row has.
    """
    scaler, counts = _measure(table, train)
    features = []
    for name, mean, std, count in zip(table.names, *scaler.scale(), scaler.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
        if not std:
            print(f"note: column '{name}' is constant in the training rows")
        scale = {"mean": float(mean), "std": float(std or 1)}
        features.append({"name": name, **scale, "missing": scaler.rows - int(count)})

    categories = []
    for name, count_of in counts.items():
        if name != table.label:
            missing = scaler.rows - sum(count_of.values())
            categories.append({"name": name, "values": list(count_of), "missing": missing})

    facts: Facts = {"features": features, "categories": categories}
    if table.numbers.dtype == np.float64:
        facts["dtype"] = "float64"
    if table.label:
        facts["target"] = _describe_classes(table, counts[table.label])
    else:
        targets = [features.pop() for _ in table.targets][::-1]
        facts["target"] = targets[0]
        if len(targets) > 1:
            facts["targets"] = targets
            facts["target"] = {key: [target[key] for target in targets] for key in targets[0]}
    return facts


def _measure(table: Table, train: np.ndarray) -> tuple[Scaler, dict[str, dict[str, int]]]:
    """Return the scales of the numbers, and how often each value of a category occurs.

    Only the rows in `train` count. Values that they do not have, or of a category fewer than
    `min_count` times, are left out; the others are sorted.
    """
    scaler = Scaler(len(table.names))
    counts = [np.zeros(len(values) + 1, int) for values in table.levels.values()]
    for start in range(0, len(table), BLOCK_ROWS):
        rows = start + np.flatnonzero(train[start : start + BLOCK_ROWS])
        scaler.add(table.numbers.take(rows, 0))
        for count, codes in zip(counts, table.codes.take(rows, 0).T, strict=True):
            count += np.bincount(codes, minlength=len(count))

    by_value = {}
    for (name, values), count in zip(table.levels.items(), counts, strict=True):
        count_of = dict(zip(values, count[1:].tolist(), strict=True))
        # Sort numbers by size: 2 comes before 10.
        values = sorted(values, key=lambda value: (len(value) * value.isdecimal(), value))
        least = 1 if name == table.label else table.min_count
        by_value[name] = {value: count_of[value] for value in values if count_of[value] >= least}
    return scaler, by_value


def _describe_classes(table: Table, count_of: dict[str, int]) -> Facts:
    where = f"column '{table.label}'"
    for name in table.levels[table.label]:
        if name not in count_of:
            what = f"class '{name}' is in no training row"
            raise UserError(what, where, "remove its rows, or try another --seed")
    if len(count_of) == 1:
        raise UserError("all training rows have one class", where, "check --target and --split")
    return {"name": table.label, "classes": list(count_of), "counts": list(count_of.values())}


def endings(facts: Facts) -> list[str]:
    """Return what the names of metrics end with: ` of NAME` of several targets, else nothing."""
    targets = facts.get("targets", [])
    return [f" of {target['name']}" for target in targets] or [""]


def print_columns(facts: Facts, table: Table) -> None:
    """Print what the training rows have in each column, and the cells of three rows.

    So a file whose columns were read wrongly is visible. The targets are the last ones.
    """
    rows = [0, len(table) // 2, len(table) - 1]
    cells = {}
    for name, numbers in zip(table.names, table.numbers[rows].T, strict=True):
        cells[name] = [f"{number:.6g}" for number in numbers]
    for (name, values), codes in zip(table.levels.items(), table.codes[rows].T, strict=True):
        cells[name] = [" ".join(["", *values][code][:40].split()) for code in codes]

    targets = facts.get("targets", [facts["target"]])
    columns = [*facts["features"], *facts["categories"]]
    shown = ", ".join(f"{row + 1:,}" for row in table.row[rows])
    plural = "s" * (len(targets) > 1)
    sizes = f"{len(columns):,} features → {len(targets)} target{plural}"
    print(f"columns:    {sizes}; cells of rows {shown}")
    for column in [*columns[:MOST_SHOWN], *targets]:
        values = column.get("values", column.get("classes", []))
        content = f"{len(values):,} values"
        if "mean" in column:
            content = f"mean {column['mean']:.6g}, std {column['std']:.6g}"
        name = column["name"]
        missing = f"{column.get('missing', 0):,} missing"
        print(f"  {name:24.24}{content:36}{missing:16}{' | '.join(cells[name])}")
    if len(columns) > MOST_SHOWN:
        print(f"  … and {len(columns) - MOST_SHOWN:,} more features")


def print_copies(table: Table, parts: Parts) -> None:
    """Print how many rows are copies of rows in an earlier split."""
    random = np.random.default_rng(0)
    hashes = np.zeros(len(table), np.uint64)
    for cells in (table.numbers, table.codes):
        bits = cells.view(np.uint32)
        factors = random.integers(2**63, size=bits.shape[1], dtype=np.uint64)
        hashes += np.einsum("nc,c->n", bits, factors)
    earlier = hashes[:0]
    for name, rows in parts.items():
        count = np.isin(hashes[rows], earlier).sum()
        earlier = np.concatenate([earlier, hashes[rows]])
        if count:
            what = f"{count:,} rows of {name} are copies of rows in an earlier split"
            print(f"note: {what}, so that a model may know them by heart")


# --- arrays


def write_parts(writer: StoreWriter, table: Table, parts: Parts, suffix: str = "") -> Facts:
    """Write the rows of splits, whose scales and categories are those of the training rows.

    Return the metadata. suffix: of the arrays' names.
    """
    train = np.zeros(len(table), bool)
    train[parts["train"]] = True
    writer.facts = describe(table, train)
    print_copies(table, parts)
    write(writer, table, writer.facts, np.concatenate([*parts.values()]), suffix)
    ends = accumulate(map(len, parts.values()), initial=0)
    writer.splits = dict(zip(parts, map(list, pairwise(ends)), strict=True))
    return writer.facts


def write(
    writer: StoreWriter, table: Table, facts: Facts, order: np.ndarray, suffix: str = ""
) -> None:
    """Write the rows with the numbers `order`, with categories coded as in `facts`."""
    # If a column had no gap in training, a gap becomes the mean.
    gaps = [np.nan if column["missing"] else column["mean"] for column in facts["features"]]
    fill = np.array(gaps, table.numbers.dtype)
    new_codes = _new_codes(table, facts)
    num_categories = len(facts["categories"])

    for start in range(0, len(order), PIECE_ROWS):
        rows = order[start : start + PIECE_ROWS]
        numbers = table.numbers.take(rows, 0)
        codes = table.codes.take(rows, 0)
        for column, new_code in zip(codes.T, new_codes, strict=True):
            column[:] = new_code[column]

        if table.label:
            writer.append("target" + suffix, codes[:, -1].astype(np.int64) - 1)
        elif table.targets:
            targets = numbers[:, len(fill) :]
            if len(table.targets) == 1:
                targets = targets[:, 0]
            writer.append("target" + suffix, targets)
        if len(fill):
            features = numbers[:, : len(fill)]
            writer.append("features" + suffix, np.where(np.isnan(features), fill, features))
        if num_categories:
            writer.append("categories" + suffix, codes[:, :num_categories])
    writer.append("row" + suffix, table.row[order])
    for name, cells in table.ids.items():
        writer.append("id" + suffix, cells[order])
        facts["id"] = name


def _new_codes(table: Table, facts: Facts) -> list[np.ndarray]:
    """Map the codes of each category to those in `facts`; 0 for values that these lack."""
    known = {column["name"]: column["values"] for column in facts["categories"]}
    known[table.label] = facts["target"].get("classes", [])
    new_codes = []
    for (name, values), column in zip(table.levels.items(), table.codes.T, strict=True):
        code_of = {value: code for code, value in enumerate(known[name], 1)}
        codes = np.array([0, *(code_of.get(value, 0) for value in values)], np.int32)
        new_codes.append(codes)
        is_unknown = (codes[column] == 0) & (column > 0)
        if is_unknown.any():
            example = values[column[is_unknown.argmax()] - 1]
            what = f"{is_unknown.sum():,} rows with values that too few training rows have"
            print(f"note: column '{name}' has {what}, such as '{example}': they count as missing")
    return new_codes


def file_rows(store: Store, split: str, index: np.ndarray) -> dict[str, np.ndarray]:
    """Return the `row` of each sample `index` (N,) in the file, from 1, and its id, by name."""
    places = store.splits[split][0] + index
    columns = {"row": store.arrays["row"].rows()[places] + 1}
    if "id" in store.arrays:
        cells = store.arrays["id"].rows()[places]
        columns[store.facts["id"]] = np.char.decode(cells, "utf-8")
    return columns


def prediction_columns(
    store: Store, split: str, predicted: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return columns (N,), with classes by name; (N, K) becomes a column for each class."""
    columns = file_rows(store, split, predicted.pop("index"))
    classes = store.facts["target"].get("classes", [])
    for name, values in predicted.items():
        if values.ndim > 1:
            labels = classes
            if "targets" in store.facts:
                labels = store.facts["target"]["name"]
            if len(labels) != values.shape[1]:
                labels = range(values.shape[1])
            for label, column in zip(labels, values.T, strict=True):
                columns[f"{name} of {label}"] = column
        elif classes and name in ("prediction", "target"):
            columns[name] = np.array(classes)[values]
        else:
            columns[name] = values
    return columns
