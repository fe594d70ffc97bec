"""The one order in which a project is built, for training and every command.

1 model · 2 fp8 · 3 frozen weights · 4 recomputation · 5 compile · 6 wrap or shard · 7 optimizer.
Each step sees what the ones before it made of the model: compiling before recomputation would leave
it out of the graph, an optimizer made before sharding would hold parameters that are no longer the
model's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import dataset
from . import model as own_model
from .engine import optimization
from .engine.config import found
from .engine.errors import UserError
from .engine.gpus import Card, resolve_precision, this_card
from .engine.loader import Loader
from .engine.order import Order, order_of
from .engine.precision import Precision, cost_on_cpu
from .engine.progress import seed_everything
from .engine.seams import keeps
from .engine.store import MANIFEST, SYNTHETIC, Store
from .engine.weights import freeze
from .model import build_model
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .config import Settings
    from .engine.distributed import Distributed


@dataclass
class Project:
    """Everything that a command works with.

    `model` has the weights; `wrapped` is what a step calls.
    """

    settings: Settings
    store: Store
    distributed: Distributed
    precision: Precision
    model: Any
    wrapped: Any
    optimizations: list[dict[str, str]]  # what is on and why
    loader_class: type[Loader] = Loader

    @property
    def device(self) -> torch.device:
        return self.distributed.device

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:  # 7
        """Made when a training asks: torch's optimizers load its compiler, which takes long."""
        return optimization.make_optimizer(self.model, self.settings.optimizer)

    def loader(self, split: str, train: bool = False, fraction: float = 1.0) -> Loader:
        """Return batches of a split; all in time order, or in training order with `train`.

        fraction: of the samples, without `train`; always the same ones. Raises `UserError` where
        the split has no samples.
        """
        samples: Any = dataset.Samples(self.store, self.settings, split)
        samples.training = train
        if not len(samples):
            what = f"the {split} split has no samples"
            raise UserError(what, str(self.store.folder), "prepare with another --split")
        rank = self.distributed.rank
        world = self.distributed.world
        order = order_of(samples, self.settings, rank, world, train, fraction)
        return self.loader_class(samples, self.store, self.settings, order, self.device)

    def finish(self, metrics: dict[str, float], split: str) -> dict[str, float]:
        """Add what no sum over samples gives, such as `r2`."""
        finish = getattr(dataset, "finish", lambda metrics, *_: metrics)
        return dict(finish(metrics, self.store, split))

    def naive(self, split: str) -> float:
        """Return the loss of a split without a model; inf where `dataset.py` does not say it."""
        return float(getattr(dataset, "naive", lambda *_: math.inf)(self.store, split))

    def remarks(self, loader: Loader, validation: Loader | None) -> list[str]:
        """Return what a person should know of a training, though nothing is wrong."""
        remarks = []
        store = self.store
        order = loader.order
        if store.source.get("kind") == SYNTHETIC:
            what = store.source.get("text", "synthetic data")
            remarks.append(f"{what} in {store.folder}; `prepare` takes your own")
        if order.slots > order.count:
            remarks.append(larger_than_split(order, self.settings.data.batch_size))
        if validation is not None and validation.order.count < validation.order.length:
            remarks.append(part_of_validation(validation.order))
        unused = [f"data.{name}" for name in loader.WITHOUT_EFFECT]
        why = "this project's loader has no use for it"
        return remarks + self.settings.without_effect(unused, why)


def larger_than_split(order: Order, asked: int) -> str:
    """Say what becomes of a batch that is larger than the training split.

    asked: `data.batch_size`.
    """
    note = f"a batch of {order.slots:,} samples: the training split has {order.count:,}"
    note += ", the rest is padding"
    if order.batch_size < asked:
        note += f"; data.batch_size {asked:,} was reduced"
    return note


def part_of_validation(order: Order) -> str:
    """Say which part of the validation split training measures."""
    ratio = order.length / order.count
    part = f"{1 / ratio:.0%}"
    if abs(ratio - round(ratio)) < 0.05 * ratio:
        part = f"1/{ratio:.0f}"
    counts = f"{order.count:,} of {order.length:,} samples, the same ones each time"
    return f"validation on {part} of the split: {counts}; `evaluate` measures all"


def open_store(settings: Settings, synthetic: bool = True) -> Store:
    """Open the prepared data.

    Where nothing was prepared and no other folder was named, it is a synthetic sample. synthetic:
    makes that sample where there is none.
    """
    folder = Path(settings.data.path)
    default = type(settings.data).model_fields["path"].default
    if not (folder / MANIFEST).exists() and settings.data.path == default:
        sample = folder / SYNTHETIC
        if not (sample / MANIFEST).exists() and synthetic:
            dataset.synthesize(sample, settings)
        # Else the error names the folder that is missing.
        if (sample / MANIFEST).exists():
            folder = sample
    return Store.open(folder, WORKLOAD)


def assemble(
    settings: Settings, distributed: Distributed, store: Store, loader_class: type[Loader] = Loader
) -> Project:
    """Build a project with fresh weights from the seed.

    loader_class: of another loader than the project's, to compare with. Raises `UserError` for a
    precision that the device lacks, and for a model that breaks its contract.
    """
    device = distributed.device
    training = settings.training
    seed = settings.reproducibility.seed
    seed_everything(seed)
    optimization.set_deterministic(settings.reproducibility.deterministic, training.cudnn_benchmark)
    card = this_card(device)
    name, why = choose_precision(settings, device, card)
    precision = Precision(name, device)
    decided = {"precision": (name, why)}  # of each optimization: state and why

    model: Any = build_model(settings, store.facts).to(device)  # 1
    keeps(("predict", "blocks"), model, f"the model {type(model).__name__}")
    if name == "fp8":  # 2
        decided["fp8"] = convert_to_fp8(model, training.fp8_emulation)
    if training.freeze:  # 3
        decided["frozen weights"] = freeze(model, training.freeze)
    if training.gradient_checkpointing:  # 4
        optimization.checkpoint_blocks(model.blocks())
    decided["compile"] = optimization.compile_blocks(model.blocks(), settings, card.capability)  # 5
    wrapped = distributed.wrap(model, precision.dtype)  # 6

    # The same weights on every rank, but dropout of its own.
    if distributed.rank:
        seed_everything((seed + distributed.rank) % 2**32)
    described = optimization.describe(settings, distributed, decided)
    return Project(settings, store, distributed, precision, model, wrapped, described, loader_class)


def choose_precision(settings: Settings, device: torch.device, card: Card) -> tuple[str, str]:
    """Return the precision and why; on a CPU also what it costs there."""
    training = settings.training
    name, why = resolve_precision(
        training.precision, card.capability, card.hip, training.fp8_emulation
    )
    if device.type == "cpu":
        cost = cost_on_cpu(name, getattr(own_model, "FLOAT32_ON_CPU", ""))
        why = "; ".join(filter(None, (why, cost)))
    return name, why


def convert_to_fp8(model: Any, emulate: bool) -> tuple[str, str]:
    """Let layers of the model multiply in fp8. Raises `UserError` where the code is missing."""
    parts = found("engine", "def convert(")
    if not parts:
        remedy = "choose auto, or `copier update -d precision=fp8`"
        raise UserError("this project was made without fp8", "training.precision fp8", remedy)
    return f"{parts[0].convert(model, emulate)} layers", parts[0].WHEN
