"""What a sample is: a row of `features` (T, F) and a row of `targets` (H,), often of a file that somebody
else wrote. Replace it with your own, together with `commands/prepare.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from tqdm import tqdm

from .engine.errors import UserError
from .engine.hdf5 import hdf5_arrays, place_in, refer
from .engine.seams import Batch, Rows, Spans
from .engine.store import Array, Store, StoreWriter
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .settings import Sections

WINDOWS_AT_ONCE = 1024
BLOCK_BYTES = 64 << 20  # in memory at a time
HALVES = ("float16", "bfloat16")


class Samples:
    """The windows of one split, in the order of the file. A split named `input` has no targets.

    See `engine.seams.Samples`.
    """

    title = "target 0"  # of a picture

    def __init__(self, store: Store, settings: Sections | None, split: str):
        self.store, (self.first, last) = store, store.splits[split]
        self.count = last - self.first
        self.names = ("features", "targets") if split != "input" else ("features",)
        self._scale = None
        if store.arrays["features"].dtype in HALVES:
            self._scale = [torch.tensor(store.facts[name]) for name in ("mean", "std")]

    def __len__(self) -> int:
        return self.count

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        present = indices >= 0
        rows = np.where(present, indices + self.first, 0)
        return dict.fromkeys(self.names, Spans(rows, present.astype(np.int64), 1))

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`features` (B, T, F) and `target` (B, H), float32 in original units."""
        features = rows["features"].values[:, 0].float()
        if self._scale:  # halves were standardised before they were stored
            mean, std = self._scale = [scale.to(features.device) for scale in self._scale]
            features = torch.addcmul(mean, features, std)
        batch = {"features": features}
        if "targets" in rows:
            batch["target"] = rows["targets"].values[:, 0].float()
        return batch

    def history(self, index: int) -> np.ndarray | None:
        """(T,) before the first target, for a picture; None, as nobody knows which feature that is."""
        return None


def write_windows(
    folder: Path,
    features: Array,
    targets: Array,
    splits: dict[str, list[int]],
    dtype: str | None,
    source: dict[str, Any],
) -> float:
    """Takes two arrays of an HDF5 file as they are, or stores them anew as `dtype`, features halved alone.

    One pass checks every value and learns the scaler from the training rows. Returns the rounding error of
    `dtype` (root of the mean square, in standard deviations). Raises `UserError` that names the row of a
    value that is not finite.
    """
    scale, target_scale = (_checked(array, splits["train"][1]) for array in (features, targets))
    facts = {"columns": features.shape[2], "history": features.shape[1], "horizon": targets.shape[1], **scale}
    facts |= {f"target_{name}": values for name, values in target_scale.items()}
    error = 0.0
    with StoreWriter(folder, WORKLOAD) as writer:
        if dtype is None:
            refer(writer, features=features, targets=targets)
        else:
            new = writer.create("features", features.shape, dtype)
            for first, values in _blocks(features, "storing"):
                new[first : first + len(values)], lost = _stored(values, scale, dtype)
                error = max(error, lost)
            writer.create("targets", targets.shape, "float32")[...] = targets.read(0, targets.shape[0])
        writer.facts, writer.splits, writer.source = facts, splits, source
    return error


def _blocks(array: Array, title: str) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of the whole array, with a progress bar."""
    rows = max(BLOCK_BYTES // array.row_bytes, 1)
    for first in tqdm(range(0, array.shape[0], rows), f"{title} {array.name}", disable=None):
        yield first, array.read(first, min(first + rows, array.shape[0]))


def _checked(array: Array, border: int) -> dict[str, list[float]]:
    """The scaler of the first `border` rows, by last axis, after a look at every value."""
    origin = np.float64(array.read(0, 1)).reshape(-1, array.shape[-1])[0]
    total, squares, low, high = np.zeros((4, len(origin)))
    for first, values in _blocks(array, "checking"):
        if not np.isfinite(values).all():
            row = first + int(np.argwhere(~np.isfinite(values))[0, 0])
            raise UserError("a value is not finite", place_in(array, row), "mend it, or leave the row out")
        if first < border:
            shifted = values[: border - first].reshape(-1, array.shape[-1]) - origin
            total, squares = total + shifted.sum(0), squares + (shifted**2).sum(0)
            low, high = np.minimum(low, shifted.min(0)), np.maximum(high, shifted.max(0))
    count = max(border * int(np.prod(array.shape[1:-1])), 1)
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    constant = (low == high) | (spread < np.finfo(np.float32).tiny)
    if constant.any():
        columns = ", ".join(map(str, np.flatnonzero(constant)))
        print(f"note: one value in all training rows, which tells nothing: {columns} of {array.name}")
    return {"mean": (origin + mean).tolist(), "std": np.where(constant, 1.0, spread).tolist()}


def _stored(values: np.ndarray, scale: dict[str, Any], dtype: str) -> tuple[np.ndarray, float]:
    """Values as they are stored, halves standardised; and what that costs, in standard deviations."""
    if dtype == "float32":
        return values.astype(np.float32), 0.0
    standardised = torch.from_numpy((values - np.array(scale["mean"])) / np.array(scale["std"]))
    halves = standardised.to(getattr(torch, dtype))
    if halves.isinf().any():
        raise UserError(f"a value is too large for {dtype}", "--dtype", "leave --dtype out, or use bfloat16")
    error = float((halves.double() - standardised).square().mean().sqrt())
    return halves.view(torch.int16).numpy().view("float16" if dtype == "float16" else "uint16"), error


# --- what one reaches without a model


def finish(metrics: dict[str, float], store: Store, split: str) -> dict[str, float]:
    """Adds `r2`: 1 − squared error ÷ variance of the split's targets, both in standard deviations."""
    variance = float(_standardised(store, "targets", *store.splits[split]).var(0).mean())
    known = variance > 0 and "mse" in metrics
    return {**metrics, "r2": 1 - metrics["mse"] / variance} if known else metrics


def _standardised(store: Store, name: str, first: int, last: int) -> np.ndarray:
    """Rows of an array in standard deviations, float64."""
    array = store.arrays[name]
    values = torch.from_numpy(np.array(array.read(first, last)))
    if array.dtype in HALVES:
        return values.view(getattr(torch, array.dtype)).double().numpy()
    prefix = "target_" if name == "targets" else ""
    mean, std = (np.array(store.facts[prefix + part]) for part in ("mean", "std"))
    return (values.double().numpy() - mean) / std


def baselines(store: Store, settings: Sections, split: str) -> dict[str, dict[str, float]]:
    """The mean of the training targets, and the best linear map of a window's last row."""
    first, last = store.splits[split]
    if first == last:
        return {}
    solution, scale = _linear(store), np.array(store.facts["target_std"])
    sums = {"mean": np.zeros(4), "linear": np.zeros(4)}
    for inputs, target in _examples(store, split):
        for row, forecast in (("mean", np.zeros(1)), ("linear", inputs @ solution)):
            error = target - forecast
            parts = (error**2, abs(error), (error * scale) ** 2, abs(error * scale))
            sums[row] += [part.sum() for part in parts]
    names, count = ("mse", "mae", "mse_original", "mae_original"), (last - first) * len(scale)
    return {
        row: finish(dict(zip(names, (total / count).tolist(), strict=True)), store, split)
        for row, total in sums.items()
    }


def naive(store: Store, split: str) -> float:
    """The loss of the mean of the training targets."""
    return float(np.square(_standardised(store, "targets", *store.splits[split])).mean())


def _linear(store: Store) -> np.ndarray:
    """(F + 1, H) least squares over the training windows, with a trace of ridge for columns that repeat."""
    size = store.facts["columns"] + 1
    left, right = np.zeros((size, size)), np.zeros((size, store.facts["horizon"]))
    for inputs, target in _examples(store, "train"):
        left += inputs.T @ inputs
        right += inputs.T @ target
    ridge = 1e-6 * np.trace(left) / size + np.finfo(np.float32).tiny
    return np.linalg.solve(left + ridge * np.eye(size), right)


def _examples(store: Store, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Last rows and a one (B, F + 1), and targets (B, H), in standard deviations."""
    begin, end = store.splits[split]
    for first in range(begin, end, WINDOWS_AT_ONCE):
        last = min(first + WINDOWS_AT_ONCE, end)
        rows = _standardised(store, "features", first, last)[:, -1]
        yield np.pad(rows, ((0, 0), (0, 1)), constant_values=1), _standardised(store, "targets", first, last)


def synthesize(folder: Path, settings: Sections) -> None:
    """Writes an HDF5 file of 10,000 windows, always the same, and takes it as it is: 24 hours of three
    made-up columns, with the next 4 hours of the first one."""
    random, hours = np.random.default_rng(22), np.arange(10_027)
    noise = random.standard_normal((3, len(hours)))
    day = 2 * np.pi * hours / 24
    load = 50 + 8 * np.sin(day) + 4 * np.sin(day / 7) + 2 * noise[0]
    table = np.stack([load, 15 + 6 * np.sin(day - 1) + noise[1], 0.6 * load + noise[2]], 1).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(table, 28, 0).transpose(0, 2, 1)  # (N, 24 + 4, 3)
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "windows.h5", "w") as file:
        file["features"], file["targets"] = windows[:, :24], windows[:, 24:, 0]
    arrays = hdf5_arrays(folder / "windows.h5", "features", "targets")
    splits = {"train": [0, 7973], "validation": [8000, 8973], "test": [9000, 10_000]}
    write_windows(folder, arrays["features"], arrays["targets"], splits, None, {"kind": "synthetic"})
