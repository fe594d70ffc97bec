"""CPU milliseconds an image, from files to normalized float batches with crops and flips.

    python benchmarks/images.py torchvision FOLDER SIDE SECONDS    # ImageFolder and a DataLoader
    python benchmarks/images.py project FOLDER SIDE SECONDS        # a project's store and `augment`

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
from pathlib import Path
from typing import Any

import torch

BATCH = 128
CROP = 0.35  # smallest area


def torchvision_batches(folder: Path, side: int) -> Iterator[torch.Tensor]:
    """Batches of ImageFolder, as torchvision's own references for classification make them."""
    from torchvision import datasets, transforms

    scale = ([0.5] * 3, [0.25] * 3)
    changes = [
        transforms.RandomResizedCrop(side, scale=(CROP, 1)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*scale),
    ]
    dataset = datasets.ImageFolder(str(folder), transforms.Compose(changes))
    while True:
        for images, _ in torch.utils.data.DataLoader(dataset, BATCH, shuffle=True):
            yield images


def project_batches() -> Iterator[torch.Tensor]:
    """Batches of the project on Python's path, from the data that are prepared in this folder."""
    assembling: Any = importlib.import_module("my_training.assemble")
    distributed: Any = importlib.import_module("my_training.engine.compute.distributed")
    sections: Any = importlib.import_module("my_training.settings")
    flags = {"data.batch_size": BATCH, "augment.crop": CROP, "augment.shift": 0}
    settings = sections.Settings.load(Path("config.yaml")).replaced(flags, "benchmark")
    store = assembling.open_store(settings)
    project = assembling.assemble(settings, distributed.Distributed(), store)
    loader = project.loader("train", train=True)
    for epoch in itertools.count():
        for batch in loader.epoch(epoch):
            yield (batch["image"] - project.model.mean) / project.model.std


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
    versions = {"torch": torch.__version__}
    if side == "torchvision":
        import torchvision

        versions["torchvision"] = torchvision.__version__
        batches = torchvision_batches(Path(folder), int(size))
    else:
        batches = project_batches()
    print(json.dumps({"ms": milliseconds(batches, float(seconds)), "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
