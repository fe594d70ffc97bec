"""What a sample is: one image and its class, or its labels.

Replace it with your own, together with `commands/prepare.py`. `prepare/images.py` describes the
arrays of the prepared dataset.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .augment import DRAWS, augment, draw, sides_of
from .classes import class_table, overall
from .engine import interfaces
from .engine.interfaces import Batch, Rows, Spans
from .engine.loading.store import Store, StoreWriter
from .prepare.decoding import decode
from .prepare.images import ImageWriter
from .prepare.labels import describe, split_images
from .prepare.sources import Source
from .settings import WORKLOAD, Settings


class Samples(interfaces.Samples):
    """The images of one split. It may also have `orders` of its base."""

    def __init__(self, store: Store, settings: Settings, split: str):
        self.settings = settings.augment
        self.seed = settings.reproducibility.seed
        self.fraction = settings.data.fraction
        self.first, self.last = store.splits[split]
        self.facts = store.facts
        self.sides = sides_of(settings, store.facts)
        self.names = [name for name in store.arrays if name in ("image", "target")]
        self.encoded = "bytes" in store.arrays
        if self.encoded:
            self.offsets = store.arrays["offset"].rows()
            self.host = self.decode

    def __len__(self) -> int:
        return self.last - self.first

    def spans(self, indices: np.ndarray, epoch: int) -> dict[str, Spans]:
        rows = np.where(indices < 0, -1, self.first + indices)
        if self.training:
            # Batch norm also sees the padding, so it is made of images; they have no weight.
            padding = self.others(np.arange(len(rows)), epoch, "padding")
            rows = np.where(indices < 0, padding, rows)
        if self.has_partners():
            rows = np.stack([rows, self.others(indices, epoch, "partner")], 1)
        spans = {name: Spans(rows, 1) for name in self.names}
        if self.encoded:
            starts = self.offsets[rows]
            lengths = np.where(rows < 0, 0, self.offsets[rows + 1] - starts)
            spans["bytes"] = Spans(starts, max(1, int(lengths.max())), lengths)
        return spans

    def has_partners(self) -> bool:
        """Whether each sample has a second image, for mixup and cutmix."""
        return self.training and self.settings.mixup + self.settings.cutmix > 0

    def others(self, numbers: np.ndarray, epoch: int, name: str) -> np.ndarray:
        """Return random rows (B,) among those that training uses, drawn for `numbers` (B,)."""
        count = max(1, round(len(self) * self.fraction))
        drawn = draw(self.seed, epoch, numbers, DRAWS.index(name))
        number = drawn * count >> 24
        return self.first + number * len(self) // count

    def decode(self, rows: dict[str, Rows], indices: np.ndarray, epoch: int) -> dict[str, Rows]:
        """Replace the files by their pixels. The loader's workers or threads do this."""
        values, lengths = rows.pop("bytes")
        shape = self.facts["shape"]
        images = np.zeros((lengths.numel(), 1, *shape), np.uint8)
        files = values.flatten(0, -2).numpy()
        for image, file, length in zip(images, files, lengths.flatten().tolist(), strict=True):
            if length:
                content = file[:length].tobytes()
                image[0] = decode(content, shape, self.facts["resize"])
        pixels = torch.from_numpy(images).unflatten(0, lengths.shape)
        return {**rows, "image": Rows(pixels)}

    def batch(self, rows: dict[str, Rows]) -> Batch:
        """`image` (B, C, H, W) uint8, `target` (B,) int64 or (B, K) uint8; maybe of partners, too.

        The store has the channels of a pixel together, which is PyTorch's channels_last format.
        """
        batch = {}
        for name, array in rows.items():
            values = array.values
            if name == "image":
                values = values.movedim(-1, -3)
            if self.has_partners():
                batch[f"partner_{name}"] = values[:, 1, 0]
                values = values[:, 0]
            batch[name] = values[:, 0]
        return batch

    def augment(self, batch: Batch, epoch: int) -> Batch:
        """Change the images of a training batch on the device."""
        return augment(batch, self.settings, self.sides, self.seed, epoch)


def finish(metrics: dict[str, float], store: Store, split: str, sums: Batch) -> dict[str, float]:
    """Add means over the classes or labels."""
    return {**metrics, **overall(sums, store.facts["multilabel"])}


def details(store: Store, split: str, sums: Batch) -> list[str]:
    """Return a table of the classes for `evaluate`."""
    return class_table(sums, store.facts["classes"])


def baseline_loss(store: Store, split: str) -> float:
    """Return the loss of the fractions of the classes in training."""
    first, last = store.splits[split]
    target = store.arrays["target"].rows()[first:last]
    fractions = np.array(store.facts["counts"]) / store.facts["images"]
    if store.facts["multilabel"]:
        likelihood = np.where(target, fractions, 1 - fractions).clip(1e-9)
    else:
        likelihood = fractions[target]
    return float(-np.log(likelihood).mean())


SHAPES = ("circle", "square", "diamond", "ring", "cross")


def _draw_shapes(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw bright shapes of any size and place on dark noise: (N, H, W, 3) uint8 and (N,)."""
    random = np.random.default_rng(20)
    target = random.integers(0, len(SHAPES), count)
    radius = random.uniform(0.2, 0.45, (count, 1, 1))
    grid = (np.arange(size) + 0.5) / size
    center = random.uniform(0.35, 0.65, (2, count, 1, 1))
    y = abs(grid[:, None] - center[0]) / radius
    x = abs(grid - center[1]) / radius
    distance = np.hypot(x, y)
    longer = np.maximum(x, y)
    shorter = np.minimum(x, y)
    circle = distance < 1
    square = longer < 0.9
    diamond = x + y < 1.2
    ring = circle & (distance > 0.6)
    cross = (shorter < 0.3) & (longer < 1)
    masks = [circle, square, diamond, ring, cross]  # as in SHAPES
    inside = np.choose(target[:, None, None], masks)[..., None]
    bright = random.uniform(140, 240, (count, 1, 1, 3))
    dark = random.uniform(20, 120, (count, 1, 1, 3))
    noise = random.normal(0, 20, (count, size, size, 3))
    images = np.where(inside, bright, dark) + noise
    return images.clip(0, 255).astype(np.uint8), target


def synthesize(folder: Path, settings: Settings) -> None:
    """Write 5,000 images of five shapes, which are always the same."""
    images, target = _draw_shapes(5_000, 32)
    names = [str(number) for number in range(len(images))]
    labels = [[SHAPES[number]] for number in target]
    source = Source(names, list(images), labels)
    splits = split_images(source, "0.8,0.1,0.1", seed=0)
    facts = describe(source, splits["train"], [32, 32, 3], "crop")
    with StoreWriter(folder, WORKLOAD) as writer:
        ImageWriter(writer, source, facts, flags={}).write(splits)
        writer.source = {"kind": "synthetic"}
