"""Plots of forecasts, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it. With several
targets, the plots show the first. Shapes: `N` windows, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 1000  # the first ones of the validation split


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Plot forecasts against truth, including the worst one, and the error by horizon."""
    truth = _first_target(batch["target"])
    forecast = _first_target(predictions["prediction"])
    error = np.abs(forecast - truth)
    worst = error.mean(1).argmax()
    ahead = np.arange(1, truth.shape[1] + 1)

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    *windows, by_horizon = figure.subplots(2, 2).flat
    for axes, number in zip(windows, (0, len(truth) // 2, worst), strict=True):
        axes.set(title=f"window {number:,} of the validation", xlabel="rows ahead")
        axes.plot(ahead, truth[number], ".-", label="truth")
        axes.plot(ahead, forecast[number], ".-", label="forecast")
    windows[0].legend()
    windows[2].set_title(f"window {worst:,}, the worst of {len(truth):,}")
    by_horizon.plot(ahead, error.mean(0), ".-")
    by_horizon.set(title="mean absolute error by horizon", xlabel="rows ahead", ylim=(0, None))
    return {"forecasts": figure}


def _first_target(values: Tensor) -> np.ndarray:
    """Return (N, H) from (N, H) or (N, H, targets)."""
    return values.reshape(*values.shape[:2], -1)[..., 0].numpy()
