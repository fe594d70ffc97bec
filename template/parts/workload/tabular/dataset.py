"""What a sample is: one row of the table. Replace it with your own, together with `commands/prepare.py`.

The store holds `features` (N, F) in the columns' own units, NaN where a cell was empty; `categories`
(N, C) int32, where 0 is missing or unknown; and `target` (N,), float32 or the int64 number of a class.
Stored as halves, the features are standardised first, since 2,015 and 2,016 are one number in bfloat16.
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

    def __init__(self, store: Store, settings: Any, split: str):
        self.store, (self.first, self.last) = store, store.splits[split]
        columns = store.facts["features"]
        self._scale = [torch.tensor([column[name] for column in columns]) for name in ("mean", "std")]

    def __len__(self) -> int:
        return self.last - self.first

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        span = Spans(np.where(present, indices + self.first, 0), present.astype(np.int64), 1)
        return dict.fromkeys(self.store.arrays, span)

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, F) float32, `categories` (B, C) int32, `target` (B,)."""
        batch = {name: part.values[:, 0] for name, part in rows.items()}
        features = batch.get("features")
        if features is not None and features.dtype != torch.float32:
            mean, std = self._scale = [part.to(features.device) for part in self._scale]  # copies once
            batch["features"] = torch.addcmul(mean, features.float(), std)
        return batch


@dataclass(frozen=True)
class Table:
    """Rows in the order of their file, in memory or mapped. A code is 0 where a cell is missing, else the
    place of its value plus 1."""

    rows: np.ndarray  # (N,) of `as_rows`
    names: list[str]  # of the features
    levels: dict[str, list[str]]  # values of each category
    target: str = ""  # none in rows to predict
    classes: list[str] | None = None
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # rows of the file, by number

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, number: int) -> str:
        """Where a row is in the file; rows count from 1."""
        earlier = np.searchsorted(self.left_out - np.arange(len(self.left_out)), number, "right")
        return f"row {number + earlier + 1}"

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features (n, F), contiguous, categories (n, C) and target (n, 1) of rows by their numbers."""
        rows = self.rows.take(numbers)  # much faster than [numbers]
        return np.ascontiguousarray(rows["features"]), rows["categories"], rows["target"]


def as_rows(columns: dict[str, list[np.ndarray]]) -> np.ndarray:
    """(N,) of columns (N,): `features`, NaN where one is missing, `categories` and `target`, (columns,) each.

    Codes stay int32, all else becomes float32. What a row has stands together: when rows are shuffled, each
    one is fetched at once.
    """
    fields = [
        (name, "int32" if some and some[0].dtype == np.int32 else "float32", (len(some),))
        for name, some in columns.items()
    ]
    rows = np.empty(len(next(values for some in columns.values() for values in some)), fields)
    for part in _blocks(len(rows), PIECE_ROWS):
        for name, some in columns.items():
            for place, values in enumerate(some):
                rows[name][part, place] = values[part]
    return rows


def _blocks(rows: int, size: int) -> Iterator[slice]:
    yield from (slice(start, start + size) for start in range(0, rows, size))


def describe(table: Table, train: np.ndarray) -> tuple[Facts, list[tuple[str, ...]]]:
    """The facts that a model is built from, of the rows `train` (N,) bool alone, and a line for each column.

    Categories are numbered in the order of their values; those that no training row has are left out.
    Raises `UserError` for a column without any value and for a class that no training row has.
    """
    features, target = Scaler(len(table.names)), Scaler(1)
    sizes = [len(values) + 1 for values in table.levels.values()]
    seen = [np.zeros(size, np.int64) for size in sizes]
    classes = np.zeros(len(table.classes or ()) + 1, np.int64)
    for part in _blocks(len(table), BLOCK_ROWS):
        values, codes, targets = table.take(part.start + np.flatnonzero(train[part]))
        features.add(values)
        for place, column in enumerate(codes.T):
            seen[place] += np.bincount(column, minlength=sizes[place])
        if table.classes:
            classes += np.bincount(targets[:, 0], minlength=len(classes))
        else:
            target.add(targets)
    for name, count in zip(table.names, features.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
    facts: Facts = {
        "task": "classification" if table.classes else "regression",
        "target": {"name": table.target},
        "features": _scales(table.names, features),
        "categories": [
            {"name": name, "values": _known(values, counts)}
            for (name, values), counts in zip(table.levels.items(), seen, strict=True)
        ],
    }
    if table.classes:
        known = _known(table.classes, classes)
        facts["target"]["classes"] = known
        facts["target"]["counts"] = [int(classes[table.classes.index(value) + 1]) for value in known]
    else:
        facts["target"].update(_scales([table.target], target)[0])
    columns = features.columns(table.names) + (target.columns([table.target]) if target.rows else [])
    for name, counts in [*zip(table.levels, seen, strict=True), (table.target, classes)]:
        if len(counts) > 1:
            missing = f"{counts[0] / max(counts.sum(), 1):.1%}"
            columns.append((name, "category", "", f"{(counts[1:] > 0).sum()} values", missing))
    return facts, columns


def _scales(names: list[str], scaler: Scaler) -> list[Facts]:
    """Name, mean, standard deviation and number of missing values of each column."""
    mean, std = scaler.scale()
    missing = (scaler.rows - scaler.count).astype(int)
    found = zip(names, mean.tolist(), std.tolist(), missing.tolist(), strict=True)
    return [dict(zip(("name", "mean", "std", "missing"), column, strict=True)) for column in found]


def _known(values: list[str], counts: np.ndarray) -> list[str]:
    """The values that training rows have, in their order."""
    return sorted((value for value, count in zip(values, counts[1:], strict=True) if count), key=_by_number)


def _by_number(value: str) -> tuple[int, str, str]:
    """Sorts 2 before 10, without int(), which refuses more than 4,300 digits."""
    digits = value.lstrip("0") if value.isdecimal() else ""
    return (len(digits) if value.isdecimal() else -1, digits, value)


def write(writer: StoreWriter, table: Table, facts: Facts, order: np.ndarray, dtype: str) -> None:
    """Writes rows of a table, by their numbers in `order`, in the codes of `facts`.

    `dtype` is that of the stored features. Raises `UserError` where a value does not fit into it.
    """
    scales = (
        [np.float32(column[name]) for column in facts["features"]] for name in ("mean", "std", "missing")
    )
    mean, std, gaps = map(np.array, scales)
    whole = gaps == 0
    known = {column["name"]: column["values"] for column in facts["categories"]}
    codes = [_renumber(values, known[name]) for name, values in table.levels.items()]
    classes = _renumber(table.classes, facts["target"]["classes"]) if table.classes else None

    def where(row: int, column: int) -> str:
        return f"{table.place(numbers[row])}, column '{table.names[column]}'"

    for part in _blocks(len(order), PIECE_ROWS):
        numbers = order[part]
        values, old, targets = table.take(numbers)
        if table.names:
            if (holes := np.isnan(values)).any():
                # A gap in a column that had none in training becomes the mean.
                values = np.where(holes & whole, mean, values)
            writer.append("features", halves(values, mean, std, dtype, where)[0], dtype)
        if table.levels:
            columns = zip(codes, old.T, strict=True)
            writer.append("categories", np.stack([new[column] for new, column in columns], 1))
        if table.target:
            target = targets[:, 0]
            if classes is not None and table.classes:
                if (lost := np.flatnonzero(classes[target] == 0)).size:
                    what = f"class '{table.classes[target[lost[0]] - 1]}' is in no training row"
                    remedy = "leave its rows out, or try another --seed"
                    raise UserError(what, f"{table.place(numbers[lost[0]])}, column '{table.target}'", remedy)
                target = classes[target].astype(np.int64) - 1
            writer.append("target", target)
    writer.facts = facts


def _renumber(values: list[str], known: list[str]) -> np.ndarray:
    """Codes of a table → those of the facts, 0 for what training has not."""
    place = {value: number + 1 for number, value in enumerate(known)}
    return np.array([0, *(place.get(value, 0) for value in values)], np.int32)


def _target(store: Store, split: str) -> np.ndarray:
    """(N,) targets of a split, float64 or classes."""
    first, last = store.splits[split]
    target = np.asarray(store.arrays["target"].rows()[first:last])
    return target.astype(np.float64) if store.facts["task"] == "regression" else target


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `r2`: 1 − squared error ÷ variance of the split's own targets; not where those are all equal."""
    if "mse_original" in metrics and (variance := _target(store, split).var()) > 0:
        return {**metrics, "r2": 1 - metrics["mse_original"] / float(variance)}
    return metrics


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """What one reaches without a model: the mean of the training targets, or the commonest training class.

    The log loss of `majority` is that of the training rows' class shares: a certain answer would have none.
    """
    target, facts = _target(store, split), store.facts["target"]
    if not len(target):
        return {}
    if store.facts["task"] == "regression":
        error = target - facts["mean"]
        mse, mae = float(np.mean(error**2)), float(np.mean(np.abs(error)))
        metrics = {"mse": mse / facts["std"] ** 2, "mae": mae / facts["std"]}
        return {"mean": finish({**metrics, "mse_original": mse, "mae_original": mae}, store, split)}
    shares = np.array(facts["counts"]) / sum(facts["counts"])
    accuracy, surprise = np.mean(target == shares.argmax()), -np.log(shares[target]).mean()
    return {"majority": {"accuracy": float(accuracy), "log_loss": float(surprise)}}


def naive(store: Store, split: str) -> float:
    """The loss without a model: of the mean of the training targets, or of the shares of their classes."""
    (row,) = baselines(store, None, split).values()
    return row["mse"] if "mse" in row else row["log_loss"]


def synthesize(folder: Path, settings: Any) -> None:
    """Writes 20,000 rows of a made-up harvest, always the same: six numbers, a category, some cells empty."""
    random, count = np.random.default_rng(20), 20_000
    x = random.standard_normal((count, 6))
    soil = random.integers(1, 5, count).astype(np.int32)
    target = 2 * np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + np.array([0, -1, 0, 1, 3])[soil]
    target = 50 + 10 * (target + 0.3 * random.standard_normal(count))
    x[:, 1:4][random.random((count, 3)) < 0.02] = np.nan
    soil[random.random(count) < 0.02] = 0
    columns = as_rows({"features": list((20 + 5 * x).T), "categories": [soil], "target": [target]})
    names = ["sun", "rain", "wind", "slope", "height", "noise"]
    table = Table(columns, names, {"soil": ["clay", "loam", "peat", "sand"]}, "yield")
    border, last, rows = count * 7 // 10, count * 85 // 100, np.arange(count)
    with StoreWriter(folder, WORKLOAD) as writer:
        write(writer, table, describe(table, rows < border)[0], rows, "float32")
        writer.splits = {"train": [0, border], "validation": [border, last], "test": [last, count]}
        writer.source = {"kind": "synthetic"}
