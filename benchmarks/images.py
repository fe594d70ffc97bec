"""CPU milliseconds an image, from files to normalized float batches with crops and flips.

    python benchmarks/images.py torchvision FOLDER SIDE SECONDS    # ImageFolder and a DataLoader
    python benchmarks/images.py decode_jpeg FOLDER SIDE SECONDS    # the same with its own decoder
    python benchmarks/images.py timm FOLDER SIDE SECONDS           # timm's loader
    python benchmarks/images.py project FOLDER SIDE SECONDS        # a project's store and `augment`
    python benchmarks/images.py host FOLDER SIDE SECONDS           # what is left if a GPU augments

`vision.py` starts it: for torchvision with the Python of .venv-vision, for a project in its folder,
where FOLDER was prepared. It prints JSON: milliseconds of the process for each image, and versions.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

BATCH = 128
CROP = 0.35  # smallest area
SCALE: Any = ([0.5] * 3, [0.25] * 3)  # mean and standard deviation of a pixel


def torchvision_batches(folder: Path, side: int) -> Iterator[torch.Tensor]:
    """Batches of ImageFolder, as torchvision's own references for classification make them."""
    from torchvision import datasets, transforms

    changes = [
        transforms.RandomResizedCrop(side, scale=(CROP, 1)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*SCALE),
    ]
    return repeated(datasets.ImageFolder(str(folder), transforms.Compose(changes)))


def decode_jpeg_batches(folder: Path, side: int) -> Iterator[torch.Tensor]:
    """The same with torchvision's own decoder and its transforms for tensors."""
    from torchvision import datasets, io
    from torchvision.transforms import v2

    changes = [
        v2.RandomResizedCrop(side, scale=(CROP, 1), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(*SCALE),
    ]

    def load(path: str) -> torch.Tensor:
        return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)

    return repeated(datasets.ImageFolder(str(folder), v2.Compose(changes), loader=load))


def repeated(dataset: Any) -> Iterator[torch.Tensor]:
    """The images of a DataLoader, epoch after epoch."""
    while True:
        for images, _ in torch.utils.data.DataLoader(dataset, BATCH, shuffle=True):
            yield images


def timm_batches(folder: Path, side: int) -> Iterator[torch.Tensor]:
    """Batches of timm's loader for training, with its prefetcher, which scales the pixels."""
    from timm.data import create_dataset, create_loader

    loader: Any = create_loader(
        create_dataset("", str(folder), is_training=True),
        (3, side, side),
        BATCH,
        is_training=True,
        scale=(CROP, 1),
        mean=SCALE[0],
        std=SCALE[1],
        num_workers=0,
        persistent_workers=False,
        pin_memory=False,
        device=torch.device("cpu"),
    )
    while True:
        for images, _ in loader:
            yield images


def project_batches(augments: bool) -> Iterator[torch.Tensor]:
    """Batches of the project on Python's path, from the data that are prepared in this folder.

    augments: also change and scale the images; otherwise batches are what a GPU gets, in uint8.
    """
    assembling: Any = importlib.import_module("my_training.assemble")
    distributed: Any = importlib.import_module("my_training.engine.compute.distributed")
    sections: Any = importlib.import_module("my_training.settings")
    flags = {"data.batch_size": BATCH, "augment.crop": CROP, "augment.shift": 0}
    settings = sections.Settings.load(Path("config.yaml")).replaced(flags, "benchmark")
    store = assembling.open_store(settings)
    project = assembling.assemble(settings, distributed.Distributed(), store)
    if not augments:
        dataset: Any = importlib.import_module("my_training.dataset")
        dataset.Samples.augment = None
    loader = project.loader("train", train=True)
    for epoch in itertools.count():
        for batch in loader.epoch(epoch):
            image = batch["image"]
            mean = project.model.mean
            std = project.model.std
            yield (image - mean).div_(std) if augments else image


def milliseconds(batches: Iterable[torch.Tensor], seconds: float) -> float:
    """Of the process, for an image; the first batches do not count."""
    images = 0
    start = 0.0
    for number, batch in enumerate(batches):
        if number == 3:
            start = time.process_time()
        elif number > 3:
            images += len(batch)
            if time.process_time() - start > seconds:
                break
    return 1000 * (time.process_time() - start) / images


def main(side: str, folder: str, size: str, seconds: str) -> None:
    torch.set_num_threads(1)
    if side in ("project", "host"):
        batches = project_batches(augments=side == "project")
        packages = ["torch"]
    else:
        peers = {
            "torchvision": torchvision_batches,
            "decode_jpeg": decode_jpeg_batches,
            "timm": timm_batches,
        }
        batches = peers[side](Path(folder), int(size))
        packages = ["torch", "torchvision", "timm", "pillow"]
    versions = {name: version(name) for name in packages}
    print(json.dumps({"ms": milliseconds(batches, float(seconds)), "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
