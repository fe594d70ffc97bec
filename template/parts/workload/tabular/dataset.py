"""What a sample is: one row of the table. Replace it with your own, together with `commands/prepare.py`.

The store holds `features` (N, F) in the columns' own units, NaN where a cell was empty; `categories`
(N, C) int32, where 0 is missing or unknown; and `target` (N,), float32 or the int64 number of a class.
Stored as halves, the features are standardised first, since 2,015 and 2,016 are one number in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import Store, StoreWriter
from .scaling import BLOCK_ROWS, Scaler, halves
from .settings import WORKLOAD

Facts = dict[str, Any]
MEDIAN_BYTES = 16 << 20  # of columns in memory together, for their medians; one is, whatever its size


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

    names: list[str]
    features: np.ndarray  # (N, F) float32, NaN = missing
    levels: dict[str, list[str]]  # values of each category
    categories: np.ndarray  # (N, C) int32 codes
    target_name: str = ""
    target: np.ndarray | None = None  # (N, 1) float32 or int32 codes; None for rows to predict
    classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.features)


def _blocks(rows: int) -> Iterator[slice]:
    yield from (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))


def describe(table: Table, train: np.ndarray) -> tuple[Facts, list[tuple[str, ...]]]:
    """The facts that a model is built from, of the rows `train` (N,) bool alone, and a line for each column.

    Categories are numbered in the order of their values; those that no training row has are left out.
    Raises `UserError` for a column without any value and for a class that no training row has.
    """
    features, target = Scaler(len(table.names)), Scaler(1)
    sizes = [len(values) + 1 for values in table.levels.values()]
    seen = [np.zeros(size, np.int64) for size in sizes]
    classes = np.zeros(len(table.classes or ()) + 1, np.int64)
    for part in _blocks(len(table)):
        rows = np.flatnonzero(train[part])
        features.add(table.features[part].take(rows, 0))  # much faster than [rows]
        for place, codes in enumerate(table.categories[part].take(rows, 0).T):
            seen[place] += np.bincount(codes, minlength=sizes[place])
        if table.target is not None and table.classes:
            classes += np.bincount(table.target[part].take(rows, 0)[:, 0], minlength=len(classes))
        elif table.target is not None:
            target.add(table.target[part].take(rows, 0))
    for name, count in zip(table.names, features.count, strict=True):
        if not count:
            remedy = f"leave it out with --drop '{name}'"
            raise UserError("no training row has a value", f"column '{name}'", remedy)
    facts: Facts = {
        "task": "classification" if table.classes else "regression",
        "target": {"name": table.target_name},
        "features": _scales(table.names, features, table.features, train),
        "categories": [
            {"name": name, "values": _known(values, counts)}
            for (name, values), counts in zip(table.levels.items(), seen, strict=True)
        ],
    }
    if table.classes:
        known = _known(table.classes, classes)
        facts["target"]["classes"] = known
        facts["target"]["counts"] = [int(classes[table.classes.index(value) + 1]) for value in known]
    elif table.target is not None:
        facts["target"].update(_scales([table.target_name], target, table.target, train)[0])
    columns = features.columns(table.names) + (target.columns([table.target_name]) if target.rows else [])
    for name, counts in [*zip(table.levels, seen, strict=True), (table.target_name, classes)]:
        if len(counts) > 1:
            missing = f"{counts[0] / max(counts.sum(), 1):.1%}"
            columns.append((name, "category", "", f"{(counts[1:] > 0).sum()} values", missing))
    return facts, columns


def _scales(names: list[str], scaler: Scaler, values: np.ndarray, train: np.ndarray) -> list[Facts]:
    """Name, mean, standard deviation, median and number of missing values of each column."""
    mean, std = scaler.scale()
    known = scaler.count.astype(int).tolist()
    together = max(MEDIAN_BYTES // (4 * scaler.rows), 1)
    median: list[float] = []
    for first in range(0, len(names), together):
        some = slice(first, first + together)
        columns, at = np.empty((len(names[some]), scaler.rows), np.float32), 0
        for part in _blocks(len(values)):
            rows = values[part, some].take(np.flatnonzero(train[part]), 0)
            columns[:, at : at + len(rows)] = rows.T
            at += len(rows)
        median += map(_median, columns, known[some])
    missing = scaler.rows - scaler.count
    found = zip(names, mean.tolist(), std.tolist(), median, missing.astype(int).tolist(), strict=True)
    return [dict(zip(("name", "mean", "std", "median", "missing"), column, strict=True)) for column in found]


def _median(values: np.ndarray, known: int) -> float:
    """Of so many known numbers among (n,) float32, whose order is lost; NaN goes to the end."""
    middle = known // 2
    values.partition(middle)  # with a single place it is ten times as fast as with two
    below = values[middle] if known % 2 else values[:middle].max()
    return float((np.float64(below) + np.float64(values[middle])) / 2)


def _known(values: list[str], counts: np.ndarray) -> list[str]:
    """The values that training rows have, in their order."""
    return sorted((value for value, count in zip(values, counts[1:], strict=True) if count), key=_by_number)


def _by_number(value: str) -> tuple[int, str, str]:
    """Sorts 2 before 10, without int(), which refuses more than 4,300 digits."""
    digits = value.lstrip("0") if value.isdecimal() else ""
    return (len(digits) if value.isdecimal() else -1, digits, value)


def write(writer: StoreWriter, table: Table, facts: Facts, splits: dict[str, np.ndarray], dtype: str) -> None:
    """Writes a table in the codes of `facts`, `splits` saying which rows go where.

    `dtype` is that of the stored features. Raises `UserError` where a value does not fit into it.
    """
    order = np.concatenate(list(splits.values()))
    scales = (
        [np.float32(column[name]) for column in facts["features"]] for name in ("mean", "std", "missing")
    )
    mean, std, gaps = map(np.array, scales)
    whole = gaps == 0
    known = {column["name"]: column["values"] for column in facts["categories"]}
    codes = [_renumber(values, known[name]) for name, values in table.levels.items()]
    classes = _renumber(table.classes, facts["target"]["classes"]) if table.classes else None

    def where(row: int, column: int) -> str:
        return f"row {rows[row] + 1}, column '{table.names[column]}'"

    for part in _blocks(len(order)):
        rows = order[part]
        if table.names:
            values = table.features.take(rows, 0)
            if (holes := np.isnan(values)).any():
                # A gap in a column that had none in training becomes the mean.
                values = np.where(holes & whole, mean, values)
            writer.append("features", halves(values, mean, std, dtype, where)[0], dtype)
        if table.levels:
            columns = zip(codes, table.categories.take(rows, 0).T, strict=True)
            writer.append("categories", np.stack([new[old] for new, old in columns], 1))
        if table.target is not None:
            target = table.target[:, 0].take(rows)
            if classes is not None and table.classes:
                target = classes[target].astype(np.int64) - 1
                if (lost := np.flatnonzero(target < 0)).size:
                    row = rows[lost[0]]
                    what = f"class '{table.classes[table.target[row, 0] - 1]}' is in no training row"
                    remedy = "leave its rows out, or try another --seed"
                    raise UserError(what, f"row {row + 1}, column '{table.target_name}'", remedy)
            writer.append("target", target)
    marks = np.cumsum([0, *map(len, splits.values())]).tolist()
    writer.facts = facts
    writer.splits = {name: marks[place : place + 2] for place, name in enumerate(splits)}


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
    names = ["sun", "rain", "wind", "slope", "height", "noise"]
    features, target = (20 + 5 * x).astype(np.float32), target.astype(np.float32)[:, None]
    soils = {"soil": ["clay", "loam", "peat", "sand"]}
    table = Table(names, features, soils, soil[:, None], "yield", target)
    rows = np.split(np.arange(count), [count * 7 // 10, count * 85 // 100])
    splits = dict(zip(("train", "validation", "test"), rows, strict=True))
    with StoreWriter(folder, WORKLOAD) as writer:
        write(writer, table, describe(table, np.arange(count) < len(rows[0]))[0], splits, "float32")
        writer.source = {"kind": "synthetic"}
