"""Builds a project in the same order for training and for every other command.

The order: 1. model, 2. fp8, 3. frozen weights, 4. activation checkpointing, 5. compile, 6. wrap or
shard, 7. optimizer. Each step changes the model for the steps after it. Compiling before
checkpointing would leave the checkpointing out of the graph. An optimizer built before sharding
would hold parameters that the model no longer has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import dataset
from .engine.compute import optimization
from .engine.compute.gpus import resolve_precision, this_card
from .engine.compute.precision import Precision
from .engine.data.loader import Loader
from .engine.data.store import MANIFEST, SYNTHETIC, Store
from .engine.plugins import discover
from .engine.run.dry_run import check_model
from .engine.run.progress import seed_everything
from .engine.run.project import Project
from .model import build_model
from .optimizer import build_optimizer, is_fused
from .settings import WORKLOAD

if TYPE_CHECKING:
    from .engine.compute.distributed import Distributed
    from .engine.settings.config import Settings


def open_store(settings: Settings, synthetic: bool = True) -> Store:
    """Open the prepared dataset.

    If nothing was prepared and `data.path` is the default, open a synthetic sample instead; it is
    made if it does not exist. synthetic: False for a run that was trained on other data.
    """
    folder = Path(settings.data.path)
    default = type(settings.data).model_fields["path"].default
    can_make = synthetic and hasattr(dataset, "synthesize")
    if can_make and not (folder / MANIFEST).exists() and settings.data.path == default:
        folder = folder / SYNTHETIC
        if not (folder / MANIFEST).exists():
            dataset.synthesize(folder, settings)
    return Store.open(folder, WORKLOAD)


def assemble(settings: Settings, distributed: Distributed, store: Store) -> Project:
    """Build a project with new weights, drawn from the seed.

    Raises `UserError` if the device lacks the precision, or if the model breaks its contract.
    """
    device = distributed.device
    training = settings.training
    seed = settings.reproducibility.seed
    seed_everything(seed)
    optimization.set_deterministic(settings.reproducibility.deterministic, training.cudnn_benchmark)
    card = this_card(device)
    # A setting of projects with fp8.
    emulate = getattr(training, "fp8_emulation", False)
    name, why = resolve_precision(training.precision, card, emulate)
    precision = Precision(name, device)
    decided: list[optimization.Row] = [
        ("precision", "training.precision", name, why),
        ("fused optimizer", "optimizer.fused", *is_fused(settings)),
    ]

    all_settings: Any = settings  # with the sections of the workload
    workload: Any = dataset  # some functions may be absent
    model: Any = build_model(all_settings, store.facts)  # 1
    check_model(model)
    model = model.to(device)
    for module in discover("engine.compute", "apply"):  # 2
        decided += module.apply(model, name, emulate)
    for module in discover("hooks", "freeze"):  # 3
        decided += module.freeze(model, all_settings.finetune.freeze)
    if training.gradient_checkpointing:  # 4
        optimization.checkpoint_blocks(model.blocks())
    decided.append(optimization.compile_blocks(model.blocks(), settings, card.capability))  # 5
    wrapped = distributed.wrap(model, precision.dtype)  # 6

    # Every rank has the same weights, but its own dropout.
    if distributed.rank:
        seed_everything((seed + distributed.rank) % 2**32)
    return Project(
        settings,
        store,
        distributed,
        precision,
        model,
        wrapped,
        workload,
        Loader,
        build_optimizer,
        optimization.describe(settings, distributed, decided),
    )
