"""Which classes there are, and which image is in which split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.errors import UserError
from .sources import FOLDERS, Source
from .splits import SPLITS

Splits = dict[str, np.ndarray]  # numbers of images


def describe(source: Source, train: np.ndarray, shape: list[int], resize: str) -> dict[str, Any]:
    """Return the metadata that a model is built from, as far as labels tell it.

    train: the numbers of the training images. Raises `UserError` for classes that cannot be
    learned.
    """
    images_of = defaultdict(list)
    for image, labels in zip(source.names, source.labels, strict=True):
        for name in labels:
            images_of[name].append(image)
    in_training = {name for number in train for name in source.labels[number]}
    spellings: dict[str, str] = {}
    for name, images in sorted(images_of.items()):
        other = spellings.setdefault(name.casefold(), name)
        if other != name:
            what = f"two classes differ only in case: '{other}' and '{name}'"
            raise UserError(what, images[0], "give both one name, or different names")
        if len(images) == 1 and not source.multilabel:
            remedy = "add images of it, or remove the class"
            raise UserError(f"class '{name}' has only one image", images[0], remedy)
        if name not in in_training:
            remedy = "add training images of it, or remove its images; or try another --seed"
            raise UserError(f"class '{name}' is in no training image", images[0], remedy)
    if len(images_of) < 2 and not source.multilabel:
        raise UserError("all images have one class", source.names[0], FOLDERS)

    classes = sorted(images_of)
    if source.numbered:
        classes.sort(key=lambda name: (len(name) * name.isdecimal(), name))
    facts = {"shape": shape, "resize": resize, "classes": classes}
    return {**facts, "multilabel": source.multilabel}


def label_texts(targets: np.ndarray, classes: list[str]) -> list[str]:
    """Return the class of each image (N,), or its labels (N, K), as one text."""
    if targets.ndim == 1:
        return [classes[number] for number in targets]
    return ["|".join(np.array(classes)[row.astype(bool)]) for row in targets]


def split_images(source: Source, sizes: Callable[[int], list[int]], seed: int) -> Splits:
    """Return the images of each split, shuffled, with each class in its fraction.

    Splits of the source stay. If it has no validation split, training images become one. sizes:
    returns how many of so many images each split has.
    """
    given = np.array(source.splits or [""] * len(source))
    kinds = ["|".join([split, *names]) for split, names in zip(given, source.labels, strict=True)]
    group = np.arange(len(source))
    if source.groups:
        group = np.unique(source.groups, return_inverse=True)[1]
    order = stratified(np.unique(kinds, return_inverse=True)[1], group, seed)
    if not source.splits:
        parts = cut_between_groups(order, group, sizes(len(order)))
    else:
        parts = [order[given[order] == name] for name in SPLITS]
        if not len(parts[1]):
            num_train = len(parts[0])
            num_validation = sizes(num_train)[1]
            parts[:2] = cut_between_groups(
                parts[0], group, [num_train - num_validation, num_validation]
            )
    if not len(parts[0]) or not len(parts[1]):
        remedy = "name a split `train`, or see --split and --group"
        raise UserError("no images are left for training or validation", "--input", remedy)
    return dict(zip(SPLITS, parts, strict=True))


def stratified(kind: np.ndarray, group: np.ndarray, seed: int) -> np.ndarray:
    """Return a shuffle of images, in whose every part each kind has about its fraction.

    kind, group: of each image (N,). A group stays together, at the place of its first image.
    """
    order = np.random.default_rng(abs(seed)).permutation(len(kind))
    order = order[kind[order].argsort(kind="stable")]
    ordered = kind[order]
    number = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # within its kind
    place = np.empty(len(order))
    place[order] = (number + 0.5) / np.bincount(ordered)[ordered]
    first = np.unique(group, return_index=True)[1]
    return np.lexsort((group, place[first][group]))


def cut_between_groups(order: np.ndarray, group: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Cut images into parts of about these sizes, between groups."""
    borders = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    places = [borders[np.abs(borders - place).argmin()] for place in np.cumsum(sizes)]
    return np.split(order, places)[: len(sizes)]
