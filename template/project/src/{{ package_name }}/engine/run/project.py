"""A project: the model, the data and the optimizer, as every command gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..data.order import make_order
from ..errors import UserError
from ..interfaces import Samples, require_attributes

if TYPE_CHECKING:
    import torch

    from ..compute.distributed import Distributed
    from ..compute.precision import Precision
    from ..data.loader import Loader
    from ..data.store import Store
    from ..settings import EngineSettings


@dataclass
class Project:
    """Everything that a command works with. `assemble` builds it.

    `model` has the weights; `wrapped` is what a step calls.
    """

    settings: EngineSettings
    store: Store
    distributed: Distributed
    precision: Precision
    model: Any
    wrapped: Any
    dataset: ModuleType  # dataset.py; `Dataset` in `interfaces.py` says what it may have
    loader_class: type[Loader]
    build_optimizer: Callable[[Any, Any], torch.optim.Optimizer]
    optimizations: list[dict[str, str]]  # name, state and reason of each

    @property
    def device(self) -> torch.device:
        return self.distributed.device

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Built only for a training, because torch then loads its compiler."""
        optimizer = self.build_optimizer(self.model, self.settings)  # 7
        optimizer.register_load_state_dict_pre_hook(keep_options)
        return optimizer

    def loader(self, split: str, train: bool = False, fraction: float = 1.0) -> Loader:
        """Return the loader of a split: in the order of time, or in training order with `train`.

        fraction: the fraction of samples to use without `train`, always the same ones. Raises
        `UserError` if the split has no samples, or if `dataset.py` breaks its contract.
        """
        require_attributes(("Samples",), self.dataset, "the file", "dataset.py")
        samples = self.dataset.Samples(self.store, self.settings, split)
        if not isinstance(samples, Samples):
            remedy = "begin it with `class Samples(interfaces.Samples):`"
            raise UserError("Samples is not one of interfaces.Samples", "dataset.py", remedy)
        samples.training = train
        if not len(samples):
            what = f"the {split} split has no samples"
            raise UserError(what, str(self.store.folder), "run `prepare` with another --split")
        rank = self.distributed.rank
        world = self.distributed.world
        order = make_order(samples, self.settings, rank, world, train, fraction)
        return self.loader_class(samples, self.store, self.settings, order, self.device)

    def ask_dataset(self, name: str, default: Any, *arguments: Any) -> Any:
        """Call a function that dataset.py may define; return `default` if it does not."""
        function = getattr(self.dataset, name, None)
        return default if function is None else function(*arguments)

    def optimization_lines(self) -> list[str]:
        """Return a line for each optimization: its state, and why."""
        rows = self.optimizations
        return [f"  {row['name']:<26}{row['state']:<13} {row['why']}" for row in rows]


def keep_options(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Keep the settings of a resumed run, such as `fused`, where a checkpoint has others."""
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=False):
        saved.update(group, params=saved["params"])
