"""The metrics of forecasts: what the model adds up in an evaluation, and what follows from it.

Shapes: `B` windows in a batch, `H` rows to forecast, `G` targets, `S` series.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .engine.interfaces import Batch, Groups
from .engine.loading.store import Store
from .prepare.splits import SPLITS

TINY = 1e-30  # in units of the data, which may be small


class Compared(NamedTuple):
    """Forecasts and the truth, in original units (B, H, G)."""

    forecast: Tensor
    naive: Tensor  # a forecast that repeats the last season
    truth: Tensor
    present: Tensor  # bool: whether there is a truth


# --- in the model


def sum_by_series(compared: Compared, series: Tensor, num_series: int) -> Groups:
    """Return errors, sizes and counts of each window (B, 6, G), to be added up by series."""
    forecast, naive, truth, present = compared
    size = truth.abs()
    columns = [torch.ones_like(size), size]
    for values in (forecast, naive):
        error = (values - truth).abs()
        both = (values.abs() + size).clamp(min=TINY)
        columns += [error, 200 * error / both]
    numbers = torch.stack(columns, 1)  # (B, 6, H, G)
    numbers = torch.where(present[:, None], numbers, 0)
    return Groups(num_series, series, numbers.sum(2))


def sum_by_step(compared: Compared) -> Groups:
    """Return errors and sizes (H, 2), to be added up by row of the forecast."""
    forecast, _, truth, present = compared
    error = (forecast - truth).abs()
    numbers = torch.stack([error, truth.abs()], -1)  # (B, H, G, 2)
    numbers = torch.where(present[..., None], numbers, 0)
    sums = numbers.sum((0, 2))
    steps = torch.arange(len(sums), device=sums.device)
    return Groups(len(sums), steps, sums)


# --- of a whole split


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add the metrics that are no sums over samples, and `baseline_loss`.

    The mean error of a series is divided by its seasonal difference before the split (MASE), or
    each error by the size of forecast and truth (sMAPE, in percent), and then averaged over the
    series. `wape` is the error of all, divided by the size of all.
    """
    of_series = sums["series"].numpy()  # (S, 6, G)
    scale = scales(store, split)
    results = dict(metrics)
    baseline = min(results.pop("loss_of_season"), results.pop("loss_of_mean"))
    _, _, error, percent, naive, naive_percent = mean_errors(of_series)
    results |= over_series("mase", error / scale, naive / scale)
    results |= over_series("smape", percent, naive_percent)
    _, total_size, total_error, *_ = of_series.sum((0, 2))
    results["wape"] = float(total_error / max(total_size, TINY))
    has_truth = of_series[:, 0] > 0
    is_flat = has_truth & np.isnan(scale)
    if is_flat.any():
        results["flat_series"] = int(is_flat.sum())
    results["baseline_loss"] = baseline
    return results


def scales(store: Store, split: str) -> np.ndarray:
    """Return the seasonal differences (S, G), nan for a series that is flat."""
    differences = store.arrays["season"].rows()  # (S, 3, G)
    of_split = differences[:, SPLITS.index(split)]
    return np.where(of_split > 0, of_split, np.nan)


def mean_errors(of_series: np.ndarray) -> np.ndarray:
    """Return the means of what `sum_by_series` adds up (6, S, G), nan without a truth."""
    count = of_series[:, :1]
    means = of_series / np.maximum(count, 1)
    means = np.where(count > 0, means, np.nan)
    return means.swapaxes(0, 1)


def over_series(name: str, values: np.ndarray, naive: np.ndarray) -> dict[str, float]:
    """Return mean and median over the series, and the mean of the seasonal naive forecast."""
    if np.isnan(values).all():
        return {name: math.nan}
    mean = np.nanmean(values)
    median = np.nanmedian(values)
    naive_mean = np.nanmean(naive)
    return {
        name: float(mean),
        f"{name}_median": float(median),
        f"{name}_naive": float(naive_mean),
    }


def details(store: Store, split: str, sums: Batch) -> list[str]:
    """Return lines for `evaluate`: the error by row of the forecast, and the worst series."""
    error, size = sums["step"].numpy().T
    by_step = error / np.maximum(size, TINY)
    last = len(by_step) - 1
    steps = np.linspace(0, last, 6).round().astype(int)
    listed = ", ".join(f"{step + 1}: {by_step[step]:.3g}" for step in np.unique(steps))
    lines = [f"wape by row ahead: {listed}"]
    means = mean_errors(sums["series"].numpy())
    mase = means[2] / scales(store, split)
    worst = np.nan_to_num(mase).max(1)
    order = np.argsort(-worst, kind="stable")
    names = store.facts["series"]
    if len(names) > 1:
        listed = ", ".join(f"{names[number]}: {worst[number]:.3g}" for number in order[:5])
        lines.append(f"worst series by mase: {listed}")
    return lines
