"""What a sample is: a window of history in each time frame, and the rows that follow.

Replace it with your own, together with `commands/prepare.py`.

The store has an array for each time frame, (rows, C), oldest first; the first frame has the
targets. For each further frame `<name>.closed` says how many of its bars have closed at each row of
the first: no window sees a bar before its end.
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

    A window belongs to the split that holds all its targets. Training windows have their history in
    the training rows as well; later histories reach back over the border. A split named `input` has
    no targets: its last window forecasts what comes after the data.
    """

    training = False  # set by the loader's maker

    def __init__(self, store: Store, settings: Sections | None, split: str):
        facts = store.facts
        first, last = store.splits[split]
        self.store = store
        self.base, *self.others = facts["frames"]
        self.targets = facts["targets"]
        stride = settings.data.stride if settings else 0
        self.orders = {"lanes": partial(Lanes, stride=stride or self.base["history"])}
        self.title = facts["columns"][self.targets[0]]  # of a plot
        self.horizon = facts["horizon"] if split != "input" else 0
        self.first = max(first, facts["reach"])  # of the first target
        self.count = max(last - self.horizon - self.first + 1, 0)
        self._closed = []
        for frame in self.others:
            self._closed.append(store.arrays[f"{frame['name']}.closed"].rows())
        self._scales = {}
        for frame in facts["frames"]:
            scale = [torch.tensor(frame["mean"]), torch.tensor(frame["std"])]
            self._scales[frame["name"]] = scale

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
        values = {name: self._original(name, array.values) for name, array in rows.items()}
        name = self.base["name"]
        history = self.base["history"]
        both = values[name]
        batch = values | {name: both[:, :history]}
        if self.horizon:
            batch["target"] = both[:, history:, self.targets]
        return batch

    def history(self, index: int) -> np.ndarray:
        """(T,) of the first target before a window, for a plot."""
        facts = self.store.facts
        row = self.first + index
        values = _targets(self.store, row - self.base["history"], row)[:, 0]
        return values * facts["target_std"][0][0] + facts["target_mean"][0][0]

    def _original(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """float32; halves were standardised before they were stored."""
        if values.dtype == torch.float32:
            return values
        scale = [value.to(values.device) for value in self._scales[name]]
        self._scales[name] = scale  # copied once
        mean, std = scale
        return torch.addcmul(mean, values.float(), std)


def _window(ends: np.ndarray, present: np.ndarray, history: int, horizon: int) -> Spans:
    width = history + horizon
    starts = np.where(present, ends - history, 0)
    return Spans(starts, np.where(present, width, 0), width)


# --- the facts and the store


def describe(
    frames: Frames, splits: Splits, *, targets: list[int], horizon: int, where: str = ""
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The facts that a model is built from, and a line for each column.

    Scalers are of the training rows alone. The first frame has the targets (columns) and the splits
    (rows). Raises `UserError`, with `where`, where no window fits into training or validation.
    """
    base, _ = next(iter(frames.values()))
    reach = _reach(frames)
    counts = []
    for first, last in splits.values():
        counts.append(max(last - horizon - max(first, reach) + 1, 0))
    train, validation, *_ = counts
    if not (train and validation):
        what = f"{train} training and {validation} validation windows fit into the split"
        raise UserError(what, where, "give it more rows, or take a smaller --history")

    scaled: list[dict[str, Any]] = []
    columns: list[tuple[str, ...]] = []
    for name, (bars, history) in frames.items():
        scaler = _scaler(bars, base, splits["train"][1])
        mean, std = scaler.scale()
        frame = {
            "name": name,
            "history": history,
            "step": bars.step,
            "mean": mean.tolist(),
            "std": std.tolist(),
        }
        scaled.append(frame)
        if not columns:
            columns = scaler.columns(base.names)

    facts = {
        "columns": base.names,
        "targets": targets,
        "horizon": horizon,
        "frames": scaled,
        "target_mean": [[scaled[0]["mean"][place] for place in targets]],
        "target_std": [[scaled[0]["std"][place] for place in targets]],
    }
    return facts, columns


def _scaler(bars: Series, base: Series, border: int) -> Scaler:
    """The scaler of the bars that have closed before row `border` of the first frame."""
    scaler = Scaler(len(base.names))
    last_time = base.times[border - 1 : border]
    num_closed = int(_closed(bars, base, last_time)[0])
    for _, values in bars.blocks(num_closed):
        scaler.add(values)
    return scaler


def _closed(bars: Series, base: Series, times: np.ndarray) -> np.ndarray:
    """How many bars have closed at rows of the first frame: these are known when they close."""
    return np.searchsorted(bars.times, times + base.step - bars.step, "right")


def _reach(frames: Frames) -> int:
    """The first row that all frames know enough about."""
    base, _ = next(iter(frames.values()))
    firsts = []
    for bars, history in frames.values():
        # The bar that completes the history, and the row at which it closes.
        ends = bars.times[history - 1 : history] + bars.step - base.step
        if len(ends):
            firsts.append(int(np.searchsorted(base.times, ends)[0]))
        else:
            firsts.append(len(base))
    return max(firsts) + 1


def write_series(
    writer: StoreWriter, frames: Frames, splits: Splits, facts: dict[str, Any], dtype: str
) -> float:
    """Write frames with facts that `describe` has found, in these data or in earlier ones.

    Returns the rounding error of `dtype` (root of the mean square, in standard deviations).
    """
    base, _ = next(iter(frames.values()))
    rounding = 0.0
    for frame in facts["frames"]:
        bars, _ = frames[frame["name"]]
        squares = _write_bars(writer, bars, frame, dtype)
        rounding = max(rounding, (squares / bars.values.size) ** 0.5)
    for frame in facts["frames"][1:]:
        bars, _ = frames[frame["name"]]
        for times, _ in base.blocks():
            writer.append(f"{frame['name']}.closed", _closed(bars, base, times))
    for times, _ in base.blocks():
        writer.append("time", times)
    writer.facts = facts | {"reach": _reach(frames)}
    writer.splits = splits
    return rounding


def _write_bars(writer: StoreWriter, bars: Series, frame: dict[str, Any], dtype: str) -> float:
    """Write the values of a frame. Return the sum of the squares of rounding errors."""
    mean = np.array(frame["mean"])
    std = np.array(frame["std"])
    squares = 0.0
    first = 0  # row of the block

    def where(row: int, column: int) -> str:
        return f"row {first + row + 1}"

    for _, values in bars.blocks():
        stored, error = halves(values, mean, std, dtype, where)
        writer.append(frame["name"], stored, dtype)
        squares += error
        first += len(values)
    return squares


# --- what one reaches without a model


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Add `r2`: 1 − squared error ÷ variance of the split's targets, in standard deviations."""
    variance = float(_targets(store, *store.splits[split]).var(0).mean())
    if variance > 0 and "mse" in metrics:
        return {**metrics, "r2": 1 - metrics["mse"] / variance}
    return metrics


def _targets(store: Store, first: int, last: int) -> np.ndarray:
    """(rows, G) float64 target columns in standard deviations."""
    frame = store.facts["frames"][0]
    array = store.arrays[frame["name"]]
    values = torch.from_numpy(np.array(array.read(first, last)))
    if array.dtype in HALVES:
        standardised = values.view(getattr(torch, array.dtype)).double().numpy()
    else:
        mean = np.array(frame["mean"])
        std = np.array(frame["std"])
        standardised = (values.double().numpy() - mean) / std
    return standardised[:, store.facts["targets"]]


def baselines(store: Store, settings: Sections, split: str) -> dict[str, dict[str, float]]:
    """Repeating the last value, and a linear map of the history.

    The map is the best one of the history less its last value, shared by all targets.
    """
    if not len(Samples(store, settings, split)):
        return {}
    solution = _linear(store)
    scale = np.array(store.facts["target_std"])
    sums = {"repeat_last": np.zeros(len(METRICS)), "linear": np.zeros(len(METRICS))}
    count = 0
    for inputs, target in _examples(store, split):
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
    """Sums of `METRICS`."""
    original = error * scale
    return [
        (error**2).sum(),
        abs(error).sum(),
        (original**2).sum(),
        abs(original).sum(),
    ]


def naive(store: Store, split: str) -> float:
    """The loss of repeating the last value, or of the mean of the training rows if better."""
    samples = Samples(store, None, split)
    first = samples.first
    count = len(samples)
    rows = _targets(store, first - 1, first + count + samples.horizon - 1)
    of_mean = []
    of_last = []
    for ahead in range(1, samples.horizon + 1):
        target = rows[ahead : ahead + count]
        of_mean.append(np.square(target).mean())
        of_last.append(np.square(target - rows[:count]).mean())
    return float(min(np.mean(of_mean), np.mean(of_last)))


def _linear(store: Store) -> np.ndarray:
    """(T + 1, H) least squares over the training windows.

    It has a trace of ridge for columns that repeat.
    """
    size = store.facts["frames"][0]["history"] + 1
    left = np.zeros((size, size))
    right = np.zeros((size, store.facts["horizon"]))
    for inputs, target in _examples(store, "train"):
        left += np.einsum("bgt,bgs->ts", inputs, inputs)
        right += np.einsum("bgt,bhg->th", inputs, target)
    ridge = 1e-6 * np.trace(left) / size + np.finfo(np.float32).tiny
    return np.linalg.solve(left + ridge * np.eye(size), right)


def _examples(store: Store, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Histories and a one (B, G, T + 1), targets (B, H, G).

    Both are in standard deviations from the last value.
    """
    samples = Samples(store, None, split)
    history = store.facts["frames"][0]["history"]
    for start in range(0, len(samples), WINDOWS_AT_ONCE):
        first = samples.first + start
        count = min(WINDOWS_AT_ONCE, len(samples) - start)
        rows = _targets(store, first - history, first + count + samples.horizon - 1)
        windows = np.lib.stride_tricks.sliding_window_view(rows, history + samples.horizon, 0)
        last = windows[:, :, history - 1 : history]  # (B, G, 1)
        inputs = np.concatenate([windows[:, :, :history] - last, np.ones_like(last)], 2)
        target = windows[:, :, history:] - last
        yield inputs, target.transpose(0, 2, 1)


def synthesize(folder: Path, settings: Any) -> None:
    """Write 20,000 hours of three made-up columns: days, weeks and a slow wandering.

    They are always the same.
    """
    random = np.random.default_rng(22)
    hours = np.arange(20_000)
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
    series = Series(["load", "warmth", "price"], midnight + 3600 * hours, values, 3600)

    splits = {"train": [0, 14_000], "validation": [14_000, 17_000], "test": [17_000, 20_000]}
    with StoreWriter(folder, WORKLOAD) as writer:
        bars = resample(writer, "H4", series, 4 * 3600, {})
        frames = {"H1": (series, 48), "H4": (bars, 24)}
        facts, _ = describe(frames, splits, targets=[0, 1, 2], horizon=12)
        write_series(writer, frames, splits, facts, "float32")
        writer.source = {"kind": "synthetic"}
