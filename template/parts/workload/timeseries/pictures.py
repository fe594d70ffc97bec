"""What a person wants to see of the model at an evaluation, for the report and the tracker. Yours to change.

`pictures` gives figures, and texts in Markdown, by name; hooks/pictures.py says when. Of several targets they
show the first. Shapes: `N` windows, `T` rows of history, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.report import tidy

if TYPE_CHECKING:
    from .assemble import Project
    from .engine.seams import Batch

SAMPLES = 1000  # of the validation split, from its beginning


def pictures(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Forecasts against truth, the worst two as well, and errors by horizon."""
    facts, both = project.store.facts, (batch["target"], predictions["prediction"])
    truth, forecast = (x.reshape(*x.shape[:2], -1)[..., 0].numpy() for x in both)
    numbers, past, name = batch["index"].numpy(), np.zeros((len(truth), 0)), "target 0"
    if "frames" in facts:  # a series, and no windows of which nobody knows where the target's history is
        column = facts["targets"][0]
        past, name = batch[facts["frames"][0]["name"]][:, :, column].numpy(), facts["columns"][column]
    return {
        "forecasts": forecasts(truth, forecast, past, name, numbers),
        "errors": errors(truth, forecast, past),
    }


def forecasts(
    truth: np.ndarray, forecast: np.ndarray, past: np.ndarray, name: str, numbers: np.ndarray
) -> Figure:
    """Two windows and the two worst ones: truth and forecast (N, H), the history (N, T)."""
    worst = np.abs(forecast - truth).mean(1).argsort()[::-1]
    apart = worst[np.abs(worst - worst[0]) >= truth.shape[1]]
    chosen = {"": [0, len(truth) // 2], ", among the worst": [worst[0], *apart[:1]]}
    figure, ahead = Figure(figsize=(11, 5.6), layout="constrained"), np.arange(1, truth.shape[1] + 1)
    windows = [(n, why) for why, found in chosen.items() for n in found]
    for axes, (n, why) in zip(figure.subplots(2, 2).flat, windows, strict=False):
        tidy(axes, f"{name}, window {numbers[n]:,}{why}", "rows ahead")
        axes.locator_params(axis="x", integer=True)
        if past.size:
            axes.plot(np.arange(1 - past.shape[1], 1), past[n], color="0.6", label="history")
        axes.plot(ahead, truth[n], ".-", color="0.15", label="truth")
        axes.plot(ahead, forecast[n], ".-", color="C1", label="forecast")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def errors(truth: np.ndarray, forecast: np.ndarray, past: np.ndarray) -> Figure:
    """How the error grows with the horizon, beside the last value's, and forecasts over truth."""
    figure, ahead = Figure(figsize=(11, 4), layout="constrained"), np.arange(1, truth.shape[1] + 1)
    left, right = figure.subplots(1, 2)
    tidy(left, f"mean absolute error by horizon, {len(truth):,} windows", "rows ahead")
    left.plot(ahead, np.abs(forecast - truth).mean(0), ".-", color="C1", label="forecast")
    if past.size:
        left.plot(ahead, np.abs(past[:, -1:] - truth).mean(0), "--", color="0.5", label="last value repeated")
    left.set_ylim(bottom=0)
    left.locator_params(axis="x", integer=True)
    left.legend(frameon=False, fontsize=8)
    tidy(right, "forecast against truth", "truth", "forecast")
    right.scatter(truth[:, 0], forecast[:, 0], s=8, alpha=0.4, linewidths=0, label=f"{ahead[0]} ahead")
    right.scatter(truth[:, -1], forecast[:, -1], s=8, alpha=0.4, linewidths=0, label=f"{ahead[-1]} ahead")
    right.axline((truth.mean(), truth.mean()), slope=1, color="0.3", linewidth=1)
    right.legend(frameon=False, fontsize=8)
    return figure
