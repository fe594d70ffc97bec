"""The one order in which a project is built, for training and every command.

1 model · 2 fp8 · 3 recomputation · 4 compile · 5 wrap or shard · 6 optimizer. Each step sees what the
ones before it made of the model: compiling before recomputation would leave it out of the graph,
an optimizer made before sharding would hold parameters that are no longer the model's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import dataset
from .engine import optimization, reproducibility
from .engine.errors import UserError
from .engine.fp8 import convert
from .engine.gpus import resolve_precision
from .engine.loader import Loader
from .engine.precision import Precision
from .engine.seams import Output
from .engine.store import MANIFEST, Store
from .engine.throughput import Work, measure
from .model import build_model
from .settings import WORKLOAD


@dataclass
class Project:
    """Everything that a command works with. `model` has the weights; `wrapped` is what a step calls."""

    settings: Any
    store: Store
    distributed: Any
    precision: Precision
    model: Any
    wrapped: Any
    optimizer: torch.optim.Optimizer
    optimizations: list[dict[str, str]]  # what is on and why

    @property
    def device(self) -> torch.device:
        return self.distributed.device

    def work(self, samples: Any, batch: dict[str, torch.Tensor]) -> Work:
        """Tokens and FLOPs of a sample, against the device's peak."""
        build = lambda: build_model(self.settings, self.store.facts)  # noqa: E731
        return measure(samples, build, batch, self.device, self.precision.name)

    def loader(self, split: str, train: bool = False, kind: Any = Loader) -> Loader:
        """Batches of a split; training order with `train`, every sample once in time order without.

        Raises `UserError` where the split has no samples.
        """
        samples: Any = dataset.Samples(self.store, self.settings, split)
        samples.training = train
        if not len(samples):
            raise UserError(
                f"the {split} split has no samples", str(self.store.folder), "prepare with another --split"
            )
        rank, world = self.distributed.rank, self.distributed.world
        return kind(samples, self.store, self.settings, self.device, rank, world, train)


def open_store(settings: Any, synthetic: bool = True) -> Store:
    """The prepared data; a synthetic sample where nothing was prepared and no other folder was named.

    synthetic: makes that sample where there is none.
    """
    folder = Path(settings.data.path)
    if not (folder / MANIFEST).exists() and settings.data.path == type(settings.data)().path:
        folder = folder / "synthetic"
        if not (folder / MANIFEST).exists() and synthetic:
            dataset.synthesize(folder, settings)
    return Store.open(folder, WORKLOAD)


def checked(model: Any) -> Any:
    """The model, if it keeps to `seams.Model`. What forward returns is looked at once, the first time.

    Raises `UserError` where it does not.
    """

    def look(module: Any, inputs: Any, output: Any) -> None:
        hook.remove()
        _require(output, Output._fields, f"the {type(output).__name__} that forward returns")

    _require(model, ("predict", "blocks"), f"the model {type(model).__name__}")
    hook = model.register_forward_hook(look)
    return model


def _require(found: Any, names: Iterable[str], title: str) -> None:
    if missing := [name for name in names if not hasattr(found, name)]:
        what = f"{title} has no {' and no '.join(missing)}"
        raise UserError(what, "model.py", "its contract stands in engine/seams.py")


def assemble(settings: Any, distributed: Any, store: Store) -> Project:
    """Builds a project with fresh weights from the seed.

    Raises `UserError` for a precision that the device lacks, and for a model that breaks its contract.
    """
    device, training = distributed.device, settings.training
    deterministic = settings.reproducibility.deterministic
    reproducibility.seed_everything(settings.reproducibility.seed)
    reproducibility.set_deterministic(deterministic, training.cudnn_benchmark)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    emulate = training.fp8_emulation
    resolved, why = resolve_precision(
        training.precision, capability, hip=torch.version.hip is not None, emulate=emulate
    )
    precision = Precision(resolved, device)

    model: Any = checked(build_model(settings, store.facts)).to(device)  # 1
    blocks: dict[str, Any] = {"fp8": convert(model, emulate) if resolved == "fp8" else 0}  # 2
    if training.gradient_checkpointing:  # 3
        optimization.checkpoint_blocks(model.blocks())
    enabled, blocks["why"] = optimization.compiles(settings, device)
    compiled = optimization.compile_blocks(model.blocks(), settings) if enabled else (0, [])  # 4
    blocks["compiled"], blocks["skipped"] = compiled
    blocks["checkpointed"], blocks["world"] = training.gradient_checkpointing, distributed.world
    wrapped = distributed.wrap(model, precision.dtype)  # 5
    if distributed.rank:  # the same weights on every rank, but dropout of its own
        reproducibility.seed_everything((settings.reproducibility.seed + distributed.rank) % 2**32)
    optimizer = optimization.make_optimizer(model, settings.optimizer)  # 6

    described = optimization.describe(settings, device, (resolved, why), blocks)
    return Project(settings, store, distributed, precision, model, wrapped, optimizer, described)
