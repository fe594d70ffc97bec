"""Plots of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
targets, the plots show the first. Shapes: `N` windows, `T` rows of history, `H` rows ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 1000  # the first ones of the validation split


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Plot forecasts against truth, including the worst one, and the error by horizon."""
    truth = batch["target"][:, :, 0].numpy()
    forecast = predictions["prediction"][:, :, 0].numpy()
    target = project.store.facts["targets"][0]
    scale = batch["scale"][:, 1:, target].numpy()
    error = np.abs(forecast - truth) / scale
    of_window = np.nanmean(error, 1)
    worst = np.nan_to_num(of_window).argmax()
    ahead = np.arange(1, truth.shape[1] + 1)

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    *windows, by_horizon = figure.subplots(2, 2).flat
    for axes, number in zip(windows, (0, len(truth) // 2, worst), strict=True):
        _plot_window(axes, batch, predictions, number, project.store.facts)
        axes.plot(ahead, truth[number], ".-", label="truth")
        axes.plot(ahead, forecast[number], ".-", label="forecast")
    windows[0].legend()
    title = windows[2].get_title()
    windows[2].set_title(f"{title}, the worst of {len(truth):,} windows")
    by_horizon.plot(ahead, np.nanmean(error, 0), ".-")
    title = "mean error by horizon, in deviations of the series"
    by_horizon.set(title=title, xlabel="rows ahead", ylim=(0, None))
    return {"forecasts": figure}


def _plot_window(
    axes: Any, batch: Batch, predictions: Batch, number: int, facts: dict[str, Any]
) -> None:
    """Plot the history of a window, and the band between the lowest and the highest quantile."""
    history = batch["rows"][number, :, facts["targets"][0]]
    series = int(batch["series"][number, 0])
    name = facts["series"][series]
    title = f"series {name}" if name else f"window {number:,}"
    axes.set(title=title, xlabel="rows ahead")
    axes.plot(range(1 - len(history), 1), history, color="0.6", label="history")
    bands = [name for name in predictions if name[0] == "q"]
    if bands:
        low = predictions[bands[0]][number, :, 0]
        high = predictions[bands[-1]][number, :, 0]
        label = f"{bands[0]} to {bands[-1]}"
        axes.fill_between(range(1, len(low) + 1), low, high, alpha=0.2, label=label)
