"""What a sample is: a window of history in each time frame, and the rows that follow.

Replace it with your own, together with `commands/prepare.py`. `prepare/frames.py` describes the
arrays of the prepared dataset.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .engine import interfaces
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.store import Store, StoreWriter
from .prepare.frames import TEMPORARY, fill, make_frames, write_frames
from .prepare.series import Series, check_step, read_series
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .settings import Settings


class Samples(interfaces.Samples):
    """The windows of one split. It may also have `host` and `orders` of its base.

    A window belongs to the split that contains all its targets. The history of a training window is
    also in the training rows, while later histories reach back across the border. The split
    `input` has no targets: its last window forecasts the rows after the data. The array `windows`
    has the rows of the first targets.
    """

    def __init__(self, store: Store, settings: Settings | None, split: str):
        facts = store.facts
        first, last = store.splits[split]
        self.store = store
        self.base, *self.others = facts["frames"]
        self.targets = torch.tensor(facts["targets"])
        self.horizon = facts["horizon"] if split != "input" else 0
        windows = store.arrays["windows"].rows()
        begin, end = np.searchsorted(windows, [first, last - self.horizon + 1])
        self._first_targets = windows[begin:end]
        self._closed = []
        for frame in self.others:
            self._closed.append(store.arrays[f"{frame['name']}.closed"].rows())

    def __len__(self) -> int:
        return len(self._first_targets)

    def first_targets(self, indices: np.ndarray) -> np.ndarray:
        """Return the row of the first target of each sample."""
        return self._first_targets[indices]

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        rows = self.first_targets(indices)
        history = self.base["history"]
        starts = np.where(indices < 0, -1, rows - history)
        spans = {self.base["name"]: Spans(starts, history + self.horizon)}
        for frame, closed in zip(self.others, self._closed, strict=True):
            history = frame["history"]
            starts = np.where(indices < 0, -1, closed[rows - 1] - history)
            spans[frame["name"]] = Spans(starts, history)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return an array (B, T, C) for each frame, and `target` (B, H, G), in original units."""
        batch = {name: array.values for name, array in rows.items()}
        name = self.base["name"]
        history = self.base["history"]
        both = batch[name]
        batch[name] = both[:, :history]
        if self.horizon:
            self.targets = self.targets.to(both.device, non_blocking=True)
            batch["target"] = both[:, history:, self.targets]
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
    targets = store.arrays[facts["frames"][0]["name"]].rows()[first:last, facts["targets"]]
    targets = (targets - np.array(facts["target_mean"])) / np.array(facts["target_std"])
    variance = float(targets.var(0).mean())
    if variance > 0 and "mse" in metrics:
        results["r2"] = 1 - metrics["mse"] / variance
    return results


# --- series without `prepare`


def synthesize(folder: Path, settings: Any) -> None:
    """Write 20,000 synthetic hours, and bars of four hours, which are always the same."""
    frames = make_frames(made_up_series(20_000), {"H1": 48, "H4": 24}, rules={})
    with StoreWriter(folder, WORKLOAD) as writer:
        fill(writer, frames, targets=[0, 1, 2], horizon=12, split="0.7,0.15,0.15")
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
    """Write a series to predict, with the frames and the metadata of the training data."""
    from .prepare.tables import Source

    facts = trained.facts
    source = Source(path, flags, trained.source)
    step = facts["frames"][0]["step"]
    histories = {frame["name"]: frame["history"] for frame in facts["frames"]}
    with StoreWriter(folder, WORKLOAD) as writer:
        series = read_series(writer, source, facts["columns"], TEMPORARY)
        frames = make_frames(series, histories, trained.source.get("aggregate", {}))
        base = frames[0].bars
        check_step(base, step, str(path))
        write_frames(writer, frames, {"input": [0, len(base)]}, 0, trained.source.get("max_gap"))
        writer.facts = facts
