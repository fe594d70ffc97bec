"""What a sample is: one row of the table. Replace it with your own, together with `commands/prepare.py`.

The store holds `features` (N, F) in the columns' own units, NaN where a cell was empty; `categories`
(N, C) int32, where 0 is missing or unknown; and `target` (N,), float32 or the int64 number of a class.
Stored as halves, the features are standardised first, since 2,015 and 2,016 are one number in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import Store, StoreWriter
from .settings import WORKLOAD

Facts = dict[str, Any]
WRITE_ROWS = 1 << 16  # rows that are in memory twice while a table is written


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


class Levels(NamedTuple):
    """A column of categories or classes."""

    codes: np.ndarray  # (N,) int32: 0 = missing, else the place in `values` plus 1
    values: list[str]


@dataclass(frozen=True)
class Table:
    """Columns in memory, in the order of their file."""

    features: dict[str, np.ndarray]  # (N,) float32, NaN = missing
    categories: dict[str, Levels]
    target_name: str = ""
    target: np.ndarray | Levels | None = None  # (N,) float32; classes; None for rows to predict

    def __len__(self) -> int:
        columns = [*self.features.values(), *(levels.codes for levels in self.categories.values())]
        return len(columns[0])


def describe(table: Table, train: np.ndarray) -> tuple[Table, Facts]:
    """The facts that a model is built from, of the training rows `train` alone, and the table in their codes.

    Categories are numbered in the order of their values; those that no training row has become 0.
    Raises `UserError` for a column without any value and for a class that no training row has.
    """
    features = [{"name": name, **_scale(name, values[train])} for name, values in table.features.items()]
    categories = {name: _known(levels, train) for name, levels in table.categories.items()}
    facts: Facts = {
        "task": "classification" if isinstance(table.target, Levels) else "regression",
        "target": {"name": table.target_name},
        "features": features,
        "categories": [{"name": name, "values": levels.values} for name, levels in categories.items()],
    }
    target = table.target
    if isinstance(target, Levels):
        classes = _known(target, train)
        if (lost := np.flatnonzero(classes.codes == 0)).size:
            what = f"class '{target.values[target.codes[lost[0]] - 1]}' is in no training row"
            where = f"row {lost[0] + 1}, column '{table.target_name}'"
            raise UserError(what, where, "leave its rows out, or try another --seed")
        target = classes.codes.astype(np.int64) - 1
        facts["target"]["classes"] = classes.values
        facts["target"]["counts"] = np.bincount(target[train], minlength=len(classes.values)).tolist()
    elif target is not None:
        facts["target"].update(_scale(table.target_name, target[train]))
    return replace(table, categories=categories, target=target), facts


def _scale(name: str, values: np.ndarray) -> dict[str, Any]:
    """Mean, standard deviation (1 for a constant), median of the known values, number of missing ones."""
    known = values[~np.isnan(values)].astype(np.float64)
    if not known.size:
        remedy = f"leave it out with --drop '{name}'"
        raise UserError("no training row has a value", f"column '{name}'", remedy)
    constant = known.min() == known.max()  # its mean and spread would be rounding
    spread = 0.0 if constant else float(known.std())
    return {
        "mean": float(known[0] if constant else known.mean()),
        "std": spread if spread > np.finfo(np.float32).tiny else 1.0,
        "median": float(np.median(known)),
        "missing": int(values.size - known.size),
    }


def _known(levels: Levels, train: np.ndarray) -> Levels:
    """The same column with the values of the training rows only."""
    seen = np.unique(levels.codes[train])
    values = sorted((levels.values[code - 1] for code in seen if code), key=_by_number)
    place = {value: number + 1 for number, value in enumerate(values)}
    new = np.array([0, *(place.get(value, 0) for value in levels.values)], np.int32)
    return Levels(new[levels.codes], values)


def _by_number(value: str) -> tuple[int, str, str]:
    """Sorts 2 before 10, without int(), which refuses more than 4,300 digits."""
    digits = value.lstrip("0") if value.isdecimal() else ""
    return (len(digits) if value.isdecimal() else -1, digits, value)


def write(
    folder: Path, table: Table, facts: Facts, splits: dict[str, np.ndarray], dtype: str, source: Facts
) -> None:
    """Writes a table in the codes of `facts` as a store, `splits` saying which rows go where.

    `dtype` is that of the stored features. Raises `UserError` where a value does not fit into it.
    """
    order, target = np.concatenate(list(splits.values())), table.target
    borders = np.cumsum([0, *map(len, splits.values())]).tolist()
    arrays = {}
    with StoreWriter(folder, WORKLOAD) as writer:
        if table.features:
            arrays["features"] = writer.create("features", (len(order), len(table.features)), dtype)
        if table.categories:
            arrays["categories"] = writer.create("categories", (len(order), len(table.categories)), "int32")
        if isinstance(target, np.ndarray):
            arrays["target"] = writer.create("target", (len(order),), str(target.dtype))
        for start in range(0, len(order), WRITE_ROWS):
            rows, part = order[start : start + WRITE_ROWS], slice(start, start + WRITE_ROWS)
            columns = zip(table.features.values(), facts["features"], strict=True)
            for place, (column, scale) in enumerate(columns):
                arrays["features"][part, place] = _stored(column[rows], scale, dtype, rows)
            for place, levels in enumerate(table.categories.values()):
                arrays["categories"][part, place] = levels.codes[rows]
            if isinstance(target, np.ndarray):
                arrays["target"][part] = target[rows]
        writer.facts, writer.source = facts, source
        writer.splits = {name: borders[place : place + 2] for place, name in enumerate(splits)}


def _stored(values: np.ndarray, scale: dict[str, Any], dtype: str, rows: np.ndarray) -> np.ndarray:
    """One column as it is stored. A gap in a column that had none in training becomes the mean."""
    if not scale["missing"]:
        values = np.where(np.isnan(values), np.float32(scale["mean"]), values)
    if dtype == "float32":
        return values
    tensor = torch.from_numpy((values - scale["mean"]) / scale["std"]).to(getattr(torch, dtype))
    if (beyond := tensor.isinf()).any():
        where = f"row {rows[int(beyond.nonzero()[0])] + 1}, column '{scale['name']}'"
        raise UserError(f"a value is too large for {dtype}", where, "leave --dtype out, or use bfloat16")
    return tensor.numpy() if dtype == "float16" else tensor.view(torch.int16).numpy().view(np.uint16)


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


def synthesize(folder: Path, settings: Any) -> None:
    """Writes 20,000 rows of a made-up harvest, always the same: six numbers, a category, some cells empty."""
    random, count = np.random.default_rng(20), 20_000
    x = random.standard_normal((count, 6))
    soil = random.integers(1, 5, count).astype(np.int32)
    target = 2 * np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + np.array([0, -1, 0, 1, 3])[soil]
    target = 50 + 10 * (target + 0.3 * random.standard_normal(count))
    x[:, 1:4][random.random((count, 3)) < 0.02] = np.nan
    soil[random.random(count) < 0.02] = 0
    names = ("sun", "rain", "wind", "slope", "height", "noise")
    features = {name: (20 + 5 * x[:, place]).astype(np.float32) for place, name in enumerate(names)}
    soils = Levels(soil, ["clay", "loam", "peat", "sand"])
    rows = np.split(np.arange(count), [count * 7 // 10, count * 85 // 100])
    splits = dict(zip(("train", "validation", "test"), rows, strict=True))
    table = Table(features, {"soil": soils}, "yield", target.astype(np.float32))
    table, facts = describe(table, splits["train"])
    write(folder, table, facts, splits, "float32", {"kind": "synthetic"})
