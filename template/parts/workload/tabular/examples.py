"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it.
Shapes: `N` rows, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .classes import class_table
from .engine.monitoring.report import table
from .prepare.rows import prediction_columns

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 2000  # the first ones of the validation split
WORST = 8


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Show predictions against truth and the worst rows; or how well each class is predicted."""
    facts = project.store.facts["target"]
    if "classes" in facts:
        return {"classes": "\n".join(class_table(project.sums, facts["classes"]))}
    target = batch["target"].numpy()
    prediction = predictions["prediction"].numpy()
    error = prediction - target
    size = np.abs(error / facts["std"]).reshape(len(error), -1).max(1)
    order = size.argsort()[: -WORST - 1 : -1]
    values = {
        "index": batch["index"].numpy(),
        "truth": target,
        "prediction": prediction,
        "error": error,
    }
    columns = prediction_columns(project.store, "validation", values)
    cells = [column[order].tolist() for column in columns.values()]
    title = f"Worst of {len(error):,} rows"
    worst = table(title, tuple(columns), list(zip(*cells, strict=True)))
    return {
        "predictions": scatter(target, prediction, facts["name"]),
        "worst": "\n".join(worst),
    }


def scatter(target: np.ndarray, prediction: np.ndarray, names: Any) -> Figure:
    """Plot predictions against truth, both (N,) or (N, G), one plot for each target."""
    truths = np.atleast_2d(target.T)
    guesses = np.atleast_2d(prediction.T)
    names = np.atleast_1d(names)
    figure = Figure(figsize=(6 * len(truths), 5), layout="constrained")
    plots = figure.subplots(1, len(truths), squeeze=False)[0]
    for axes, name, truth, guess in zip(plots, names, truths, guesses, strict=True):
        title = f"{name}: prediction against truth, {len(truth):,} rows"
        axes.set(title=title, xlabel="truth", ylabel="prediction")
        axes.scatter(truth, guess, s=8, alpha=0.35, linewidths=0)
        axes.axline((truth.mean(), truth.mean()), slope=1, color="0.3", linewidth=1)
    return figure
