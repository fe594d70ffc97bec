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
from collections import Counter, defaultdict
from collections.abc import Iterator
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
) -> Iterator[list[tuple[int, np.ndarray, Any]]]:
    """Yield blocks of images: their numbers, their pixels (H, W, C), and what was decoded.

    Threads decode them: Pillow lets other threads run, so 2 of them are as fast as 2 processes.
    Raises `UserError` for a damaged image, or leaves it out with `--skip-damaged`.
    """

    def read(number: int) -> tuple[int, np.ndarray, Any] | None:
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
            return number, to_pixels(image, facts["shape"], facts["resize"]), item
        except Exception as error:  # Pillow raises any class for a damaged file
            what = damage(error, item, shown(source.names[number]))
            if not flags.get("skip_damaged"):
                raise UserError(what, "", "replace or remove it, or add --skip-damaged") from error
            notes[DAMAGED].append(what)
            return None

    size = max(1, BLOCK_BYTES // math.prod(facts["shape"]))
    starts = tqdm(range(0, len(numbers), size), "decoding", leave=False, disable=None)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in starts:
            images = pool.map(read, numbers[start : start + size].tolist())
            block = [image for image in images if image is not None]
            if block:
                yield block


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
    originals: dict[bytes, tuple[str, str]] = {}  # names and splits, by hashes of pixels
    lengths = [0]  # of files
    counts = {}
    width = max(len(os.fsencode(name)) for name in source.names)
    row = 0
    for split, numbers in splits.items():
        first = row
        labels = []
        for block in decoded(source, numbers, facts, flags, notes):
            kept, decoded_images, items = zip(*block, strict=True)
            images = np.stack(decoded_images)
            names = [source.names[number] for number in kept]
            writer.append("name", np.array([os.fsencode(name) for name in names], f"S{width}"))
            if flags.get("keep") == "encoded":
                lengths += map(len, items)
                writer.append("bytes", np.frombuffer(b"".join(items), np.uint8))
            else:
                writer.append("image", images)
            if source.labels:
                block_labels = [source.labels[number] for number in kept]
                writer.append("target", targets(block_labels, facts))
                labels += block_labels
            if split == "train":
                pixels.add(images)
            note_copies(images, names, split, originals, notes)
            row += len(kept)
        writer.splits[split] = [first, row]
        count_of = Counter(name for names in labels for name in names)
        counts[split] = [count_of[name] for name in facts["classes"]]

    if lengths[1:]:
        writer.append("offset", np.cumsum(lengths))
    if not row:
        raise UserError("no image can be read", "--input", "check the files")
    if "train" in splits:
        if 0 in counts["train"]:
            name = facts["classes"][counts["train"].index(0)]
            raise UserError("no training image can be read", f"class '{name}'", "check the files")
        facts |= {**pixels.facts(), "counts": counts["train"], "images": pixels.images}
    writer.facts = facts
    return counts, notes


def targets(labels: list[list[str]], facts: Facts) -> np.ndarray:
    """Return the class of each image (n,) int64, or which labels it has (n, K) uint8."""
    classes = facts["classes"]
    if facts["multilabel"]:
        return np.array([[name in names for name in classes] for names in labels], np.uint8)
    number_of = {name: number for number, name in enumerate(classes)}
    return np.array([number_of[name] for (name,) in labels])


def note_copies(
    images: np.ndarray,
    names: list[str],
    split: str,
    originals: dict[bytes, tuple[str, str]],
    notes: Notes,
) -> None:
    """Note images whose pixels an earlier one has."""
    for image, name in zip(images, names, strict=True):
        content = hashlib.blake2b(image.tobytes(), digest_size=8).digest()
        original, where = originals.setdefault(content, (name, split))
        if original != name:
            what = "copies of another image"
            if where != split:
                what = f"images of {split} are copies of images in {where}"
            notes[what].append(f"{name} = {original}")
