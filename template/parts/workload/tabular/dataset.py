"""What a sample is: one row of the table.

Replace it with your own, together with `commands/prepare.py`.

The store holds `features` (N, F) in the columns' own units, NaN where a cell was empty;
`categories` (N, C) int32, where 0 is missing or unknown; and `target` (N,), float32 or the int64
number of a class.
Stored as halves, the features are standardised first, since 2,015 and 2,016 are one number in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import Store, StoreWriter
from .scaling import BLOCK_ROWS, PIECE_ROWS, Scaler, halves
from .settings import WORKLOAD

Facts = dict[str, Any]


class Samples:
    """The rows of one split. See `engine.seams.Samples`."""

    training = False  # set by the loader's maker

    def __init__(self, store: Store, settings: Any, split: str):
        self.store = store
        self.first, self.last = store.splits[split]
        columns = store.facts["features"]
        mean = torch.tensor([column["mean"] for column in columns])
        std = torch.tensor([column["std"] for column in columns])
        self._scale = [mean, std]

    def __len__(self) -> int:
        return self.last - self.first

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        span = Spans(np.where(present, indices + self.first, 0), present.astype(np.int64), 1)
        return dict.fromkeys(self.store.arrays, span)

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, F) float32, `categories` (B, C) int32, `target` (B,)."""
        batch = {name: array.values[:, 0] for name, array in rows.items()}
        features = batch.get("features")
        if features is not None and features.dtype != torch.float32:
            self._scale = [value.to(features.device) for value in self._scale]  # copies once
            mean, std = self._scale
            batch["features"] = torch.addcmul(mean, features.float(), std)
        return batch


@dataclass(frozen=True)
class Table:
    """Rows in the order of their file, in memory or mapped.

    A code is 0 where a cell is missing, else the place of its value plus 1.
    """

    rows: np.ndarray  # (N,) of `as_rows`
    names: list[str]  # of the features
    levels: dict[str, list[str]]  # values of each category
    target: str = ""  # none in rows to predict
    classes: list[str] | None = None
    # Rows of the file, by number.
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, number: int) -> str:
        """Where a row is in the file; rows count from 1."""
        kept_before = self.left_out - np.arange(len(self.left_out))
        earlier = np.searchsorted(kept_before, number, "right")
        return f"row {number + earlier + 1}"

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features (n, F), contiguous, categories (n, C) and target (n, 1) of rows by number."""
        rows = self.rows.take(numbers)  # much faster than [numbers]
        return np.ascontiguousarray(rows["features"]), rows["categories"], rows["target"]


def as_rows(columns: dict[str, list[np.ndarray]]) -> np.ndarray:
    """(N,) of columns (N,): `features`, NaN where one is missing, `categories` and `target`.

    Codes stay int32, all else becomes float32. The values of a row are next to each other: when
    rows are shuffled, each one is fetched at once.
    """
    fields = []
    num_rows = 0
    for name, group in columns.items():
        dtype = "float32"
        if group:
            num_rows = len(group[0])
            if group[0].dtype == np.int32:
                dtype = "int32"
        fields.append((name, dtype, (len(group),)))

    rows = np.empty(num_rows, fields)
    for piece in _slices(num_rows, PIECE_ROWS):
        for name, group in columns.items():
            for place, values in enumerate(group):
                rows[name][piece, place] = values[piece]
    return rows


def _slices(num_rows: int, size: int) -> Iterator[slice]:
    for start in range(0, num_rows, size):
        yield slice(start, start + size)


# --- the facts of the data


class _Counts:
    """Scales and counts of the training rows."""

    def __init__(self, table: Table):
        self.table = table
        self.features = Scaler(len(table.names))
        self.target = Scaler(1)  # of a regression
        self.classes = np.zeros(len(table.classes or ()) + 1, np.int64)
        self.levels = [np.zeros(len(values) + 1, np.int64) for values in table.levels.values()]

    def add(self, numbers: np.ndarray) -> None:
        """numbers: of rows that come next."""
        values, codes, targets = self.table.take(numbers)
        self.features.add(values)
        for counts, column in zip(self.levels, codes.T, strict=True):
            counts += np.bincount(column, minlength=len(counts))
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

    for name, count in zip(table.names, counts.features.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
    categories = []
    for (name, values), of_values in zip(table.levels.items(), counts.levels, strict=True):
        categories.append({"name": name, "values": _known(values, of_values)})
    facts: Facts = {
        "task": "classification" if table.classes else "regression",
        "target": _describe_target(counts),
        "features": _scales(table.names, counts.features),
        "categories": categories,
    }
    return facts, _lines(counts)


def _describe_target(counts: _Counts) -> Facts:
    table = counts.table
    facts: Facts = {"name": table.target}
    if table.classes:
        facts["classes"] = _known(table.classes, counts.classes)
        codes = [table.classes.index(value) + 1 for value in facts["classes"]]
        facts["counts"] = [int(counts.classes[code]) for code in codes]
    else:
        facts |= _scales([table.target], counts.target)[0]
    return facts


def _lines(counts: _Counts) -> list[tuple[str, ...]]:
    """(name, type, lowest, highest, missing) of each column."""
    table = counts.table
    lines = counts.features.columns(table.names)
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


# --- the store


def write(writer: StoreWriter, table: Table, facts: Facts, order: np.ndarray, dtype: str) -> None:
    """Write rows of a table, by their numbers in `order`, in the codes of `facts`.

    `dtype` is that of the stored features. Raises `UserError` where a value does not fit into it.
    """
    columns = facts["features"]
    mean = np.array([np.float32(column["mean"]) for column in columns])
    std = np.array([np.float32(column["std"]) for column in columns])
    had_gaps = np.array([column["missing"] > 0 for column in columns], bool)
    known = {column["name"]: column["values"] for column in facts["categories"]}
    codes = [_renumber(values, known[name]) for name, values in table.levels.items()]
    if table.classes:
        class_codes = _renumber(table.classes, facts["target"]["classes"])

    def where(row: int, column: int) -> str:
        return f"{table.place(numbers[row])}, column '{table.names[column]}'"

    for piece in _slices(len(order), PIECE_ROWS):
        numbers = order[piece]
        values, categories, targets = table.take(numbers)
        if table.names:
            holes = np.isnan(values)
            if holes.any():
                # A gap in a column that had none in training becomes the mean.
                values = np.where(holes & ~had_gaps, mean, values)
            stored, _ = halves(values, mean, std, dtype, where)
            writer.append("features", stored, dtype)
        if table.levels:
            renumbered = [new[old] for new, old in zip(codes, categories.T, strict=True)]
            writer.append("categories", np.stack(renumbered, 1))
        if table.target:
            target = targets[:, 0]
            if table.classes:
                target = _class_numbers(table, class_codes, numbers, target)
            writer.append("target", target)
    writer.facts = facts


def _class_numbers(
    table: Table, codes: np.ndarray, numbers: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """(rows,) int64 numbers of classes, of the codes `target` of the rows `numbers`."""
    known = codes[target]
    lost = np.flatnonzero(known == 0)
    if lost.size and table.classes:
        what = f"class '{table.classes[target[lost[0]] - 1]}' is in no training row"
        where = f"{table.place(numbers[lost[0]])}, column '{table.target}'"
        raise UserError(what, where, "leave its rows out, or try another --seed")
    return known.astype(np.int64) - 1


def _renumber(values: list[str], known: list[str]) -> np.ndarray:
    """Codes of a table → those of the facts, 0 for what training has not."""
    code_of = {value: code for code, value in enumerate(known, 1)}
    codes = [code_of.get(value, 0) for value in values]
    return np.array([0, *codes], np.int32)


# --- what one reaches without a model


def _target(store: Store, split: str) -> np.ndarray:
    """(N,) targets of a split, float64 or classes."""
    first, last = store.splits[split]
    target = np.asarray(store.arrays["target"].rows()[first:last])
    if store.facts["task"] == "regression":
        return target.astype(np.float64)
    return target


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Add `r2`: 1 − squared error ÷ variance of the split's targets, unless all are equal."""
    if "mse_original" not in metrics:
        return metrics
    variance = _target(store, split).var()
    if variance > 0:
        return {**metrics, "r2": 1 - metrics["mse_original"] / float(variance)}
    return metrics


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """The mean of the training targets, or the commonest training class.

    The log loss of `majority` is that of the training rows' class shares: a certain answer would
    have none.
    """
    target = _target(store, split)
    facts = store.facts["target"]
    if not len(target):
        return {}
    if store.facts["task"] == "regression":
        error = target - facts["mean"]
        mse = float(np.mean(error**2))
        mae = float(np.mean(np.abs(error)))
        metrics = {
            "mse": mse / facts["std"] ** 2,
            "mae": mae / facts["std"],
            "mse_original": mse,
            "mae_original": mae,
        }
        return {"mean": finish(metrics, store, split)}

    shares = np.array(facts["counts"]) / sum(facts["counts"])
    accuracy = float(np.mean(target == shares.argmax()))
    log_loss = float(-np.log(shares[target]).mean())
    return {"majority": {"accuracy": accuracy, "log_loss": log_loss}}


def naive(store: Store, split: str) -> float:
    """The loss of the mean of the training targets, or of the shares of their classes."""
    (row,) = baselines(store, None, split).values()
    return row["mse"] if "mse" in row else row["log_loss"]


def synthesize(folder: Path, settings: Any) -> None:
    """Write 20,000 rows of a made-up harvest: six numbers, a category, some cells empty.

    They are always the same.
    """
    random = np.random.default_rng(20)
    count = 20_000
    x = random.standard_normal((count, 6))
    soil = random.integers(1, 5, count).astype(np.int32)
    effect_of_soil = np.array([0, -1, 0, 1, 3])[soil]
    target = 2 * np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + effect_of_soil
    target = 50 + 10 * (target + 0.3 * random.standard_normal(count))

    # 2 % of the cells of three columns and of the category are empty.
    x[:, 1:4][random.random((count, 3)) < 0.02] = np.nan
    soil[random.random(count) < 0.02] = 0
    columns = {"features": list((20 + 5 * x).T), "categories": [soil], "target": [target]}
    names = ["sun", "rain", "wind", "slope", "height", "noise"]
    levels = {"soil": ["clay", "loam", "peat", "sand"]}
    table = Table(as_rows(columns), names, levels, "yield")

    rows = np.arange(count)
    border = count * 7 // 10
    last = count * 85 // 100
    facts, _ = describe(table, rows < border)
    with StoreWriter(folder, WORKLOAD) as writer:
        write(writer, table, facts, rows, "float32")
        writer.splits = {
            "train": [0, border],
            "validation": [border, last],
            "test": [last, count],
        }
        writer.source = {"kind": "synthetic"}
