"""What a sample is: a row of `features` (T, F) and a row of `targets` (H,) of an HDF5 file.

Replace this module with your own, together with `commands/prepare.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from tqdm import tqdm

from .engine import interfaces
from .engine.errors import UserError
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.hdf5 import (
    Hdf5Array,
    ReversedArray,
    hdf5_arrays,
    missing_values,
    place_in,
    refer,
)
from .engine.loading.store import Store, StoreWriter
from .prepare.scaling import Scaler
from .settings import WORKLOAD, Settings

BLOCK_BYTES = 64 << 20  # read into memory at a time
HALVES = ("float16", "bfloat16")
LARGEST = np.finfo(np.float32).max


class Samples(interfaces.Samples):
    """The windows of one split, in the order of the file. The split `input` has no targets.

    It may also have `host` and `orders` of its base.
    """

    def __init__(self, store: Store, settings: Settings | None, split: str):
        self.store = store
        self.first, last = store.splits[split]
        self.count = last - self.first
        self.names = ("features", "targets") if split != "input" else ("features",)
        self._scale = None
        if store.arrays["features"].dtype in HALVES:
            self._scale = [torch.tensor(store.facts[name]) for name in ("mean", "std")]

    def __len__(self) -> int:
        return self.count

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        span = Spans(np.where(indices < 0, -1, indices + self.first), 1)
        return dict.fromkeys(self.names, span)

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """Return `features` (B, T, F) and `target` (B, H), float32 in original units."""
        features = rows["features"].values[:, 0].float()
        if self._scale:
            # Half-precision features were standardized before they were stored.
            self._scale = [value.to(features.device) for value in self._scale]
            mean, std = self._scale
            features = torch.addcmul(mean, features, std)
        batch = {"features": features}
        if "targets" in rows:
            batch["target"] = rows["targets"].values[:, 0].float()
        return batch


def write_windows(
    folder: Path,
    features: Hdf5Array,
    targets: Hdf5Array,
    splits: dict[str, list[int]],
    dtype: str | None,
    source: dict[str, Any],
) -> None:
    """Refer to two arrays of an HDF5 file, or store them again as `dtype`.

    Only features are stored in half precision. One pass checks every value and computes the scaler
    from the training rows. Raises `UserError` as `check_values` does.
    """
    border = splits["train"][1]
    scale = check_values(features, border)
    target_scale = check_values(targets, border)
    facts = {
        "columns": features.shape[2],
        "history": features.shape[1],
        "horizon": targets.shape[1],
        **scale,
        "target_mean": target_scale["mean"],
        "target_std": target_scale["std"],
    }
    with StoreWriter(folder, WORKLOAD) as writer:
        if dtype is None:
            add_arrays(writer, features, targets)
        else:
            for _, values in _blocks(features, "storing"):
                writer.append("features", _stored(values, scale, dtype), dtype)
            for _, values in _blocks(targets, "storing"):
                writer.append("targets", values.astype(np.float32))
        writer.facts = facts
        writer.splits = splits
        writer.source = source


def add_arrays(writer: StoreWriter, *arrays: Hdf5Array) -> None:
    """Refer to arrays in their file; copy those whose axes are reversed in it, as float32."""
    for array in arrays:
        if isinstance(array, ReversedArray):
            for _, values in _blocks(array, "storing"):
                writer.append(array.name, values.astype(np.float32))
        else:
            refer(writer, **{array.name: array})


def _blocks(array: Hdf5Array, title: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the whole array as (first row, rows), with a progress bar."""
    rows = max(BLOCK_BYTES // array.row_bytes, 1)
    for first in tqdm(range(0, array.shape[0], rows), f"{title} {array.name}", disable=None):
        yield first, array.read(first, min(first + rows, array.shape[0]))


def check_values(array: Hdf5Array, border: int) -> dict[str, list[float]]:
    """Check every value, and return the scale of the first `border` rows along the last axis.

    Raises `UserError` with the row of a value that is missing or not finite, and for a column that
    float32 rounds by much of its standard deviation.
    """
    marks = missing_values(array)
    num_empty = 0
    scaler = Scaler(array.shape[-1])
    rounding = Scaler(array.shape[-1])
    for first, values in _blocks(array, "checking"):
        is_wrong = ~(np.abs(values) <= LARGEST) | np.isin(values, marks)
        if is_wrong.any():
            place = tuple(np.argwhere(is_wrong)[0])
            value = f"the value {values[place]:g} in column {place[-1]}"
            what = f"{value} is missing or not finite as float32"
            raise UserError(what, place_in(array, first + place[0]), "fix it, or remove its row")
        if array.name == "features":
            num_empty += len(values) - int(values.any((1, 2)).sum())
        if first < border:
            rows = values[: border - first].reshape(-1, array.shape[-1])
            scaler.add(rows)
            if not np.can_cast(rows.dtype, np.float32):
                rounding.add(rows - rows.astype(np.float32))
    if num_empty:
        what = f"{num_empty:,} rows of features have no value but 0"
        print(f"note: {what}: remove them if they were never written")
    is_rounded = rounding.squares > 1e-6 * scaler.squares
    if is_rounded.any():
        what = "float32 rounds the values by more than 0.1 % of their standard deviation"
        where = f"{array.path}, {array.name}, column {int(is_rounded.argmax())}"
        raise UserError(what, where, "subtract a constant first")
    mean, std = scaler.scale()
    return {"mean": mean.tolist(), "std": np.where(std > 0, std, 1).tolist()}


def _stored(values: np.ndarray, scale: dict[str, list[float]], dtype: str) -> np.ndarray:
    """Return the values to store, standardized if in half precision; bfloat16 as bits."""
    if dtype == "float32":
        return values.astype(np.float32)
    standardised = torch.from_numpy((values - np.array(scale["mean"])) / np.array(scale["std"]))
    halves = standardised.to(getattr(torch, dtype))
    stored = halves.view(torch.int16).numpy()
    return stored.view("float16" if dtype == "float16" else "uint16")


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add `r2`: 1 − squared error ÷ variance of the split's standardized targets."""
    variance = float(_targets_of(store, split).var(0).mean())
    if variance > 0 and "mse" in metrics:
        return {**metrics, "r2": 1 - metrics["mse"] / variance}
    return metrics


def _targets_of(store: Store, split: str) -> np.ndarray:
    """Return the standardized targets of a split, float64."""
    array = Hdf5Array(**vars(store.arrays["targets"]))
    targets = array.read(*store.splits[split]).astype(np.float64)
    return (targets - store.facts["target_mean"]) / store.facts["target_std"]


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of the mean of the training targets."""
    return float(np.square(_targets_of(store, split)).mean())


def synthesize(folder: Path, settings: Settings) -> None:
    """Write an HDF5 file of 10,000 windows, which are always the same, and refer to it.

    A window has 24 hours of three synthetic columns; its targets are the next 4 hours of the first.
    """
    random = np.random.default_rng(22)
    hours = np.arange(10_027)
    noise = random.standard_normal((3, len(hours)))
    day = 2 * np.pi * hours / 24
    load = 50 + 8 * np.sin(day) + 4 * np.sin(day / 7) + 2 * noise[0]
    warmth = 15 + 6 * np.sin(day - 1) + noise[1]
    price = 0.6 * load + noise[2]
    table = np.stack([load, warmth, price], 1).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(table, 28, 0)
    windows = windows.transpose(0, 2, 1)  # (N, 24 + 4, 3)

    path = folder / "windows.h5"
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["features"] = windows[:, :24]
        file["targets"] = windows[:, 24:, 0]
    arrays = hdf5_arrays(path, "features", "targets")
    splits = {"train": [0, 7973], "validation": [8000, 8973], "test": [9000, 10_000]}
    features = arrays["features"]
    write_windows(folder, features, arrays["targets"], splits, None, {"kind": "synthetic"})
