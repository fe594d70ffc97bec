"""Print the device, the precision and every optimization: what is on, and why."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.runs import COMPILED
from ..engine.training.environment import device_line, versions

if TYPE_CHECKING:
    from ..settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """There are no flags."""


def main(arguments: argparse.Namespace, load: Callable[[], Settings]) -> None:
    """Build what training builds, and print its state. What fails is an error, as in training."""
    settings = load()

    import torch

    from ..assemble import assemble, open_store
    from ..engine.compute.distributed import Distributed

    distributed = Distributed()
    of_what = [f"{name} {version}" for name, version in versions().items()]
    print(", ".join([device_line(distributed.device), *of_what]))
    torch.ones(1, device=distributed.device).add_(1).item()  # torch may have no code for the GPU
    store = open_store(settings)
    project = assemble(settings, distributed, store)
    order = project.loader("train", train=True).order
    print(f"{order.length:,} training samples in {store.folder}")
    project.optimizations.append(order.describe())
    print("\n".join(project.optimization_lines()))
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", COMPILED))
    size = sum(path.stat().st_size for path in folder.rglob("*.*"))
    print(f"{size / 1e6:,.1f} MB of compiled code in {folder}, which you may delete")
