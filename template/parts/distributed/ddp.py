"""A copy of the model in each of several processes: DistributedDataParallel.

`torchrun --nproc_per_node=4 -m <package> train` starts them. Each rank takes its share of every batch,
gradients are averaged while backward still runs, and the step makes of the average what one process would
have of the whole batch. One process writes.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .group import Group, number

# To Lightning each rank is a run of one process.
LIGHTNING: dict[str, Any] = {"devices": [number("LOCAL_RANK", 0)] if torch.cuda.is_available() else 1}
ACCELERATE: dict[str, Any] = {}


class Distributed(Group):
    """Rank, world and device of this process; averages gradients."""

    forward_exchanges = False  # whether a model's forward waits for other ranks: `project.model` does not
    _model: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """The model that the step calls: its buffers are rank 0's, its gradients the mean over ranks."""
        if self.world > 1:
            model = self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model

    def no_sync(self) -> Any:
        """Around all but the last micro-batch of a group: gradients stay local."""
        return nullcontext() if self._model is None else self._model.no_sync()

    def take_shards(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint's state apart: what rank 0 writes, and what each rank has for itself, nothing."""
        return state, {}

    def give_shards(self, state: dict[str, Any], folder: Path, shapes: dict[str, Any]) -> None:
        """Puts it back."""
