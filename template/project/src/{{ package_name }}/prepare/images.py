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
DEEP = "images of 16 bits, which become 8: stretch dark ones to 16 bits before"
DAMAGED = "damaged images left out"
Facts = dict[str, Any]


def common_shape(source: Source, size: int) -> list[int]:
    """Return the height, width and channels of the rows; they are grey if all images are.

    size: 0 stands for the median of the images' smaller sides, at most 224; arrays keep theirs.
    """
    sides = []
    modes = set()
    count = min(len(source), SAMPLE)
    for number in np.linspace(0, len(source) - 1, count, dtype=int):
        with suppress(Exception):  # `read` reports it
            image = open_image(source.items[number])
            sides.append(min(image.size))
            modes.add(image.mode)
    channels = 1 if modes <= GREY else 3
    if size:
        return [size, size, channels]
    if isinstance(source.items[0], np.ndarray):
        return [*source.items[0].shape[:2], channels]
    median = int(np.median(sides or [224]))
    size = min(median, 224)
    return [size, size, channels]


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


class Moments:
    """Adds up vectors of pixels, for their mean and their covariance. All sums are exact."""

    def __init__(self, size: int):
        self.count = 0
        self.total = np.zeros(size)
        self.products = np.zeros((size, size))

    def add(self, vectors: np.ndarray) -> None:
        """Add vectors (n, size)."""
        vectors = vectors.astype(np.float64)
        self.count += len(vectors)
        self.total += np.ones(len(vectors)) @ vectors  # 6 times as fast as `sum`
        self.products += vectors.T @ vectors

    def mean(self) -> np.ndarray:
        return self.total / self.count

    def covariance(self) -> np.ndarray:
        mean = self.mean()
        return self.products / self.count - np.outer(mean, mean)


class ImageWriter:
    """Decodes the images of a source and writes them, split by split."""

    def __init__(self, writer: StoreWriter, source: Source, facts: Facts, flags: dict[str, Any]):
        """flags: keep, max_pixels and skip_damaged of the command."""
        self.writer = writer
        self.source = source
        self.facts = facts
        self.flags = flags
        self.keeps_files = flags.get("keep") == "encoded"
        channels = facts["shape"][2]
        self.pixels = Moments(channels)  # of training images
        self.patches = Moments(4 * channels)
        self.written: list[int] = []  # numbers of images
        self.num_bytes = 0  # of the files so far
        self.counts: dict[str, list[int]] = {}  # images of each class, by split
        self.notes: dict[str, list[str]] = defaultdict(list, source.left_out)
        for what in (FRAMES, DEEP, DAMAGED):  # the order in which they are printed
            self.notes[what] = []
        self.first_of: dict[bytes, tuple[int, str]] = {}  # image and split, by a hash of pixels

    def write(self, splits: Splits) -> None:
        """Write the images of each split, and the metadata."""
        for split, numbers in splits.items():
            first = len(self.written)
            for number, image, item in self.decoded(numbers):
                if self.keeps_files:
                    self.write_file(item)
                else:
                    self.writer.append("image", image[None])
                if split == "train":
                    self.measure(image)
                self.written.append(number)
                if self.source.labels:
                    self.note_copy(number, image, split)
            self.writer.splits[split] = [first, len(self.written)]
            if self.source.labels:
                self.counts[split] = self.write_labels(self.written[first:])

        if not self.written:
            raise UserError("no image can be read", "--input", "check the files")
        names = [os.fsencode(self.source.names[number]) for number in self.written]
        self.writer.append("name", np.array(names))
        if "train" in splits:
            self.add_training_facts()
        self.writer.facts = self.facts

    def decoded(self, numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray, Any]]:
        """Yield what `read` returns for these images, without those that are left out.

        Threads decode them: Pillow lets other threads run, so 2 of them are as fast as 2 processes.
        """
        size = max(1, BLOCK_BYTES // math.prod(self.facts["shape"]))
        starts = range(0, len(numbers), size)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in tqdm(starts, "decoding", leave=False, disable=None):
                block = numbers[start : start + size].tolist()
                yield from filter(None, pool.map(self.read, block))

    def read(self, number: int) -> tuple[int, np.ndarray, Any] | None:
        """Return the number of an image, its pixels (H, W, C), and what was decoded.

        Raises `UserError` for a damaged image; with `--skip-damaged`, return None.
        """
        item = self.source.items[number]
        name = self.source.names[number]
        try:
            if self.keeps_files:
                item = file_of(item).read()
            image = open_image(item)
            size = f"an image of {image.width:,} × {image.height:,} pixels"
            if image.width * image.height > self.flags.get("max_pixels", math.inf):
                raise ValueError(f"{size}, more than --max-pixels")
            if min(image.size) < 2:
                raise ValueError(size)
            if getattr(image, "is_animated", False) and image.format != "MPO":
                self.notes[FRAMES].append(name)
            if image.mode[0] == "I":
                self.notes[DEEP].append(name)
            pixels = to_pixels(image, self.facts["shape"], self.facts["resize"])
            return number, pixels, item
        except Exception as error:  # Pillow raises any class for a damaged file
            what = damage(error, item, shown(name))
            if not self.flags.get("skip_damaged"):
                raise UserError(what, "", "replace or remove it, or add --skip-damaged") from error
            self.notes[DAMAGED].append(what)
            return None

    def write_file(self, content: bytes) -> None:
        """Write the content of a file behind the others, and where it ends."""
        if self.num_bytes == 0:
            self.writer.append("offset", np.zeros(1, np.int64))
        self.num_bytes += len(content)
        self.writer.append("offset", np.array([self.num_bytes]))
        self.writer.append("bytes", np.frombuffer(content, np.uint8))

    def measure(self, image: np.ndarray) -> None:
        """Add the pixels and the patches of a training image (H, W, C)."""
        channels = image.shape[2]
        self.pixels.add(image.reshape(-1, channels))
        if len(self.written) < WHITENED:
            # Each patch is (C, 2, 2), as in the weights of a convolution.
            windows = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (0, 1))
            step = 1 + len(image) // 64  # a part of the patches of large images is enough
            patches = windows[::step, ::step].reshape(-1, 4 * channels)
            self.patches.add(patches)

    def note_copy(self, number: int, image: np.ndarray, split: str) -> None:
        """Note an image whose pixels an earlier one has."""
        content = hashlib.blake2b(image.tobytes(), digest_size=8).digest()
        first, where = self.first_of.setdefault(content, (number, split))
        if first == number:
            return
        source = self.source
        what = "copies of another image"
        if where != split:
            what = f"images of {split} are copies of images in {where}"
        if source.labels[first] != source.labels[number]:
            what += ", with other labels"
        self.notes[what].append(f"{source.names[number]} = {source.names[first]}")

    def write_labels(self, images: list[int]) -> list[int]:
        """Write the labels of images; return how many images each class has."""
        number_of = {name: number for number, name in enumerate(self.facts["classes"])}
        numbers = []
        for image in images:
            numbers.append([number_of[name] for name in self.source.labels[image]])
        target: np.ndarray
        if self.facts["multilabel"]:
            target = np.zeros((len(images), len(number_of)), np.uint8)
            for row, present in zip(target, numbers, strict=True):
                row[present] = 1
            counts = target.sum(0)
        else:
            target = np.array(numbers, np.int64).ravel()
            counts = np.bincount(target, minlength=len(number_of))
        self.writer.append("target", target)
        return counts.tolist()

    def add_training_facts(self) -> None:
        """Add what follows from the training images. Raises `UserError` for a class without one."""
        counts = self.counts["train"]
        if 0 in counts:
            name = self.facts["classes"][counts.index(0)]
            raise UserError("no training image can be read", f"class '{name}'", "check the files")
        mean = self.pixels.mean()
        std = np.sqrt(self.pixels.covariance().diagonal())
        covariance = self.patches.covariance()
        self.facts |= {
            "mean": mean.tolist(),
            "std": std.clip(1).tolist(),
            "whitening": covariance.tolist(),
            "counts": counts,
            "images": self.writer.splits["train"][1],
        }
