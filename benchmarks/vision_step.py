"""CPU milliseconds of a training step: a project of `vision`, and loops written by hand.

    python benchmarks/vision_step.py STEPS BATCH    # in a folder with config.yaml and prepared data

`vision.py` starts it, with the project on Python's path. All sides train the same network on the
same images and take a step in turns, in one process. It prints JSON: milliseconds of each step, by
side.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SHIFT = 1
STEPS = 10_000  # of the schedule, which no side reaches

Step = Callable[[], None]
Batches = Iterator[tuple[Tensor, Tensor]]


class Images(NamedTuple):
    """The training images (N, C, H, W) uint8, their classes, and the scale of the pixels."""

    image: Tensor
    target: Tensor
    mean: Tensor
    std: Tensor


def module(name: str) -> Any:
    return importlib.import_module(f"my_training.{name}")


def project_step(settings: Any, folder: Path) -> tuple[Step, Any]:
    """A step of the project's loop, and the project."""
    distributed = module("engine.compute.distributed").Distributed()
    store = module("assemble").open_store(settings)
    project = module("assemble").assemble(settings, distributed, store)
    session = module("engine.training.session").Session(folder, settings, distributed, trial=True)
    run = session.start(project)
    training = module("train")
    learning_rate = module("optimizer").learning_rate

    def step() -> None:
        run.call_hooks("before_step")
        rate = learning_rate(run.step, run.num_steps, run.settings)
        norm = training.take_step(run, rate)
        run.end_step(norm)
        if run.log_due:
            run.write_record(rate)
        run.call_hooks("after_step")

    return step, project


def images_of(project: Any) -> Images:
    store = project.store
    first, last = store.splits["train"]
    image = torch.from_numpy(np.array(store.arrays["image"].rows()[first:last]))
    target = torch.from_numpy(np.array(store.arrays["target"].rows()[first:last])).long()
    return Images(image.permute(0, 3, 1, 2), target, project.model.mean, project.model.std)


def same_augmentation(images: Images, size: int) -> Batches:
    """Batches that `grid_sample` shifts and flips, as the project does."""
    side = images.image.shape[-1]
    grid = (2 * torch.arange(side) + 1) / side - 1
    while True:
        order = torch.randperm(len(images.image))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            shifts = (torch.rand(2, size, 1) * 2 - 1) * SHIFT * 2 / side
            rows = grid + shifts[0]
            columns = grid + shifts[1]
            columns = torch.where(torch.rand(size, 1) < 0.5, -columns, columns)
            places = torch.broadcast_tensors(columns[:, None, :], rows[:, :, None])
            pixels = functional.grid_sample(
                images.image[chosen].float(),
                torch.stack(places, 3),
                padding_mode="reflection",
                align_corners=False,
            )
            yield (pixels - images.mean) / images.std, images.target[chosen]


def whole_epoch(images: Images, size: int) -> Batches:
    """Batches of an epoch whose images are shifted and flipped at once, as airbench does
    (KellerJordan/cifar10-airbench)."""
    side = images.image.shape[-1]
    scaled = (images.image.float() - images.mean) / images.std
    padded = functional.pad(scaled, [SHIFT] * 4, "reflect")
    while True:
        shifts = torch.randint(0, 2 * SHIFT + 1, (len(scaled), 2))
        changed = torch.empty_like(scaled)
        for top in range(2 * SHIFT + 1):
            for left in range(2 * SHIFT + 1):
                chosen = (shifts[:, 0] == top) & (shifts[:, 1] == left)
                changed[chosen] = padded[chosen][:, :, top : top + side, left : left + side]
        flipped = torch.rand(len(scaled)) < 0.5
        changed[flipped] = changed[flipped].flip(3)
        order = torch.randperm(len(scaled))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield changed[chosen], images.target[chosen]


def bare_step(batches: Batches, network: nn.Module, settings: Any, format: Any) -> Step:
    """A step of a loop written by hand, with the project's optimizer and schedule."""
    learning_rate = module("optimizer").learning_rate
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    sections = settings.optimizer
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() > 1]},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (sections.beta1, sections.beta2)
    decay = sections.weight_decay
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=betas, weight_decay=decay, fused=True)
    number = 0

    def step() -> None:
        nonlocal number
        image, target = next(batches)
        rate = learning_rate(number, STEPS, settings)
        number += 1
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = network(image.contiguous(memory_format=format))
        smoothing = settings.augment.label_smoothing
        loss = functional.cross_entropy(logits, target, label_smoothing=smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, settings.training.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def new_network(settings: Any, project: Any) -> nn.Module:
    """The network of the project, without what scales pixels."""
    torch.manual_seed(0)
    model = module("model").build_model(settings, project.store.facts)
    return model.network.train()


def main(steps: str, batch: str) -> None:
    torch.set_num_threads(1)
    flags = {
        "data.batch_size": int(batch),
        "training.max_steps": STEPS,
        "training.precision": "fp32",
        "augment.shift": SHIFT,
    }
    load = module("settings").Settings.load
    settings = load(Path("config.yaml")).replaced(flags, "benchmark")
    folder = Path(tempfile.mkdtemp(dir="."))
    ours, project = project_step(settings, folder)
    images = images_of(project)
    format = project.model.memory_format
    sides = {"vision": ours}
    for name, source in (("same", same_augmentation), ("epoch", whole_epoch)):
        network = new_network(settings, project)
        sides[name] = bare_step(source(images, int(batch)), network, settings, format)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-5, int(steps)):
        for name, step in sides.items():
            start = time.process_time()
            step()
            if number >= 0:
                times[name].append(1000 * (time.process_time() - start))
    print(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
