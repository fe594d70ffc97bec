"""Read images of any kind, from folders, tables and arrays, and write them as equal rows.

The prepared dataset has these arrays, of N images:
* `image` (N, H, W, C) uint8; or with `--keep encoded`, `bytes` of all files and `offset` (N + 1,)
* `target` (N,) int64, the number of the class; or (N, K) uint8, one for each label that is present

The metadata have `shape` [H, W, C], `resize`, `classes`, `multilabel`, and of the training split
the number of `images`, the `counts` of each class, and of pixels from 0 to 255 the `mean` and `std`
(C,), and `whitening`, the covariance (4 · C, 4 · C) of patches of 2 × 2 pixels, which are (C, 2, 2)
each.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter
from ..engine.runs import check_input
from .splits import SPLITS

BLOCK = 256  # images in memory at a time
WHITENED = 5_000  # training images whose patches are measured
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLIT_OF = {"train": "train", "val": "validation", "valid": "validation"}
SPLIT_OF |= {"validation": "validation", "test": "test", "t10k": "test"}
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
UNREADABLE = (OSError, ValueError, SyntaxError, TypeError, EOFError, Image.DecompressionBombError)
Facts = dict[str, Any]


@dataclass
class Source:
    """Images that are not read yet: `items` are paths, file contents or arrays."""

    names: Sequence[str]
    items: Sequence[Any]
    labels: list[list[str]] = field(default_factory=list)  # of each image; one is its class
    splits: list[str] = field(default_factory=list)  # of each image, if the source has splits

    def __len__(self) -> int:
        return len(self.items)


# --- what is read


def open_images(path: Path, flags: dict[str, Any]) -> Source:
    """Return the images of a folder, a table, an .npz file, or a folder of IDX files."""
    check_input(path)
    if path.suffix in (".csv", ".parquet"):
        return from_table(path, flags)
    if path.suffix == ".npz":
        return from_arrays(dict(np.load(path)))
    pairs = sorted(path.glob("*-images-idx3-ubyte*"))
    if pairs:
        arrays = {}
        for images in pairs:
            labels = Path(str(images).replace("images-idx3", "labels-idx1"))
            split = images.name.partition("-")[0]
            arrays |= {f"x_{split}": read_idx(images), f"y_{split}": read_idx(labels)}
        return from_arrays(arrays)
    return from_folder(path)


def from_folder(path: Path) -> Source:
    """Return the images below a folder; the folder of an image is its class.

    If all folders at the top are called train, val, validation or test, they are the splits.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise UserError("no images", str(path), f"they end in {', '.join(SUFFIXES)}")
    names = [str(file.relative_to(path)) for file in files]
    labels = [[file.parent.name] for file in files]
    tops = [name.split(os.sep)[0].lower() for name in names]
    splits = [SPLIT_OF[top] for top in tops] if set(tops) <= SPLIT_OF.keys() else []
    return Source(names, files, labels, splits)


def from_table(path: Path, flags: dict[str, Any]) -> Source:
    """Return the images that a CSV or Parquet file names or contains."""
    import pyarrow.csv
    import pyarrow.parquet

    read = pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table
    table = read(path)
    columns = table.column_names
    image = flags["image_column"] or columns[0]
    label = flags["label_column"] or columns[-1]
    for name in (image, label):
        if name not in columns:
            raise UserError(f"no column '{name}'", str(path), f"use one of {', '.join(columns)}")
    items = table[image].to_pylist()
    if isinstance(items[0], dict):  # as Hugging Face stores images
        items = [item["bytes"] for item in items]
    names = [f"{path}, row {row}" for row in range(1, len(items) + 1)]
    if isinstance(items[0], str):
        names = items
        items = [path.parent / item for item in items]
    labels = []
    for cell in table[label].to_pylist():
        cells = cell if isinstance(cell, list) else str(cell).split(flags["separator"])
        labels.append([str(name) for name in cells if name != ""])
    splits = []
    if "split" in columns:
        splits = [SPLIT_OF[name] for name in table["split"].to_pylist()]
    return Source(names, items, labels, splits)


def from_arrays(arrays: dict[str, np.ndarray]) -> Source:
    """Return the images of arrays that are called x, y, or x_train, y_train, x_test, y_test."""
    source = Source([], [])
    for name, images in arrays.items():
        letter, _, split = name.partition("_")
        if letter not in ("x", "images"):
            continue
        numbers = arrays[name.replace(letter, "y" if letter == "x" else "labels", 1)].ravel()
        source.names += [f"{name}[{row}]" for row in range(len(images))]
        source.items += list(images)
        source.labels += [[str(number)] for number in numbers]
        source.splits += [SPLIT_OF[split]] * len(images) if split else []
    if not len(source):
        raise UserError("no images", ", ".join(arrays), "call the arrays x and y")
    return source


def read_idx(path: Path) -> np.ndarray:
    """Read a file of MNIST's format, packed or not."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    sizes = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + sizes.nbytes).reshape(sizes)


# --- one image


def file_of(item: Path | bytes) -> BinaryIO:
    """Return a file with the content of an image."""
    return io.BytesIO(item) if isinstance(item, bytes) else open(item, "rb")


def decode(item: Any, shape: Sequence[int], resize: str = "crop") -> np.ndarray:
    """Return an image (H, W, C) uint8, upright and without transparency.

    item: a path, the content of a file, or an array of pixels. resize: crop, pad or stretch.
    """
    height, width, channels = shape
    if isinstance(item, np.ndarray):
        image = Image.fromarray(item)
    else:
        image = Image.open(file_of(item))
        image.draft(None, (2 * width, 2 * height))  # a large JPEG is decoded at a part of its size
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels")
    if image.mode[0] == "I":  # 16 bits, which `convert` would clip
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        if resize == "crop":
            image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        elif resize == "pad":
            image = ImageOps.pad(image, (width, height), Image.Resampling.BICUBIC)
        else:
            image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2)
    return np.asarray(image).reshape(shape)


def common_shape(source: Source, size: int) -> list[int]:
    """Return the height, width and channels of the rows; they are grey if the first images are.

    size: 0 stands for the smaller side of the first image, at most 224.
    """
    channels = 1
    for item in source.items[:32]:
        image = Image.fromarray(item) if isinstance(item, np.ndarray) else Image.open(file_of(item))
        size = size or min(*image.size, 224)
        if image.mode not in GREY:
            channels = 3
    return [size, size, channels]


# --- the prepared dataset


def blocks(
    source: Source, numbers: np.ndarray, facts: Facts, skip_damaged: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the numbers (n,) and the pixels (n, H, W, C) of images, decoded by several threads.

    Raises `UserError` with the name of a damaged image, or leaves it out.
    """

    def read(number: int) -> np.ndarray | None:
        try:
            return decode(source.items[number], facts["shape"], facts["resize"])
        except UNREADABLE as error:
            if skip_damaged:
                return None
            remedy = "remove it, or add --skip-damaged"
            raise UserError(f"damaged image ({error})", source.names[number], remedy) from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in tqdm(range(0, len(numbers), BLOCK), "decoding", leave=False, disable=None):
            block = numbers[start : start + BLOCK]
            images = list(pool.map(read, block))
            is_read = np.array([image is not None for image in images])
            if is_read.any():
                yield block[is_read], np.stack([image for image in images if image is not None])


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
        for image in images[: max(0, WHITENED - self.images)]:
            # Each patch is (C, 2, 2), as in the weights of a convolution.
            windows = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (0, 1))
            patches = windows.reshape(-1, len(self.total)).astype(np.float64)
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
    splits: dict[str, np.ndarray],
    facts: Facts,
    encoded: bool = False,
    skip_damaged: bool = False,
) -> dict[str, int]:
    """Write the images of each split; return how many are damaged, and how many occur twice.

    Adds what `measure` learns of the training pixels to `facts`, if it has none.
    """
    pixels = Pixels(facts["shape"][2])
    seen: dict[bytes, str] = {}
    counts = {"damaged": 0, "duplicates": 0, "duplicates in two splits": 0}
    first = 0
    if encoded:
        writer.append("offset", np.zeros(1, np.int64))
    for split, numbers in splits.items():
        last = first
        for kept, images in blocks(source, numbers, facts, skip_damaged):
            last += len(kept)
            _append(writer, source, kept, images, facts, encoded)
            for image in images:
                where = seen.setdefault(hashlib.blake2b(image, digest_size=8).digest(), split)
                counts["duplicates in two splits"] += where != split
            if split == "train":
                pixels.add(images)
        counts["damaged"] += len(numbers) - (last - first)
        writer.splits[split] = [first, last]
        first = last
    counts["duplicates"] = first - len(seen)
    if "mean" not in facts:
        facts |= pixels.facts()
    writer.facts = facts
    return counts


def _append(
    writer: StoreWriter,
    source: Source,
    numbers: np.ndarray,
    images: np.ndarray,
    facts: Facts,
    encoded: bool,
) -> None:
    if encoded:
        contents = [file_of(source.items[number]).read() for number in numbers]
        writer.append("bytes", np.frombuffer(b"".join(contents), np.uint8))
        end = writer.appended("offset")[-1]
        writer.append("offset", end + np.cumsum([len(content) for content in contents]))
    else:
        writer.append("image", images)
    if not source.labels:
        return
    codes = {name: code for code, name in enumerate(facts["classes"])}
    if facts["multilabel"]:
        targets = np.zeros((len(numbers), len(codes)), np.uint8)
        for target, number in zip(targets, numbers, strict=True):
            target[[codes[name] for name in source.labels[number]]] = 1
    else:
        targets = np.array([codes[source.labels[number][0]] for number in numbers])
    writer.append("target", targets)


def describe(source: Source, train: np.ndarray, shape: list[int], resize: str) -> Facts:
    """Return the metadata that a model is built from. Classes come from the training images.

    Raises `UserError` for a class that no training image has.
    """
    counts: dict[str, int] = {}
    for number in train:
        for name in source.labels[number]:
            counts[name] = counts.get(name, 0) + 1
    # Sort numbers by size: 2 comes before 10.
    classes = sorted(counts, key=lambda name: (len(name) * name.isdecimal(), name))
    for name, labels in zip(source.names, source.labels, strict=True):
        unknown = set(labels) - counts.keys()
        if unknown:
            what = f"class '{min(unknown)}' is in no training image"
            raise UserError(what, name, "remove its images, or try another --split or --seed")
    multilabel = any(len(labels) != 1 for labels in source.labels)
    if len(classes) < 2 and not multilabel:
        what = "all training images have one class"
        raise UserError(what, source.names[0], "put each class in a folder, or see --label-column")
    return {
        "shape": shape,
        "resize": resize,
        "classes": classes,
        "counts": [counts[name] for name in classes],
        "images": len(train),
        "multilabel": multilabel,
    }


def stratified(kinds: np.ndarray, seed: int) -> np.ndarray:
    """Return a shuffle of `kinds` (N,) whose every part has each kind in its fraction."""
    order = np.random.default_rng(seed).permutation(len(kinds))
    places = np.empty(len(kinds))
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds[order] == kind)
        places[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return order[np.argsort(places, kind="stable")]


def split_images(
    source: Source, sizes: Callable[[int], list[int]], seed: int
) -> dict[str, np.ndarray]:
    """Return the numbers of the images of each split, shuffled and stratified.

    Splits of the source stay. If it has no validation split, the training images give one.
    """
    order = stratified(np.array([",".join(labels) for labels in source.labels]), seed)
    parts = np.split(order, np.cumsum(sizes(len(order)))[:2])
    if source.splits:
        given = np.array(source.splits)[order]
        parts = [order[given == name] for name in SPLITS]
        if not len(parts[1]):
            last = len(parts[0]) - sizes(len(parts[0]))[1]
            parts[:2] = np.split(parts[0], [last])
    return dict(zip(SPLITS, parts, strict=True))
