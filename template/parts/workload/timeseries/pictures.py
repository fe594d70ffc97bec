"""Plots of the model at an evaluation, for the report and the tracker. Yours to change.

`pictures` gives figures, and texts in Markdown, by name; hooks/pictures.py says when. Of several
targets they show the first. Shapes: `N` windows, `T` rows of history, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.report import tidy

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.project import Project
    from .engine.seams import Batch

SAMPLES = 1000  # of the validation split, from its beginning


def pictures(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Forecasts against truth, the worst two as well, and errors by horizon."""
    truth = _first_target(batch["target"])
    forecast = _first_target(predictions["prediction"])
    numbers = batch["index"].numpy()

    # Windows of a file do not say where the target's history is; a series does.
    facts = project.store.facts
    past = np.zeros((len(truth), 0))
    name = "target 0"
    if "frames" in facts:
        column = facts["targets"][0]
        past = batch[facts["frames"][0]["name"]][:, :, column].numpy()
        name = facts["columns"][column]
    return {
        "forecasts": forecasts(truth, forecast, past, name, numbers),
        "errors": errors(truth, forecast, past),
    }


def _first_target(values: Tensor) -> np.ndarray:
    """(N, H) of (N, H) or (N, H, targets)."""
    return values.reshape(*values.shape[:2], -1)[..., 0].numpy()


def forecasts(
    truth: np.ndarray, forecast: np.ndarray, past: np.ndarray, name: str, numbers: np.ndarray
) -> Figure:
    """Two windows and the two worst ones: truth and forecast (N, H), the history (N, T)."""
    num_windows, horizon = truth.shape
    # The second worst window is apart from the first: they share no row of the horizon.
    worst = np.abs(forecast - truth).mean(1).argsort()[::-1]
    is_apart = np.abs(worst - worst[0]) >= horizon
    windows = [(0, ""), (num_windows // 2, "")]
    for number in (worst[0], *worst[is_apart][:1]):
        windows.append((number, ", among the worst"))

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    ahead = np.arange(1, horizon + 1)
    for axes, (number, why) in zip(figure.subplots(2, 2).flat, windows, strict=False):
        tidy(axes, f"{name}, window {numbers[number]:,}{why}", "rows ahead")
        axes.locator_params(axis="x", integer=True)
        if past.size:
            rows_back = np.arange(1 - past.shape[1], 1)
            axes.plot(rows_back, past[number], color="0.6", label="history")
        axes.plot(ahead, truth[number], ".-", color="0.15", label="truth")
        axes.plot(ahead, forecast[number], ".-", color="C1", label="forecast")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def errors(truth: np.ndarray, forecast: np.ndarray, past: np.ndarray) -> Figure:
    """How the error grows with the horizon, next to the last value's, and forecasts over truth."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    ahead = np.arange(1, truth.shape[1] + 1)
    left, right = figure.subplots(1, 2)
    tidy(left, f"mean absolute error by horizon, {len(truth):,} windows", "rows ahead")
    error = np.abs(forecast - truth).mean(0)
    left.plot(ahead, error, ".-", color="C1", label="forecast")
    if past.size:
        error = np.abs(past[:, -1:] - truth).mean(0)
        left.plot(ahead, error, "--", color="0.5", label="last value repeated")
    left.set_ylim(bottom=0)
    left.locator_params(axis="x", integer=True)
    left.legend(frameon=False, fontsize=8)

    tidy(right, "forecast against truth", "truth", "forecast")
    for place in (0, -1):
        label = f"{ahead[place]} ahead"
        x = truth[:, place]
        right.scatter(x, forecast[:, place], s=8, alpha=0.4, linewidths=0, label=label)
    right.axline((truth.mean(), truth.mean()), slope=1, color="0.3", linewidth=1)
    right.legend(frameon=False, fontsize=8)
    return figure
