"""Which classes there are, and which image is in which split."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unicodedata import normalize

import numpy as np

from ..engine.errors import UserError
from .sources import FOLDERS, Source
from .splits import SPLITS, split_sizes

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
        plain = " ".join(normalize("NFC", name).casefold().split())
        other = spellings.setdefault(plain, name)
        if other != name:
            what = f"two classes differ only in case or form: {other!a} and {name!a}"
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
    return {
        "shape": shape,
        "resize": resize,
        "classes": classes,
        "multilabel": source.multilabel,
    }


def label_texts(targets: np.ndarray, classes: list[str]) -> list[str]:
    """Return the class of each image (N,), or its labels (N, K), as one text."""
    if targets.ndim == 1:
        return [classes[number] for number in targets]
    texts = []
    for row in targets:
        names = [classes[number] for number in np.flatnonzero(row)]
        texts.append("|".join(names))
    return texts


def split_images(source: Source, split: str, seed: int) -> Splits:
    """Return the images of each split, shuffled, with each class in its fraction.

    Splits of the source stay. If it has no validation split, training images become one.
    split: the text in `--split`.
    """
    given = np.array(source.splits or [""] * len(source))
    kinds = []
    for name, labels in zip(given, source.labels, strict=True):
        kinds.append("|".join([name, *labels]))
    group = np.arange(len(source))
    if source.groups:
        _, group = np.unique(source.groups, return_inverse=True)
    order = stratified(kinds, group, seed)
    if not source.splits:
        sizes = split_sizes(split, len(order))
        train, validation, test = cut_between_groups(order, group, sizes)
    else:
        train, validation, test = [order[given[order] == name] for name in SPLITS]
        if not len(validation):
            num_validation = split_sizes(split, len(train))[1]
            sizes = [len(train) - num_validation, num_validation]
            train, validation = cut_between_groups(train, group, sizes)
    if not len(train) or not len(validation):
        remedy = "name a split `train`, or see --split and --group"
        raise UserError("no images are left for training or validation", "--input", remedy)
    return {"train": train, "validation": validation, "test": test}


def stratified(kinds: list[str], group: np.ndarray, seed: int) -> np.ndarray:
    """Return a shuffle of images, in whose every part each kind has about its fraction.

    kinds, group: of each image (N,). A group stays together, at the place of its first image.
    """
    _, kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    random = np.random.default_rng(abs(seed))
    order = random.permutation(len(kind))
    order = order[kind[order].argsort(kind="stable")]
    ordered = kind[order]
    first = np.searchsorted(ordered, ordered)  # image of its kind
    number = np.arange(len(order)) - first
    place = np.empty(len(order))
    place[order] = (number + 0.5) / counts[ordered]
    _, first_of_group = np.unique(group, return_index=True)
    place_of_group = place[first_of_group]
    return np.lexsort((group, place_of_group[group]))


def cut_between_groups(order: np.ndarray, group: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Cut images into parts of about these sizes."""
    steps = np.diff(group[order], prepend=-1, append=-1)
    borders = np.flatnonzero(steps)
    ends = []
    for place in np.cumsum(sizes):
        nearest = np.abs(borders - place).argmin()
        ends.append(borders[nearest])
    return np.split(order, ends)[:-1]
