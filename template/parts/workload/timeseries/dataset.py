"""What a sample is: a window of history in each time frame, and the rows that follow. Replace it with your
own, together with `commands/prepare.py`.

Two kinds of store, told apart by the fact `kind`:
* `series`: an array for each time frame, (rows, C), oldest first; the first frame has the targets. For each
  further frame `<name>.closed` says how many of its bars have closed at each row of the first: no window
  sees a bar before its end.
* `windows`: `features` (N, T, F) and `targets` (N, H), often of a file that somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from .engine.errors import UserError
from .engine.seams import Batch, Rows, Spans
from .engine.store import Array, Store, StoreWriter
from .series import Series, bars_closed, resample
from .settings import WORKLOAD

WINDOWS_AT_ONCE = 1024
BLOCK_BYTES = 64 << 20  # in memory at a time


class Samples:
    """The windows of one split. See `engine.seams.Samples`.

    A window belongs to the split that holds all its targets. Training windows have their history in the
    training rows as well; later histories reach back over the border. A split named `input` has no
    targets: its last window forecasts what comes after the data.
    """

    def __init__(self, store: Store, settings: Any, split: str):
        facts, (first, last) = store.facts, store.splits[split]
        self.kind, self.frames, self.targets = facts["kind"], facts["frames"], facts["targets"]
        self.stride = self.frames[0]["history"] if self.kind == "series" else 1
        self.horizon = facts["horizon"] if split != "input" else 0
        self.first, self.count = first, last - first
        if self.kind == "series":
            self.first = max(first, facts["reach"])  # of the first target
            self.count = max(last - self.horizon - self.first + 1, 0)
            self._closed = [_closed(store, frame["name"]) for frame in self.frames[1:]]
        self._scales = {
            frame["name"]: [torch.tensor(frame["mean"]), torch.tensor(frame["std"])]
            for frame in self.frames
            if store.arrays[frame["name"]].dtype in ("float16", "bfloat16")
        }

    def __len__(self) -> int:
        return self.count

    def lengths(self) -> np.ndarray | None:
        return None

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        rows = np.where(present, indices + self.first, 0)
        if self.kind == "windows":
            span = Spans(rows, present.astype(np.int64), 1)
            return {"features": span, "targets": span} if self.horizon else {"features": span}
        base, *others = self.frames
        spans = {base["name"]: _window(rows, present, base["history"], self.horizon)}
        for frame, closed in zip(others, self._closed, strict=True):
            spans[frame["name"]] = _window(closed[rows - 1], present, frame["history"], 0)
        return spans

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """For each frame (B, T, C), and `target` (B, H, G), all in original units."""
        values = {name: self._original(name, part.values) for name, part in rows.items()}
        if self.kind == "windows":
            batch = {"features": values["features"][:, 0]}
            return batch | {"target": values["targets"][:, 0, :, None]} if self.horizon else batch
        base = self.frames[0]
        both = values.pop(base["name"])
        batch = {base["name"]: both[:, : base["history"]], **values}
        if self.horizon:
            batch["target"] = both[:, base["history"] :, self.targets]
        return batch

    def _original(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """float32; halves were standardised before they were stored."""
        if name not in self._scales:
            return values.float()
        mean, std = self._scales[name] = [scale.to(values.device) for scale in self._scales[name]]  # once
        return torch.addcmul(mean, values.float(), std)


def _window(ends: np.ndarray, present: np.ndarray, history: int, horizon: int) -> Spans:
    width = history + horizon
    return Spans(np.where(present, ends - history, 0), np.where(present, width, 0), width)


def _closed(store: Store, frame: str) -> np.ndarray:
    return np.asarray(store.arrays[f"{frame}.closed"].rows())


def write_series(
    folder: Path,
    frames: dict[str, tuple[Series, int]],
    splits: dict[str, list[int]],
    targets: list[int],
    horizon: int,
    dtype: str = "float32",
    source: dict[str, Any] | None = None,
    known: dict[str, Any] | None = None,
) -> float:
    """Writes frames, each with its history in bars, as a store; the first holds the targets and the splits.

    The scaler comes from the training rows, or from the facts `known`. Returns the rounding error of
    `dtype` (root of the mean square, in standard deviations). Raises `UserError` where no window fits.
    """
    base, history = next(iter(frames.values()))
    closed = {name: bars_closed(base, bars) for name, (bars, _) in frames.items() if bars is not base}
    reaches = [int(np.searchsorted(count, frames[name][1])) + 1 for name, count in closed.items()]
    reach = max(history, *reaches, 0)  # the first row that all frames know enough about
    if not known:
        _check_split(splits, horizon, reach, source)
    border = splits["train"][1] if "train" in splits else len(base)
    facts = known or {
        "kind": "series",
        "columns": base.names,
        "targets": targets,
        "horizon": horizon,
        "frames": [
            {"name": name, "history": bars_of, "step": bars.step}
            | _scale(bars.values[: int(closed[name][border - 1]) if name in closed else border])
            for name, (bars, bars_of) in frames.items()
        ],
    }
    if not known:
        facts["target_mean"] = [[facts["frames"][0]["mean"][column] for column in targets]]
        facts["target_std"] = [[facts["frames"][0]["std"][column] for column in targets]]
    error = 0.0
    with StoreWriter(folder, WORKLOAD) as writer:
        for frame in facts["frames"]:
            bars = frames[frame["name"]][0]
            stored, lost = _stored(bars.values, frame, dtype)
            writer.create(frame["name"], stored.shape, dtype)[...] = stored
            error = max(error, lost)
        for name, count in closed.items():
            writer.create(f"{name}.closed", count.shape, "int64")[...] = count
        writer.create("time", base.times.shape, "int64")[...] = base.times
        writer.facts, writer.splits, writer.source = facts | {"reach": reach}, splits, source or {}
    return error


def write_windows(
    folder: Path,
    features: Array,
    targets: Array,
    splits: dict[str, list[int]],
    dtype: str | None,
    source: dict[str, Any],
) -> float:
    """Takes two arrays of an HDF5 file as they are, or stores them anew as `dtype`, features halved alone.

    One pass checks every value and learns the scaler from the training rows. Returns the rounding error
    as `write_series` does. Raises `UserError` that names the row of a value that is not finite.
    """
    _check_split(splits, 1, 0, source)
    scales = [_checked(array, splits["train"][1]) for array in (features, targets)]
    facts = {
        "kind": "windows",
        "columns": [str(column) for column in range(features.shape[2])],
        "targets": None,
        "horizon": targets.shape[1],
        "frames": [{"name": "features", "history": features.shape[1], "step": 1, **scales[0]}],
        "target_mean": [[value] for value in scales[1]["mean"]],
        "target_std": [[value] for value in scales[1]["std"]],
    }
    error = 0.0
    with StoreWriter(folder, WORKLOAD) as writer:
        if dtype is None:
            writer.refer("features", features)
            writer.refer("targets", targets)
        else:
            new = writer.create("features", features.shape, dtype)
            for first, values in _blocks(features, "storing"):
                new[first : first + len(values)], lost = _stored(values, scales[0], dtype)
                error = max(error, lost)
            writer.create("targets", targets.shape, "float32")[...] = targets.read(0, targets.shape[0])
        writer.facts, writer.splits, writer.source = facts, splits, source
    return error


def _check_split(splits: dict[str, list[int]], horizon: int, reach: int, source: Any) -> None:
    """Raises `UserError` where nothing can train or validate: before a store that is there is replaced."""
    train, validation, *_ = (max(b - horizon - max(a, reach) + 1, 0) for a, b in splits.values())
    if not (train and validation):
        what = f"{train} training and {validation} validation windows fit into the split"
        raise UserError(what, f"--split {source['split']}", "give it more rows, or take a smaller --history")


def _blocks(array: Array, title: str) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of the whole array, with a progress bar."""
    rows = max(BLOCK_BYTES // array.row_bytes, 1)
    for first in tqdm(range(0, array.shape[0], rows), f"{title} {array.name}", disable=None):
        yield first, array.read(first, min(first + rows, array.shape[0]))


def _checked(array: Array, border: int) -> dict[str, list[float]]:
    """The scaler of the first `border` rows, by last axis, after a look at every value."""
    total: Any = 0
    squares: Any = 0
    origin = np.float64(array.read(0, 1)).reshape(-1, array.shape[-1])[0]
    low = high = np.zeros_like(origin)
    for first, values in _blocks(array, "checking"):
        if not np.isfinite(values).all():
            row = first + int(np.argwhere(~np.isfinite(values))[0, 0])
            raise UserError("a value is not finite", array.where(row, 0), "mend it, or leave the row out")
        if first < border:
            shifted = values[: border - first].reshape(-1, array.shape[-1]) - origin
            total, squares = total + shifted.sum(0), squares + (shifted**2).sum(0)
            low, high = np.minimum(low, shifted.min(0)), np.maximum(high, shifted.max(0))
    count = max(border * int(np.prod(array.shape[1:-1])), 1)
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    constant = (low == high) | (spread < np.finfo(np.float32).tiny)
    return {"mean": (origin + mean).tolist(), "std": np.where(constant, 1.0, spread).tolist()}


def _scale(values: np.ndarray) -> dict[str, list[float]]:
    """Mean and standard deviation by column; 1 for a constant column."""
    values = values.astype(np.float64)
    spread = values.std(0)
    constant = (values.max(0) == values.min(0)) | (spread < np.finfo(np.float32).tiny)
    mean = np.where(constant, values[0], values.mean(0))
    return {"mean": mean.tolist(), "std": np.where(constant, 1.0, spread).tolist()}


def _stored(values: np.ndarray, scale: dict[str, Any], dtype: str) -> tuple[np.ndarray, float]:
    """Values as they are stored, halves standardised; and what that costs, in standard deviations."""
    if dtype == "float32":
        return values.astype(np.float32), 0.0
    standardised = torch.from_numpy((values - np.array(scale["mean"])) / np.array(scale["std"]))
    halves = standardised.to(getattr(torch, dtype))
    if halves.isinf().any():
        where = f"row {int(halves.isinf().nonzero()[0, 0]) + 1}"
        raise UserError(f"a value is too large for {dtype}", where, "leave --dtype out, or use bfloat16")
    error = float((halves.double() - standardised).square().mean().sqrt())
    return halves.view(torch.int16).numpy().view("float16" if dtype == "float16" else "uint16"), error


# --- what one reaches without a model


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `r2`: 1 − squared error ÷ variance of the split's targets, both in standard deviations."""
    variance = float(_targets(store, split).var(0).mean())
    known = variance > 0 and "mse" in metrics
    return {**metrics, "r2": 1 - metrics["mse"] / variance} if known else metrics


def _targets(store: Store, split: str) -> np.ndarray:
    """(rows, G) or (N, H) standardised targets of a split."""
    facts, (first, last) = store.facts, store.splits[split]
    name = facts["frames"][0]["name"] if facts["kind"] == "series" else "targets"
    values = _standardised(store, name, first, last)
    return values[:, facts["targets"]] if facts["kind"] == "series" else values


def _standardised(store: Store, name: str, first: int, last: int) -> np.ndarray:
    """Rows of an array in standard deviations, float64."""
    facts, array = store.facts, store.arrays[name]
    values = torch.from_numpy(np.array(array.read(first, last)))
    if array.dtype in ("float16", "bfloat16"):
        return values.view(getattr(torch, array.dtype)).double().numpy()
    if name == "targets":
        mean, std = (np.array(facts[key])[:, 0] for key in ("target_mean", "target_std"))
    else:
        frame = next(frame for frame in facts["frames"] if frame["name"] == name)
        mean, std = np.array(frame["mean"]), np.array(frame["std"])
    return (values.double().numpy() - mean) / std


def baselines(store: Store, settings: Any, split: str) -> dict[str, dict[str, float]]:
    """Repeating the last value, and the best linear map of the history (less its last value), shared by
    all targets; of stored windows the mean of the training targets, and a linear map of the last row."""
    if not len(Samples(store, settings, split)):
        return {}
    name = "repeat_last" if store.facts["kind"] == "series" else "mean"
    solution = _linear(store, settings)
    sums = {name: np.zeros(4), "linear": np.zeros(4)}
    count, scale = 0, np.array(store.facts["target_std"])
    for inputs, target in _examples(store, settings, split):
        count += target.size
        for row, forecast in ((name, np.zeros(1)), ("linear", np.einsum("bgt,th->bhg", inputs, solution))):
            error = target - forecast
            parts = (error**2, abs(error), (error * scale) ** 2, abs(error * scale))
            sums[row] += [part.sum() for part in parts]
    names = ("mse", "mae", "mse_original", "mae_original")
    return {
        row: finish(dict(zip(names, (total / count).tolist(), strict=True)), store, split)
        for row, total in sums.items()
    }


def _linear(store: Store, settings: Any) -> np.ndarray:
    """(inputs, H) least squares over the training windows, with a trace of ridge for columns that repeat."""
    left: Any = 0
    right: Any = 0
    for inputs, target in _examples(store, settings, "train"):
        left = left + np.einsum("bgt,bgs->ts", inputs, inputs)
        right = right + np.einsum("bgt,bhg->th", inputs, target)
    ridge = 1e-6 * np.trace(left) / len(left) + np.finfo(np.float32).tiny
    return np.linalg.solve(left + ridge * np.eye(len(left)), right)


def _examples(store: Store, settings: Any, split: str) -> Any:
    """Inputs (B, G, T) and targets (B, H, G) in standard deviations, batch by batch."""
    samples, facts = Samples(store, settings, split), store.facts
    for start in range(0, len(samples), WINDOWS_AT_ONCE):
        first = samples.first + start
        count = min(WINDOWS_AT_ONCE, len(samples) - start)
        if facts["kind"] == "windows":
            last_row = _standardised(store, "features", first, first + count)[:, -1]
            ones = np.ones((count, 1))
            target = _standardised(store, "targets", first, first + count)[:, :, None]
            yield np.concatenate([last_row, ones], 1)[:, None, :], target
            continue
        base, horizon = facts["frames"][0], facts["horizon"]
        history = base["history"]
        rows = _standardised(store, base["name"], first - history, first + count + horizon - 1)
        windows = np.lib.stride_tricks.sliding_window_view(rows[:, facts["targets"]], history + horizon, 0)
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
    frames = {"H1": (series, 48), "H4": (resample(series, 4 * 3600, {}), 24)}
    splits = {"train": [0, 14_000], "validation": [14_000, 17_000], "test": [17_000, 20_000]}
    write_series(folder, frames, splits, [0, 1, 2], horizon=12, source={"kind": "synthetic"})
