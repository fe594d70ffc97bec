"""What a sample is: one row of the table.

Replace it with your own, together with `commands/prepare.py`. `prepare/rows.py` describes the
arrays of the prepared dataset.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .classes import class_table, overall
from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.balanced import Balanced
from .engine.loading.store import Store, StoreWriter
from .prepare.rows import Table, describe, endings, write
from .prepare.splits import borders
from .settings import WORKLOAD, Settings


class Samples(interfaces.Samples):
    """The rows of one split. It may also have `host` and `orders` of its base."""

    def __init__(self, store: Store, settings: Settings, split: str):
        self.store = store
        self.split = split
        self.first, self.last = store.splits[split]
        self.balance = settings.data.balance
        if self.balance != "none" and "classes" not in store.facts["target"]:
            remedy = "set it to none, or prepare with --task classification"
            raise UserError("a number has no classes", "data.balance", remedy)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def orders(self) -> dict[str, Any]:
        if self.balance != "sampling":
            return {}
        balanced = partial(Balanced, _target(self.store, self.split))
        return dict.fromkeys(["auto", "full", "block", "time"], balanced)

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        span = Spans(np.where(indices < 0, -1, indices + self.first), 1)
        names = [name for name in self.store.arrays if name not in ("row", "id")]
        return dict.fromkeys(names, span)

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, F) float, `categories` (B, C) int32, `target` (B,), or several (B, G)."""
        batch = {name: array.values[:, 0] for name, array in rows.items()}
        return batch


def _target(store: Store, split: str) -> np.ndarray:
    """Return the targets of a split: numbers (N,) or (N, G), or int64 classes (N,)."""
    first, last = store.splits[split]
    return store.arrays["target"].rows()[first:last]


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add means over the classes, or `r2`: 1 − squared error ÷ variance of the split's targets.

    With several targets, it is a mean, too.
    """
    if "scores" in sums:
        return {**metrics, **overall(sums)}
    variances = np.atleast_1d(_target(store, split).var(0, dtype=np.float64))
    scores = {}
    for ending, variance in zip(endings(store.facts), variances, strict=True):
        error = metrics.get(f"mse_original{ending}")
        if variance > 0 and error is not None:
            scores[f"r2{ending}"] = 1 - error / float(variance)
    if scores:
        scores["r2"] = float(np.mean([*scores.values()]))
    return {**metrics, **scores}


def details(store: Store, split: str, sums: Batch) -> list[str]:
    """Return a table of the classes for `evaluate`."""
    return class_table(sums, store.facts["target"]["classes"]) if "scores" in sums else []


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of the mean training target, or of the training class fractions."""
    target = _target(store, split)
    facts = store.facts["target"]
    if "mean" in facts:
        error = target.astype(np.float64) - facts["mean"]
        return float(np.mean(np.mean(error**2, 0) / np.square(facts["std"])))
    fractions = np.array(facts["counts"]) / sum(facts["counts"])
    return float(-np.log(fractions[target]).mean())


def _made_up_harvest() -> Table:
    """Generate rows of six numbers, a category and a target; some cells are empty."""
    count = 20_000
    random = np.random.default_rng(20)
    x = random.standard_normal((count, 6))
    soil = random.integers(1, 5, count).astype(np.int32)
    effect_of_soil = np.array([0, -1, 0, 1, 3])[soil]
    target = 2 * np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + effect_of_soil
    target = 50 + 10 * (target + 0.3 * random.standard_normal(count))

    # 2 % of the cells of three columns and of the category are empty.
    x[:, 1:4][random.random((count, 3)) < 0.02] = np.nan
    soil[random.random(count) < 0.02] = 0
    names = ["sun", "rain", "wind", "slope", "height", "noise"]
    return Table(
        names=[*names, "yield"],
        levels={"soil": ["clay", "loam", "peat", "sand"]},
        targets=["yield"],
        numbers=np.column_stack([20 + 5 * x, target]).astype(np.float32),
        codes=soil[:, None],
        row=np.arange(count),
    )


def synthesize(folder: Path, settings: Settings) -> None:
    """Write 20,000 rows of a synthetic harvest, which are always the same."""
    table = _made_up_harvest()
    rows = np.arange(len(table))
    splits = borders("0.7,0.15,0.15", len(table))
    facts = describe(table, rows < splits["train"][1])
    with StoreWriter(folder, WORKLOAD) as writer:
        write(writer, table, facts, rows)
        writer.facts = facts
        writer.splits = splits
        writer.source = {"kind": "synthetic"}
