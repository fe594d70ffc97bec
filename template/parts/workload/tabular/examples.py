"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it.
Shapes: `N` rows, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.log.report import table
from .prepare.rows import file_rows

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.run.project import Project

SAMPLES = 2000  # the first ones of the validation split
WORST = 8
WRITTEN = 20  # up to this number of classes, the matrix shows counts


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Show predictions against truth and the worst rows; or a confusion matrix and the classes."""
    facts = project.store.facts["target"]
    target = batch["target"].numpy()
    prediction = predictions["prediction"].numpy()
    if "classes" in facts:
        names = facts["classes"]
        counts = np.zeros((len(names), len(names)), int)
        np.add.at(counts, (target, prediction), 1)
        return {"confusion": confusion(counts, names), "classes": classes(counts, names)}

    columns = {
        **file_rows(project.store, "validation", batch["index"].numpy()),
        "truth": target,
        "prediction": prediction,
        "error": prediction - target,
    }
    return {
        "predictions": scatter(target, prediction, facts["name"]),
        "worst": worst(columns),
    }


def scatter(target: np.ndarray, prediction: np.ndarray, name: str) -> Figure:
    """Plot predictions against truth, both (N,)."""
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    title = f"{name}: prediction against truth, {len(target):,} rows"
    axes.set(title=title, xlabel="truth", ylabel="prediction")
    axes.scatter(target, prediction, s=8, alpha=0.35, linewidths=0)
    axes.axline((target.mean(), target.mean()), slope=1, color="0.3", linewidth=1)
    return figure


def worst(columns: dict[str, np.ndarray]) -> str:
    """Return a table of the rows with the largest errors, with the given columns (N,)."""
    error = np.abs(columns["error"])
    order = error.argsort()[: -WORST - 1 : -1]
    cells = [values[order].tolist() for values in columns.values()]
    rows = list(zip(*cells, strict=True))
    return "\n".join(table(f"Worst of {len(error):,} rows", tuple(columns), rows))


def classes(counts: np.ndarray, names: list[str]) -> str:
    """Return a table of precision, recall and F1 by class; counts (K, K) as in `confusion`."""
    right = counts.diagonal()
    taken = counts.sum(0)
    true = counts.sum(1)
    precision = right / taken.clip(1)
    recall = right / true.clip(1)
    f1 = 2 * right / (taken + true).clip(1)
    figures = [values.tolist() for values in (precision, recall, f1, true)]
    rows = list(zip(names, *figures, strict=True))
    return "\n".join(table("Classes", ("class", "precision", "recall", "F1", "rows"), rows))


def confusion(counts: np.ndarray, names: list[str]) -> Figure:
    """Plot counts (K, K) by true and predicted class, coloured by fraction of the true class."""
    size = min(3 + 0.45 * len(names), 11)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    fractions = counts / counts.sum(1, keepdims=True).clip(1)
    title = f"confusion matrix, {counts.sum():,} rows"
    axes.set(title=title, xlabel="prediction", ylabel="truth")
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    if len(names) <= WRITTEN:
        for (truth, guess), count in np.ndenumerate(counts):
            axes.text(guess, truth, f"{count:,}", ha="center", va="center", color="C1")
    return figure
