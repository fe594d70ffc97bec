"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. hooks/examples.py calls it.
Shapes: `N` images, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .engine.monitoring.report import table

if TYPE_CHECKING:
    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 2000  # the first ones of the validation split
SHOWN = 24
MATRIX = 20  # up to this number of classes, the confusion matrix is shown


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Show the images whose labels the model finds least likely, and how well it knows classes."""
    facts = project.store.facts
    target = batch["target"].numpy()
    prediction = predictions["prediction"].numpy()
    probability = predictions["probability"].numpy()
    if facts["multilabel"]:
        surprise = -np.log(np.where(target, probability, 1 - probability)).sum(1)
    else:
        surprise = -probability[np.arange(len(target)), target]
    worst = (-surprise).argsort()[:SHOWN]
    titles = [title(facts["classes"], target[row], prediction[row]) for row in worst]
    shown = {"worst": gallery(batch["image"][worst].permute(0, 2, 3, 1).numpy(), titles)}
    if not facts["multilabel"]:
        shown["classes"] = confusion(target, prediction, facts["classes"])
    return shown


def title(classes: list[str], target: np.ndarray, prediction: np.ndarray) -> str:
    """Return what an image is, and what it is taken for."""
    names = []
    for value in (target, prediction):
        numbers = np.flatnonzero(value) if np.ndim(value) else [value]
        names.append(", ".join(classes[number] for number in numbers))
    return f"{names[0]}\nas {names[1]}"


def gallery(images: np.ndarray, titles: list[str]) -> Figure:
    """Draw images (n, H, W, C) with their titles."""
    rows = -(-len(images) // 8)
    figure = Figure(figsize=(10, 1.6 * rows), layout="constrained")
    for axes in figure.subplots(rows, 8, squeeze=False).flat:
        axes.axis("off")
    for axes, image, text in zip(figure.axes, images, titles, strict=False):
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(text, fontsize=7)
    return figure


def confusion(target: np.ndarray, prediction: np.ndarray, names: list[str]) -> str:
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
        "images": true,
    }
    if len(names) <= MATRIX:
        for name, count in zip(names, counts.T, strict=True):
            columns[f"as {name}"] = count
    cells = [values.tolist() for values in columns.values()]
    return "\n".join(table("Classes", tuple(columns), list(zip(*cells, strict=True))))
