"""Write images as equal rows.

The prepared dataset has these arrays, of N images:
* `image` (N, H, W, C) uint8; or with `--keep encoded`, `bytes` of all files and `offset` (N + 1,)
* `target` (N,) int64, the number of the class; or (N, K) uint8, one for each label that is present
* `name` (N,): the path of the image, or its row in a table or an array

These are the metadata:
* `shape` [H, W, C], `resize`, `classes`, `multilabel`
* the number of training `images`, and the `counts` of each class among them
* `mean` and `std` (C,) of their pixels, from 0 to 255
* `whitening`, the covariance (4 · C, 4 · C) of their patches of 2 × 2 pixels, (C, 2, 2) each
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.inputs import kind_of
from ..engine.loading.store import StoreWriter
from .decoding import GREY, file_of, open_image, to_pixels
from .labels import Splits
from .sources import Source, shown

BLOCK_BYTES = 16 << 20  # of the images that are in memory at a time
WHITENED = 5_000  # training images whose patches are measured
SAMPLE = 1_000  # images that decide about size and color
FRAMES = "images with several frames, of which only the first one counts"
DEEP = "images of 16 bits, which become 8: stretch dark ones to 16 bits before"
DAMAGED = "damaged images left out"
Facts = dict[str, Any]
Notes = dict[str, list[str]]
"""Images, by what is said about them."""


def common_shape(source: Source, size: int) -> list[int]:
    """Return the height, width and channels of the rows; they are grey if all images are.

    size: 0 stands for the median of the images' smaller sides, at most 224; arrays keep theirs.
    """
    sides = []
    modes = set()
    for number in np.linspace(0, len(source) - 1, min(len(source), SAMPLE)).astype(int):
        with suppress(Exception):  # `decoded` reports it
            image = open_image(source.items[number])
            sides.append(min(image.size))
            modes.add(image.mode)
    channels = 1 if modes <= GREY else 3
    if size == 0 and isinstance(source.items[0], np.ndarray):
        return [*source.items[0].shape[:2], channels]
    size = size or min(int(np.median(sides or [224])), 224)
    return [size, size, channels]


# --- reading


def decoded(
    source: Source, numbers: np.ndarray, facts: Facts, flags: dict[str, Any], notes: Notes
) -> Iterator[tuple[Sequence[int], np.ndarray, Sequence[Any]]]:
    """Yield blocks of images: their numbers, their pixels (n, H, W, C), and what was decoded.

    Threads decode them: Pillow lets other threads run, so 2 of them are as fast as 2 processes.
    """

    def read(number: int) -> tuple[int, np.ndarray, Any] | None:
        return read_image(source, number, facts, flags, notes)

    size = max(1, BLOCK_BYTES // math.prod(facts["shape"]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in tqdm(range(0, len(numbers), size), "decoding", leave=False, disable=None):
            block = [*filter(None, pool.map(read, numbers[start : start + size].tolist()))]
            if block:
                kept, images, items = zip(*block, strict=True)
                yield kept, np.stack(images), items


def read_image(
    source: Source, number: int, facts: Facts, flags: dict[str, Any], notes: Notes
) -> tuple[int, np.ndarray, Any] | None:
    """Return the number of an image, its pixels (H, W, C), and what was decoded.

    Raises `UserError` for a damaged image; with `--skip-damaged`, return None.
    """
    item = source.items[number]
    try:
        if flags.get("keep") == "encoded":
            item = file_of(item).read()
        image = open_image(item)
        size = f"an image of {image.width:,} × {image.height:,} pixels"
        if image.width * image.height > flags.get("max_pixels", math.inf):
            raise ValueError(f"{size}, more than --max-pixels")
        if min(image.size) < 2:
            raise ValueError(size)
        if getattr(image, "is_animated", False) and image.format != "MPO":
            notes[FRAMES].append(source.names[number])
        if image.mode[0] == "I":
            notes[DEEP].append(source.names[number])
        return number, to_pixels(image, facts["shape"], facts["resize"]), item
    except Exception as error:  # Pillow raises any class for a damaged file
        what = damage(error, item, shown(source.names[number]))
        if not flags.get("skip_damaged"):
            raise UserError(what, "", "replace or remove it, or add --skip-damaged") from error
        notes[DAMAGED].append(what)
        return None


def damage(error: Exception, item: Any, name: str) -> str:
    """Return what is wrong with an image, and its name."""
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    if isinstance(error, UnidentifiedImageError):
        reason = "of no format that Pillow knows"
        try:
            kind_of(Path(name), file_of(item), "an image")
        except UserError as known:
            return str(known)
    return f"cannot read the image ({reason}): {name}"


# --- writing


class Pixels:
    """Adds up the training pixels: for their scale, and for the covariance of their patches."""

    def __init__(self, channels: int):
        self.histogram = np.zeros((channels, 256), np.int64)
        self.images = 0
        self.patches = 0
        self.total = np.zeros(4 * channels)
        self.products = np.zeros((4 * channels, 4 * channels))

    def add(self, images: np.ndarray) -> None:
        """Add images (n, H, W, C)."""
        for counts, channel in zip(self.histogram, np.moveaxis(images, 3, 0), strict=True):
            counts += np.bincount(channel.ravel(), minlength=256)
        step = 1 + images.shape[1] // 64  # a part of the patches of large images is enough
        for image in images[: max(0, WHITENED - self.images)]:
            # Each patch is (C, 2, 2), as in the weights of a convolution.
            windows = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (0, 1))
            patches = windows[::step, ::step].reshape(-1, len(self.total)).astype(np.float64)
            self.patches += len(patches)
            self.total += patches.sum(0)
            self.products += patches.T @ patches
        self.images += len(images)

    def facts(self) -> Facts:
        """Return the mean and standard deviation of each channel, and the covariance of patches."""
        values = np.arange(256)
        count = self.histogram.sum(1)
        mean = self.histogram @ values / count
        variance = self.histogram @ values**2 / count - mean**2
        mean_patch = self.total / self.patches
        covariance = self.products / self.patches - np.outer(mean_patch, mean_patch)
        return {
            "mean": mean.tolist(),
            "std": np.sqrt(variance).clip(1).tolist(),
            "whitening": covariance.tolist(),
        }


def write(
    writer: StoreWriter,
    source: Source,
    splits: Splits,
    facts: Facts,
    flags: dict[str, Any] | None = None,
) -> tuple[dict[str, list[int]], Notes]:
    """Write the images of each split; add what follows from the training images to `facts`.

    flags: keep, max_pixels and skip_damaged of the command. Returns how many images of each class
    each split has, and what is to be said about some images.
    """
    flags = flags or {}
    notes: Notes = defaultdict(list, source.left_out)
    pixels = Pixels(facts["shape"][2])
    first_of: dict[bytes, Any] = {}
    counts = {}
    kept: list[int] = []
    for split, numbers in splits.items():
        first = len(kept)
        for block, images, items in decoded(source, numbers, facts, flags, notes):
            if flags.get("keep") == "encoded":
                append_files(writer, items)
            else:
                writer.append("image", images)
            if split == "train":
                pixels.add(images)
            names = [source.names[number] for number in block]
            labels = [source.labels[number] if source.labels else [] for number in block]
            note_copies(images, names, labels, split, first_of, notes)
            kept += block
        writer.splits[split] = [first, len(kept)]
        if source.labels:
            labels = [source.labels[number] for number in kept[first:]]
            counts[split] = append_labels(writer, labels, facts)

    if not kept:
        raise UserError("no image can be read", "--input", "check the files")
    writer.append("name", np.array([os.fsencode(source.names[number]) for number in kept]))
    if "train" in splits:
        add_training_facts(facts, pixels, counts["train"])
    writer.facts = facts
    return counts, notes


def add_training_facts(facts: Facts, pixels: Pixels, counts: list[int]) -> None:
    """Add what follows from the training images. Raises `UserError` for a class without one."""
    if 0 in counts:
        name = facts["classes"][counts.index(0)]
        raise UserError("no training image can be read", f"class '{name}'", "check the files")
    facts |= {**pixels.facts(), "counts": counts, "images": pixels.images}


def append_files(writer: StoreWriter, files: Sequence[bytes]) -> None:
    """Write the contents of files behind each other, and where each one ends."""
    if "offset" not in writer.arrays:
        writer.append("offset", np.zeros(1, np.int64))
    last = writer.appended("offset")[-1]
    writer.append("offset", last + np.cumsum([len(file) for file in files]))
    writer.append("bytes", np.frombuffer(b"".join(files), np.uint8))


def append_labels(writer: StoreWriter, labels: list[list[str]], facts: Facts) -> list[int]:
    """Write the labels of images; return how many images each class has."""
    number_of = {name: number for number, name in enumerate(facts["classes"])}
    counts = [0] * len(number_of)
    numbers = []
    for names in labels:
        numbers.append([number_of[name] for name in names])
        for number in numbers[-1]:
            counts[number] += 1
    if facts["multilabel"]:
        present = np.zeros((len(labels), len(counts)), np.uint8)
        for row, ones in zip(present, numbers, strict=True):
            row[ones] = 1
        writer.append("target", present)
    elif labels:
        writer.append("target", np.ravel(numbers))
    return counts


def note_copies(
    images: np.ndarray,
    names: list[str],
    labels: list[list[str]],
    split: str,
    first_of: dict[bytes, Any],
    notes: Notes,
) -> None:
    """Note images whose pixels an earlier one has.

    first_of: name, labels and split of the first image, by the hash of its pixels.
    """
    for image, name, known in zip(images, names, labels, strict=True):
        content = hashlib.blake2b(image.tobytes(), digest_size=8).digest()
        if content not in first_of:
            first_of[content] = (name, known, split)
            continue
        original, before, where = first_of[content]
        what = "copies of another image"
        if where != split:
            what = f"images of {split} are copies of images in {where}"
        if known != before:
            what += ", with other labels"
        notes[what].append(f"{name} = {original}")
