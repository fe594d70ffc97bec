"""Plots of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
targets, the plots show the first. Shapes: `N` windows, `T` rows of history, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.log.report import tidy

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.interfaces import Batch
    from .engine.run.project import Project

SAMPLES = 1000  # the first ones of the validation split


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Plot forecasts against truth, including the worst one, and errors by horizon."""
    truth = _first_target(batch["target"])
    forecast = _first_target(predictions["prediction"])

    # A file of windows does not say which column is the target's history; a series does.
    facts = project.store.facts
    past = np.zeros((len(truth), 0))
    if "frames" in facts:
        past = batch[facts["frames"][0]["name"]][:, :, facts["targets"][0]].numpy()
    return {
        "forecasts": forecasts(truth, forecast, past),
        "errors": errors(truth, forecast, past),
    }


def _first_target(values: Tensor) -> np.ndarray:
    """Return (N, H) from (N, H) or (N, H, targets)."""
    return values.reshape(*values.shape[:2], -1)[..., 0].numpy()


def forecasts(truth: np.ndarray, forecast: np.ndarray, past: np.ndarray) -> Figure:
    """Plot three windows and the worst one; truth and forecast (N, H), past (N, T)."""
    num_windows = len(truth)
    worst = np.abs(forecast - truth).mean(1).argmax()
    ahead = np.arange(1, truth.shape[1] + 1)
    rows_back = np.arange(1 - past.shape[1], 1)
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    windows = (0, num_windows // 3, 2 * num_windows // 3, worst)
    for axes, number in zip(figure.subplots(2, 2).flat, windows, strict=True):
        why = ", the worst" if number == worst else ""
        tidy(axes, f"window {number:,} of the validation{why}", "rows ahead")
        axes.plot(rows_back, past[number], color="0.6", label="history")
        axes.plot(ahead, truth[number], ".-", color="0.15", label="truth")
        axes.plot(ahead, forecast[number], ".-", color="C1", label="forecast")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def errors(truth: np.ndarray, forecast: np.ndarray, past: np.ndarray) -> Figure:
    """Plot the error by horizon, next to the error of repeating the last value."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    ahead = np.arange(1, truth.shape[1] + 1)
    tidy(axes, f"mean absolute error by horizon, {len(truth):,} windows", "rows ahead")
    axes.plot(ahead, np.abs(forecast - truth).mean(0), ".-", color="C1", label="forecast")
    if past.size:
        last_value = np.abs(past[:, -1:] - truth).mean(0)
        axes.plot(ahead, last_value, "--", color="0.5", label="last value repeated")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return figure
