"""What a sample is: a window of history, and the rows that follow.

Replace it with your own, together with `commands/prepare.py`. The prepared dataset has the array
`rows`, (rows, C), oldest first, and their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .engine.data.store import Store, StoreWriter
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.plugins import discover
from .prepare.fill import describe
from .prepare.series import Series
from .prepare.splits import borders
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .settings import Sections

WINDOWS_AT_ONCE = 1024
METRICS = ("mse", "mae", "mse_original", "mae_original")


class Samples:
    """The windows of one split. See `engine.interfaces.Samples`.

    A window belongs to the split that contains all its targets. The history of a training window is
    also in the training rows, while later histories reach back across the border. The split
    `input` has no targets: its last window forecasts the rows after the data.
    """

    training = False  # set by the code that builds the loader

    def __init__(self, store: Store, settings: Sections | None, split: str):
        facts = store.facts
        if list(store.arrays) != ["rows", "time"]:
            remedy = "add the extra `frames`, or run `prepare` without --frames and --max-gap"
            raise UserError("the data have time frames or gaps", str(store.folder), remedy)
        first, last = store.splits[split]
        self.store = store
        self.targets = torch.tensor(facts["targets"])
        self.history = facts["frames"][0]["history"]
        self.horizon = facts["horizon"] if split != "input" else 0
        self.first = max(first, self.history)  # row of the first target
        self.count = max(last - self.horizon - self.first + 1, 0)
        self.orders: dict[str, Any] = {}
        for lanes in discover("hooks", "orders"):  # the extra `lanes`
            self.orders = lanes.orders(settings, self.history)

    def __len__(self) -> int:
        return self.count

    def first_targets(self, indices: np.ndarray) -> np.ndarray:
        """Return the row of the first target of each sample."""
        return indices + self.first

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


# --- baselines: metrics without a model


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Add `r2`: 1 − squared error ÷ variance of the split's standardized targets."""
    variance = float(_targets(store, *store.splits[split]).var(0).mean())
    if variance > 0 and "mse" in metrics:
        return {**metrics, "r2": 1 - metrics["mse"] / variance}
    return metrics


def _targets(store: Store, first: int, last: int) -> np.ndarray:
    """Return the standardized target columns (rows, G), float64."""
    targets = store.facts["targets"]
    frame = store.facts["frames"][0]
    values = store.arrays["rows"].read(first, last)[:, targets]
    return (values - np.array(frame["mean"])[targets]) / np.array(frame["std"])[targets]


def baselines(store: Store, settings: Sections, split: str) -> dict[str, dict[str, float]]:
    """Return the metrics of repeating the last value, and of a linear map of the history.

    The map is the least squares fit of the history minus its last value, shared by all targets.
    """
    if not len(Samples(store, settings, split)):
        return {}
    solution = _linear(store)
    scale = np.array(store.facts["target_std"])
    sums = {"repeat_last": np.zeros(len(METRICS)), "linear": np.zeros(len(METRICS))}
    count = 0
    for inputs, target in _regression_batches(store, split):
        count += target.size
        forecast = np.einsum("bgt,th->bhg", inputs, solution)
        sums["repeat_last"] += _error_sums(target, scale)
        sums["linear"] += _error_sums(target - forecast, scale)

    baselines = {}
    for name, totals in sums.items():
        metrics = dict(zip(METRICS, (totals / count).tolist(), strict=True))
        baselines[name] = finish(metrics, store, split)
    return baselines


def _error_sums(error: np.ndarray, scale: np.ndarray) -> list[float]:
    """Return the sums over all errors, in the order of `METRICS`."""
    sums = []
    for values in (error, error * scale):
        sums += [np.square(values).sum(), np.abs(values).sum()]
    return sums


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of repeating the last value, or of the training mean if that is lower."""
    samples = Samples(store, None, split)
    count = len(samples)
    rows = _targets(store, samples.first - 1, samples.first + count + samples.horizon - 1)
    of_mean = []
    of_last = []
    for ahead in range(1, samples.horizon + 1):
        target = rows[ahead : ahead + count]
        of_mean.append(np.square(target).mean())
        of_last.append(np.square(target - rows[:count]).mean())
    return float(min(np.mean(of_mean), np.mean(of_last)))


def _linear(store: Store) -> np.ndarray:
    """Return the least squares solution (T + 1, H) over the training windows.

    A tiny ridge keeps it solvable if columns repeat.
    """
    size = store.facts["frames"][0]["history"] + 1
    left = np.zeros((size, size))
    right = np.zeros((size, store.facts["horizon"]))
    for inputs, target in _regression_batches(store, "train"):
        left += np.einsum("bgt,bgs->ts", inputs, inputs)
        right += np.einsum("bgt,bhg->th", inputs, target)
    ridge = 1e-6 * np.trace(left) / size + np.finfo(np.float32).tiny
    return np.linalg.solve(left + ridge * np.eye(size), right)


def _regression_batches(store: Store, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield histories with a one appended (B, G, T + 1), and targets (B, H, G).

    Both are standardized differences from the last value.
    """
    samples = Samples(store, None, split)
    history = samples.history
    for start in range(0, len(samples), WINDOWS_AT_ONCE):
        first = samples.first + start
        count = min(WINDOWS_AT_ONCE, len(samples) - start)
        rows = _targets(store, first - history, first + count + samples.horizon - 1)
        windows = np.lib.stride_tricks.sliding_window_view(rows, history + samples.horizon, 0)
        last = windows[:, :, history - 1 : history]  # (B, G, 1)
        inputs = np.concatenate([windows[:, :, :history] - last, np.ones_like(last)], 2)
        target = windows[:, :, history:] - last
        yield inputs, target.transpose(0, 2, 1)


def _made_up_series(count: int) -> Series:
    """Generate hourly rows of three columns, with daily and weekly cycles and slow drift."""
    random = np.random.default_rng(22)
    hours = np.arange(count)
    noise = random.standard_normal((len(hours), 3))
    wander = np.zeros_like(noise)
    for hour in range(1, len(hours)):
        wander[hour] = 0.9 * wander[hour - 1] + 0.3 * noise[hour]
    day = 2 * np.pi * hours / 24
    week = 2 * np.pi * hours / 168
    load = 50 + 8 * np.sin(day) + 4 * np.sin(week) + 3 * wander[:, 0]
    warmth = 15 + 6 * np.sin(day - 1) + 2 * wander[:, 1]
    price = 0.6 * load + 10 * np.sin(2 * day) + 4 * wander[:, 2]
    values = np.stack([load, warmth, price], 1).astype(np.float32)
    midnight = 1_600_000_000 // 86400 * 86400
    return Series(["load", "warmth", "price"], midnight + 3600 * hours, values, 3600)


def synthesize(folder: Path, settings: Any) -> None:
    """Write 20,000 synthetic hours, which are always the same."""
    series = _made_up_series(20_000)
    splits = borders("0.7,0.15,0.15", len(series))
    border = splits["train"][1]
    facts, _ = describe(series, border, targets=[0, 1, 2], history=48, horizon=12)
    with StoreWriter(folder, WORKLOAD) as writer:
        writer.append("rows", series.values)
        writer.append("time", series.times)
        writer.facts = facts
        writer.splits = splits
        writer.source = {"kind": "synthetic"}
