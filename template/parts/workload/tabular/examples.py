"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it.
Shapes: `N` rows, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .classes import class_table
from .engine.monitoring.report import table
from .prepare.rows import file_rows

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
    order = np.abs(error).argsort()[: -WORST - 1 : -1]
    rows = file_rows(project.store, "validation", batch["index"].numpy())
    columns = {**rows, "truth": target, "prediction": prediction, "error": error}
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


def table_of_rows(title: str, columns: dict[str, np.ndarray]) -> str:
    """Return a table of columns with these names, (N,) each."""
    cells = [values.tolist() for values in columns.values()]
    return "\n".join(table(title, tuple(columns), list(zip(*cells, strict=True))))
