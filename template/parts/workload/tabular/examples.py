"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it.
Shapes: `N` rows, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.monitoring.report import table
from .prepare.rows import file_rows

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 2000  # the first ones of the validation split
WORST = 8
MATRIX = 20  # up to this number of classes, the confusion matrix is shown


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Show predictions against truth and the worst rows; or how well each class is predicted."""
    facts = project.store.facts["target"]
    target = batch["target"].numpy()
    prediction = predictions["prediction"].numpy()
    if "classes" in facts:
        return {"classes": classes(target, prediction, facts["classes"])}

    error = prediction - target
    order = np.abs(error).argsort()[: -WORST - 1 : -1]
    rows = file_rows(project.store, "validation", batch["index"].numpy())
    columns = {"row": rows, "truth": target, "prediction": prediction, "error": error}
    worst = {name: values[order] for name, values in columns.items()}
    return {
        "predictions": scatter(target, prediction, facts["name"]),
        "worst": table_of_rows(f"Worst of {len(error):,} rows", worst),
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


def classes(target: np.ndarray, prediction: np.ndarray, names: list[str]) -> str:
    """Return precision, recall and F1 of each class, and the confusion matrix."""
    counts = np.zeros((len(names), len(names)), int)  # (K, K), by true and predicted class
    np.add.at(counts, (target, prediction), 1)
    right = counts.diagonal()
    predicted = counts.sum(0)
    true = counts.sum(1)
    columns = {
        "class": np.array(names),
        "precision": right / predicted.clip(1),
        "recall": right / true.clip(1),
        "F1": 2 * right / (predicted + true).clip(1),
        "rows": true,
    }
    title = f"Classes of the first {len(target):,} rows"
    if len(names) <= MATRIX:
        for name, count in zip(names, counts.T, strict=True):
            columns[f"as {name}"] = count
    else:
        title += f", without the confusion matrix of more than {MATRIX} classes"
    return table_of_rows(title, columns)


def table_of_rows(title: str, columns: dict[str, np.ndarray]) -> str:
    """Return a table of columns with these names, (N,) each."""
    cells = [values.tolist() for values in columns.values()]
    return "\n".join(table(title, tuple(columns), list(zip(*cells, strict=True))))
