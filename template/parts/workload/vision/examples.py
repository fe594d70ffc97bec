"""Plots and tables of predictions, for the report and the tracker. Change them as you like.

`examples` returns figures, and texts in Markdown, by name. `before_training` does so once, at the
start of a run. hooks/examples.py calls both.

Shapes: `N` images, `K` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .classes import class_table
from .engine.loading.rows import deliver, gather, mapped

if TYPE_CHECKING:
    from torch import Tensor

    from .engine.interfaces import Batch
    from .engine.training.project import Project

SAMPLES = 500  # the first ones of the validation split
WORST = 24
CHANGED = 8  # training images, before and after the augmentation
EPOCHS = 3
IN_A_ROW = 8
LETTERS = 18  # of the names of classes in a title


def examples(batch: Batch, predictions: Batch, project: Project) -> dict[str, Figure | str]:
    """Show the images whose classes the model finds least likely, and how well it knows each."""
    classes = project.store.facts["classes"]
    truth = chosen(batch["target"].numpy(), len(classes))
    prediction = chosen(predictions["prediction"].numpy(), len(classes))
    probability = predictions["probability"].numpy()
    right = np.where(truth, probability, 1 - probability)
    worst = np.log(right.clip(1e-9)).sum(1).argsort()[:WORST]
    titles = []
    for row in worst:
        confidence = probability[row].max()
        title = f"{named(classes, truth[row])}\nas {named(classes, prediction[row])}"
        titles.append(f"{title} {confidence:.0%}")
    shown: dict[str, Figure | str] = {"worst": sheet(batch["image"][worst], titles)}
    shown["classes"] = "\n".join(class_table(project.sums, classes))
    if "matrix" in project.sums:
        shown["confusion"] = confusion(project.sums["matrix"].numpy(), classes)
    return shown


def before_training(project: Project) -> dict[str, Figure | str]:
    """Show what the augmentation makes of the first training images, in the first epochs."""
    images = list(first_images(project, epoch=0, training=False))
    titles = ["original"] * CHANGED
    for epoch in range(EPOCHS):
        images += first_images(project, epoch, training=True)
        titles += [f"epoch {epoch + 1}"] * CHANGED
    return {"augmentation": sheet(images, titles)}


def first_images(project: Project, epoch: int, training: bool) -> Tensor:
    """Return the first training images, as the model sees them in an epoch."""
    store = project.store
    samples = project.dataset.Samples(store, project.settings, "train")
    samples.training = training
    indices = np.arange(CHANGED) % len(samples)
    rows = {}
    for name, spans in samples.spans(indices, epoch).items():
        rows[name] = gather(mapped(store.arrays[name]), spans)
    if samples.host is not None:
        rows = samples.host(rows, indices, epoch)
    return deliver(samples, rows, indices, epoch, rows["image"].values.device)["image"]


def chosen(classes: np.ndarray, count: int) -> np.ndarray:
    """Return which classes are meant, (N, K) bool, for their numbers (N,) or for labels (N, K)."""
    if classes.ndim == 2:
        return classes.astype(bool)
    return classes[:, None] == np.arange(count)


def named(classes: list[str], is_chosen: np.ndarray) -> str:
    """Return the names of the chosen classes (K,)."""
    text = ", ".join(np.array(classes)[is_chosen])
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def sheet(images: Tensor | list[Tensor], titles: list[str]) -> Figure:
    """Draw images (C, H, W) of pixels from 0 to 255 with their titles."""
    count = -(-len(images) // IN_A_ROW)
    figure = Figure(figsize=(10, 1.7 * count), layout="constrained")
    grid = figure.subplots(count, IN_A_ROW, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, title in zip(grid.flat, images, titles, strict=False):
        pixels = image.permute(1, 2, 0).byte().numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
        axes.set_title(title, fontsize=7)
    return figure


def confusion(counts: np.ndarray, classes: list[str]) -> Figure:
    """Plot how often each class is taken for each other, as fractions of the true class."""
    matrix = counts.reshape(len(classes), -1)
    fractions = matrix / matrix.sum(1, keepdims=True).clip(1)
    side = 4 + len(classes) / 10
    size = 8 if len(classes) < 30 else 5
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    axes.set(title="Fraction of each true class", xlabel="prediction", ylabel="truth")
    drawn = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, shrink=0.6)
    places = range(len(classes))
    axes.set_xticks(places, classes, rotation=90, fontsize=size)
    axes.set_yticks(places, classes, fontsize=size)
    return figure
