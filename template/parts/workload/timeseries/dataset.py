"""What a sample is: a window of history, and the rows that follow.

Replace it with your own, together with `commands/prepare.py`. The prepared dataset has the array
`rows`, (rows, C), oldest first, and their times; with `prepare --max-gap` also `windows`, the rows
of the first targets of all windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.store import Store, StoreWriter
from .prepare.series import (
    Series,
    check_step,
    count_windows,
    describe,
    describe_frame,
    read_series,
    write_windows,
)
from .prepare.splits import borders
from .settings import WORKLOAD, Settings


class Samples(interfaces.Samples):
    """The windows of one split. It may also have `host` and `orders` of its base.

    A window belongs to the split that contains all its targets. The history of a training window is
    also in the training rows, while later histories reach back across the border. The split
    `input` has no targets: its last window forecasts the rows after the data.
    """

    def __init__(self, store: Store, settings: Settings | None, split: str):
        facts = store.facts
        if not store.arrays.keys() <= {"rows", "time", "windows"}:
            remedy = "add the extra `frames`, or run `prepare` without --frames"
            raise UserError("the data have time frames", str(store.folder), remedy)
        first, last = store.splits[split]
        self.store = store
        self.targets = torch.tensor(facts["targets"])
        self.history = facts["frames"][0]["history"]
        self.horizon = facts["horizon"] if split != "input" else 0
        self.first = max(first, self.history)  # row of the first target
        self.count = max(last - self.horizon - self.first + 1, 0)
        self.windows = None
        if "windows" in store.arrays:  # of `prepare --max-gap`
            rows = store.arrays["windows"].rows()
            begin, end = np.searchsorted(rows, [first, last - self.horizon + 1])
            self.windows = rows[begin:end]
            self.count = len(self.windows)

    def __len__(self) -> int:
        return self.count

    def first_targets(self, indices: np.ndarray) -> np.ndarray:
        """Return the row of the first target of each sample."""
        return indices + self.first if self.windows is None else self.windows[indices]

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        starts = np.where(indices < 0, -1, self.first_targets(indices) - self.history)
        return {"rows": Spans(starts, self.history + self.horizon)}

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `rows` (B, T, C), the history, and `target` (B, H, G), in original units."""
        values = rows["rows"].values
        batch = {"rows": values[:, : self.history]}
        if self.horizon:
            self.targets = self.targets.to(values.device, non_blocking=True)
            batch["target"] = values[:, self.history :, self.targets]
        return batch


# --- metrics of a whole split


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add `r2` and `baseline_loss`.

    `r2` is 1 − squared error ÷ variance of the split's standardized targets. `baseline_loss` is the
    loss of the training mean, or of repeating the last value if that is better.
    """
    results = dict(metrics)
    baselines = [results.pop(name) for name in metrics if name.startswith("loss_of_")]
    if baselines:  # your own model may have none
        results["baseline_loss"] = min(baselines)
    facts = store.facts
    first, last = store.splits[split]
    targets = store.arrays["rows"].rows()[first:last, facts["targets"]]
    targets = (targets - np.array(facts["target_mean"])) / np.array(facts["target_std"])
    variance = float(targets.var(0).mean())
    if variance > 0 and "mse" in metrics:
        results["r2"] = 1 - metrics["mse"] / variance
    return results


# --- series without `prepare`


def synthesize(folder: Path, settings: Settings) -> None:
    """Write 20,000 synthetic hours, which are always the same."""
    series = made_up_series(20_000)
    splits = borders("0.7,0.15,0.15", len(series))
    frame = describe_frame("rows", series, history=48, num_known=splits["train"][1])
    with StoreWriter(folder, WORKLOAD) as writer:
        writer.append("rows", series.values)
        writer.append("time", series.times)
        writer.facts = describe(series.names, [0, 1, 2], horizon=12, frames=[frame])
        writer.splits = splits
        writer.source = {"kind": "synthetic"}


def made_up_series(count: int) -> Series:
    """Generate hourly rows of three columns, with daily and weekly cycles and slow drift."""
    random = np.random.default_rng(22)
    hours = np.arange(count)
    drift = 0.3 * random.standard_normal((count, 3))
    drift[0] = 0
    for hour in range(1, count):
        drift[hour] += 0.9 * drift[hour - 1]
    day = 2 * np.pi * hours / 24
    week = 2 * np.pi * hours / 168
    load = 50 + 8 * np.sin(day) + 4 * np.sin(week) + 3 * drift[:, 0]
    warmth = 15 + 6 * np.sin(day - 1) + 2 * drift[:, 1]
    price = 0.6 * load + 10 * np.sin(2 * day) + 4 * drift[:, 2]
    values = np.stack([load, warmth, price], 1).astype(np.float32)
    midnight = 1_599_955_200
    return Series(["load", "warmth", "price"], midnight + 3600 * hours, values, 3600)


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write a series to predict, with the metadata of the training data."""
    from .prepare.tables import Source

    frame = trained.facts["frames"][0]
    source = Source(path, flags, trained.source)
    with StoreWriter(folder, WORKLOAD) as writer:
        series = read_series(writer, source, trained.facts["columns"])
        check_step(series, frame["step"], str(path))
        writer.facts = trained.facts
        writer.splits = {"input": [0, len(series)]}
        max_gap = trained.source.get("max_gap")
        windows = write_windows(writer, series, frame["history"], 0, max_gap)
        count_windows(windows, writer.splits, horizon=0)
