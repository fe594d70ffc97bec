"""A copy of the model in each of several processes: DistributedDataParallel.

`torchrun --nproc_per_node=4 -m <package> train` starts them. Each rank takes its part of every
batch, gradients are averaged while backward still runs, and the step scales the average to what one
process would have of the whole batch. One process writes.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .group import Group, number

# To Lightning each rank is a run of one process.
LIGHTNING: dict[str, Any] = {"devices": 1}
if torch.cuda.is_available():
    LIGHTNING["devices"] = [number("LOCAL_RANK", 0)]
ACCELERATE: dict[str, Any] = {}


class Distributed(Group):
    """Rank, world and device of this process; averages gradients."""

    forward_exchanges = False  # whether forward of `project.model` waits for other ranks
    _model: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Return the model that the step calls: rank 0's buffers, the mean of gradients."""
        if self.world == 1:
            return model
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._model = wrapped
        return wrapped

    def no_sync(self) -> Any:
        """Keep gradients local, for all but the last micro-batch of a step."""
        if self._model is None:
            return nullcontext()
        return self._model.no_sync()

    def take_shards(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a checkpoint's state into what rank 0 writes and each rank's shards: none."""
        return state, {}

    def give_shards(self, state: dict[str, Any], folder: Path, shapes: dict[str, Any]) -> None:
        """Put the shards back: there are none."""
