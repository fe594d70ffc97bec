"""What a sample is: a window of history in each time frame, and the rows that follow. Replace it with your
own, together with `commands/prepare.py`.

The store has an array for each time frame, (rows, C), oldest first; the first frame has the targets. For each
further frame `<name>.closed` says how many of its bars have closed at each row of the first: no window
sees a bar before its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .engine.errors import UserError
from .engine.lanes import Lanes
from .engine.seams import Batch, Rows, Spans
from .engine.store import Store, StoreWriter
from .scaling import Scaler, halves
from .series import Series, resample
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .settings import Sections

WINDOWS_AT_ONCE = 1024
HALVES = ("float16", "bfloat16")
METRICS = ("mse", "mae", "mse_original", "mae_original")
Splits = dict[str, list[int]]
Frames = dict[str, tuple[Series, int]]
"""Bars of each time frame and how many of them a window has, the finest first."""


class Samples:
    """The windows of one split. See `engine.seams.Samples`.

    A window belongs to the split that holds all its targets. Training windows have their history in the
    training rows as well; later histories reach back over the border. A split named `input` has no
    targets: its last window forecasts what comes after the data.
    """

    def __init__(self, store: Store, settings: Sections | None, split: str):
        self.store, facts, (first, last) = store, store.facts, store.splits[split]
        self.base, *self.others = facts["frames"]
        self.targets = facts["targets"]
        stride = settings.data.stride if settings else 0
        self.orders = {"lanes": partial(Lanes, stride=stride or self.base["history"])}
        self.title = facts["columns"][self.targets[0]]  # of a picture
        self.horizon = facts["horizon"] if split != "input" else 0
        self.first = max(first, facts["reach"])  # of the first target
        self.count = max(last - self.horizon - self.first + 1, 0)
        self._closed = [store.arrays[f"{frame['name']}.closed"].rows() for frame in self.others]
        scales = {frame["name"]: (frame["mean"], frame["std"]) for frame in facts["frames"]}
        self._scales = {name: [torch.tensor(part) for part in scale] for name, scale in scales.items()}

    def __len__(self) -> int:
        return self.count

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        rows = np.where(present, indices + self.first, 0)
        spans = {self.base["name"]: _window(rows, present, self.base["history"], self.horizon)}
        for frame, closed in zip(self.others, self._closed, strict=True):
            spans[frame["name"]] = _window(closed[rows - 1], present, frame["history"], 0)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """For each frame (B, T, C), and `target` (B, H, G), all in original units."""
        values = {name: self._original(name, part.values) for name, part in rows.items()}
        name, history = self.base["name"], self.base["history"]
        both = values[name]
        batch = values | {name: both[:, :history]}
        if self.horizon:
            batch["target"] = both[:, history:, self.targets]
        return batch

    def history(self, index: int) -> np.ndarray:
        """(T,) of the first target before a window, for a picture."""
        row, facts = self.first + index, self.store.facts
        values = _targets(self.store, row - self.base["history"], row)[:, 0]
        return values * facts["target_std"][0][0] + facts["target_mean"][0][0]

    def _original(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """float32; halves were standardised before they were stored."""
        if values.dtype == torch.float32:
            return values
        mean, std = self._scales[name] = [scale.to(values.device) for scale in self._scales[name]]  # once
        return torch.addcmul(mean, values.float(), std)


def _window(ends: np.ndarray, present: np.ndarray, history: int, horizon: int) -> Spans:
    width = history + horizon
    return Spans(np.where(present, ends - history, 0), np.where(present, width, 0), width)


def describe(
    frames: Frames, splits: Splits, *, targets: list[int], horizon: int, where: str = ""
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The facts that a model is built from, with scalers of the training rows alone; and a line a column.

    The first frame has the targets (columns) and the splits (rows). Raises `UserError`, with `where`, where
    no window fits into training or validation.
    """
    (base, _), *_ = frames.values()
    reach = _reach(frames)
    train, validation, *_ = (max(b - horizon - max(a, reach) + 1, 0) for a, b in splits.values())
    if not (train and validation):
        what = f"{train} training and {validation} validation windows fit into the split"
        raise UserError(what, where, "give it more rows, or take a smaller --history")
    scaled: list[dict[str, Any]] = []
    columns: list[tuple[str, ...]] = []
    for name, (bars, history) in frames.items():
        scaler, last = Scaler(len(base.names)), splits["train"][1]
        for _, values in bars.blocks(int(_closed(bars, base, base.times[last - 1 : last])[0])):
            scaler.add(values)
        mean, std = (part.tolist() for part in scaler.scale())
        scaled.append({"name": name, "history": history, "step": bars.step, "mean": mean, "std": std})
        columns = columns or scaler.columns(base.names)
    facts = {"columns": base.names, "targets": targets, "horizon": horizon, "frames": scaled}
    facts |= {f"target_{key}": [[scaled[0][key][at] for at in targets]] for key in ("mean", "std")}
    return facts, columns


def _closed(bars: Series, base: Series, times: np.ndarray) -> np.ndarray:
    """How many bars have closed at rows of the first frame; a row is known when its own bar closes."""
    return np.searchsorted(bars.times, times + base.step - bars.step, "right")


def _reach(frames: Frames) -> int:
    """The first row that all frames know enough about."""
    (base, _), *_ = frames.values()
    first = [len(base)]
    for bars, history in frames.values():
        ends = bars.times[history - 1 : history] + bars.step - base.step
        first.append(int(np.searchsorted(base.times, ends)[0]) if len(ends) else len(base))
    return max(first[1:]) + 1


def write_series(
    writer: StoreWriter, frames: Frames, splits: Splits, facts: dict[str, Any], dtype: str
) -> float:
    """Writes frames with facts that `describe` has found, in these data or in earlier ones.

    Returns the rounding error of `dtype` (root of the mean square, in standard deviations).
    """
    ((base, _), *_), lost = frames.values(), 0.0
    for frame in facts["frames"]:
        mean, std, squares, first = np.array(frame["mean"]), np.array(frame["std"]), 0.0, 0
        bars = frames[frame["name"]][0]
        for _, values in bars.blocks():
            stored, error = halves(values, mean, std, dtype, lambda row, _: f"row {first + row + 1}")  # noqa: B023
            writer.append(frame["name"], stored, dtype)
            squares, first = squares + error, first + len(values)
        lost = max(lost, (squares / bars.values.size) ** 0.5)
    for frame in facts["frames"][1:]:
        for times, _ in base.blocks():
            bars = frames[frame["name"]][0]
            writer.append(f"{frame['name']}.closed", _closed(bars, base, times))
    for times, _ in base.blocks():
        writer.append("time", times)
    writer.facts, writer.splits = facts | {"reach": _reach(frames)}, splits
    return lost


# --- what one reaches without a model


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `r2`: 1 − squared error ÷ variance of the split's targets, both in standard deviations."""
    variance = float(_targets(store, *store.splits[split]).var(0).mean())
    known = variance > 0 and "mse" in metrics
    return {**metrics, "r2": 1 - metrics["mse"] / variance} if known else metrics


def _targets(store: Store, first: int, last: int) -> np.ndarray:
    """(rows, G) float64 target columns in standard deviations."""
    frame = store.facts["frames"][0]
    array = store.arrays[frame["name"]]
    values = torch.from_numpy(np.array(array.read(first, last)))
    if array.dtype in HALVES:
        standardised = values.view(getattr(torch, array.dtype)).double().numpy()
    else:
        standardised = (values.double().numpy() - np.array(frame["mean"])) / np.array(frame["std"])
    return standardised[:, store.facts["targets"]]


def baselines(store: Store, settings: Sections, split: str) -> dict[str, dict[str, float]]:
    """Repeating the last value, and the best linear map of the history (less its last value), shared by
    all targets."""
    if not len(Samples(store, settings, split)):
        return {}
    solution, scale = _linear(store), np.array(store.facts["target_std"])
    sums, count = np.zeros((2, len(METRICS))), 0
    for inputs, target in _examples(store, split):
        count += target.size
        for row, error in enumerate((target, target - np.einsum("bgt,th->bhg", inputs, solution))):
            original = error * scale
            sums[row] += [(error**2).sum(), abs(error).sum(), (original**2).sum(), abs(original).sum()]
    found = zip(("repeat_last", "linear"), (sums / count).tolist(), strict=True)
    return {row: finish(dict(zip(METRICS, values, strict=True)), store, split) for row, values in found}


def naive(store: Store, split: str) -> float:
    """The loss of repeating the last value, or of the mean of the training rows if that is better."""
    samples = Samples(store, None, split)
    first, count, ahead = samples.first, len(samples), range(1, samples.horizon + 1)
    rows = _targets(store, first - 1, first + count + samples.horizon - 1)
    known = [np.square(rows[place : place + count]).mean() for place in ahead]
    repeated = [np.square(rows[place : place + count] - rows[:count]).mean() for place in ahead]
    return float(min(np.mean(known), np.mean(repeated)))


def _linear(store: Store) -> np.ndarray:
    """(T + 1, H) least squares over the training windows, with a trace of ridge for columns that repeat."""
    size = store.facts["frames"][0]["history"] + 1
    left, right = np.zeros((size, size)), np.zeros((size, store.facts["horizon"]))
    for inputs, target in _examples(store, "train"):
        left += np.einsum("bgt,bgs->ts", inputs, inputs)
        right += np.einsum("bgt,bhg->th", inputs, target)
    ridge = 1e-6 * np.trace(left) / size + np.finfo(np.float32).tiny
    return np.linalg.solve(left + ridge * np.eye(size), right)


def _examples(store: Store, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Histories and a one (B, G, T + 1), targets (B, H, G), in standard deviations from the last value."""
    samples, history = Samples(store, None, split), store.facts["frames"][0]["history"]
    for start in range(0, len(samples), WINDOWS_AT_ONCE):
        first, count = samples.first + start, min(WINDOWS_AT_ONCE, len(samples) - start)
        rows = _targets(store, first - history, first + count + samples.horizon - 1)
        windows = np.lib.stride_tricks.sliding_window_view(rows, history + samples.horizon, 0)
        last = windows[:, :, history - 1 : history]  # (B, G, 1)
        inputs = np.concatenate([windows[:, :, :history] - last, np.ones_like(last)], 2)
        yield inputs, (windows[:, :, history:] - last).transpose(0, 2, 1)


def synthesize(folder: Path, settings: Any) -> None:
    """Writes 20,000 hours of three made-up columns, always the same: days, weeks and a slow wandering."""
    random, hours = np.random.default_rng(22), np.arange(20_000)
    noise = random.standard_normal((len(hours), 3))
    wander = np.zeros_like(noise)
    for hour in range(1, len(hours)):
        wander[hour] = 0.9 * wander[hour - 1] + 0.3 * noise[hour]
    day, week = 2 * np.pi * hours / 24, 2 * np.pi * hours / 168
    load = 50 + 8 * np.sin(day) + 4 * np.sin(week) + 3 * wander[:, 0]
    warmth = 15 + 6 * np.sin(day - 1) + 2 * wander[:, 1]
    price = 0.6 * load + 10 * np.sin(2 * day) + 4 * wander[:, 2]
    values = np.stack([load, warmth, price], 1).astype(np.float32)
    series = Series(["load", "warmth", "price"], 1_600_000_000 // 86400 * 86400 + 3600 * hours, values, 3600)
    splits = {"train": [0, 14_000], "validation": [14_000, 17_000], "test": [17_000, 20_000]}
    with StoreWriter(folder, WORKLOAD) as writer:
        frames = {"H1": (series, 48), "H4": (resample(writer, "H4", series, 4 * 3600, {}), 24)}
        facts, _ = describe(frames, splits, targets=[0, 1, 2], horizon=12)
        write_series(writer, frames, splits, facts, "float32")
        writer.source = {"kind": "synthetic"}
