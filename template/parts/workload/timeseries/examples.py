"""Plots of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
targets, the plots show the first. Shapes: `N` windows, `T` rows of history, `H` horizons.
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
    error = np.abs(forecast - truth)
    worst = error.mean(1).argmax()
    ahead = np.arange(1, truth.shape[1] + 1)

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    *windows, by_horizon = figure.subplots(2, 2).flat
    for axes, number in zip(windows, (0, len(truth) // 2, worst), strict=True):
        axes.set(title=f"window {number:,} of the validation", xlabel="rows ahead")
        _plot_history(axes, batch, number, project.store.facts)
        axes.plot(ahead, truth[number], ".-", label="truth")
        axes.plot(ahead, forecast[number], ".-", label="forecast")
    windows[0].legend()
    windows[2].set_title(f"window {worst:,}, the worst of {len(truth):,}")
    by_horizon.plot(ahead, error.mean(0), ".-")
    by_horizon.set(title="mean absolute error by horizon", xlabel="rows ahead", ylim=(0, None))
    return {"forecasts": figure}


def _plot_history(axes: Any, batch: Batch, number: int, facts: dict[str, Any]) -> None:
    """Plot the target before a forecast."""
    history = batch[facts["frames"][0]["name"]][number, :, facts["targets"][0]]
    axes.plot(range(1 - len(history), 1), history, color="0.6", label="history")
