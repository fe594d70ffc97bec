"""The metrics of classes: what the model adds up in an evaluation, and what follows from it.

Shapes: `B` rows in a batch, `K` classes, `S` levels of a score, from low to high.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .engine.interfaces import Batch, Groups
from .engine.monitoring.report import table

LARGEST = 16.0  # the scores are log-odds, cut here: a probability of 1 − 1e-7
LEVELS = 1 << 15  # of the scores of a class: fine enough for areas within 0.001
ALL_LEVELS = 1 << 19  # of all classes together, to bound time and memory
MATRIX = 100  # up to this number of classes, there is a confusion matrix
COLUMNS = 20  # up to this number of classes, a table shows it


# --- in the model


def sum_by_class(logits: Tensor, target: Tensor, present: Tensor) -> dict[str, Groups]:
    """Return counts of rows by true class, by predicted class, by both, and by score."""
    num_classes = logits.shape[1]
    prediction = logits.argmax(1)
    is_hit = present & (prediction == target)
    # A class against all others. A float32 probability near 1 would have too few digits.
    score = logits.double().softmax(1).logit()
    is_class = functional.one_hot(target, num_classes)
    by_group = {
        "hits": Groups(num_classes, target, is_hit),
        "predicted": Groups(num_classes, prediction, present),
        "scores": sum_by_score(score, is_class, present),
    }
    if num_classes <= MATRIX:
        pair = target * num_classes + prediction
        by_group["matrix"] = Groups(num_classes**2, pair, present)
    return by_group


def sum_by_score(score: Tensor, is_class: Tensor, present: Tensor) -> Groups:
    """Return a histogram of scores for each class (K · S, 2): of its rows, and of the others.

    score: log-odds (B, K). is_class: 0 or 1, (B, K).
    """
    num_classes = score.shape[1]
    num_levels = min(LEVELS, ALL_LEVELS // num_classes + 2)
    score = score.nan_to_num().clamp(-LARGEST, LARGEST)
    fraction = (score / LARGEST + 1) / 2
    level = (fraction * (num_levels - 1)).round().long()
    first = torch.arange(num_classes, device=level.device) * num_levels
    group = first + level
    counts = torch.stack([is_class, 1 - is_class], 2)
    counts = counts * present[:, None, None]
    return Groups(num_classes * num_levels, group.flatten(), counts.flatten(0, 1))


# --- of a whole split


def by_class(sums: Batch) -> dict[str, Tensor]:
    """Return the metrics of each class (K,); nan if it has no rows, or has them all.

    `pr_auc` is the average precision.
    """
    hits = sums["hits"]
    predicted = sums["predicted"]
    scores = sums["scores"].unflatten(0, (len(hits), -1))
    right, wrong = scores.flip(1).unbind(2)  # rows of the class, and others, from high to low
    all_right = right.cumsum(1)  # with this score or a higher one
    all_wrong = wrong.cumsum(1)
    rows = all_right[:, -1]
    others = all_wrong[:, -1]
    # A pair of rows with the same score is in the right order by half.
    ordered = (wrong * (all_right - right / 2)).sum(1)
    precision = all_right / (all_right + all_wrong).clamp(min=1)
    average_precision = (right * precision).sum(1) / rows
    return {
        "rows": rows.long(),
        "precision": hits / predicted.clamp(min=1),
        "recall": hits / rows,
        "F1": 2 * hits / (rows + predicted).clamp(min=1),
        "roc_auc": ordered / (rows * others),
        "pr_auc": average_precision,
    }


def overall(sums: Batch, are_labels: bool = False) -> dict[str, float]:
    """Return means over the classes that have rows; of two classes, the areas of the second.

    are_labels: whether a row has any number of classes.
    """
    columns = by_class(sums)
    first = 0
    means = {}
    if not are_labels:
        means["balanced_accuracy"] = columns["recall"].nanmean().item()
        first = int(len(columns["rows"]) == 2)
    for name in ("roc_auc", "pr_auc"):
        means[name] = columns[name][first:].nanmean().item()
    return means


def class_table(sums: Batch, names: list[str]) -> list[str]:
    """Return the lines of a table with the metrics of each class, and the confusion matrix."""
    columns: dict[str, list[Any]] = {"class": names}
    for name, values in by_class(sums).items():
        columns[name] = values.tolist()
    # A row with several labels is one of each class, and any row is of a class or of the others.
    scores = sums["scores"].unflatten(0, (len(names), -1))
    title = f"Classes of all {int(scores[0].sum()):,} rows"
    if len(names) > COLUMNS:
        title += ", too many for a confusion matrix"
    elif "matrix" in sums:
        matrix = sums["matrix"].long().unflatten(0, (len(names), -1))  # by true, predicted class
        for name, counts in zip(names, matrix.T.tolist(), strict=True):
            columns[f"as {name}"] = counts
    lines = list(zip(*columns.values(), strict=True))
    return table(title, tuple(columns), lines)
