"""Data parallelism: each process has a copy of the model (DistributedDataParallel).

`torchrun --nproc_per_node=4 -m <package> train` starts the processes. Each rank takes its part of
every batch. Gradients are averaged while backward still runs, and the step scales the average to
the gradient of the whole batch in a single process. Only rank 0 writes files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .group import Group


class Distributed(Group):
    """Rank, world size and device of this process; averages gradients."""

    forward_exchanges = False  # whether forward of `project.model` waits for other ranks
    _model: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Return the model that the step calls; it takes rank 0's buffers, averages gradients."""
        if self.world == 1:
            return model
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._model = wrapped
        return wrapped

    def exchange_gradients(self, enabled: bool) -> None:
        """Keep gradients local, for all but the last micro-batch of a step."""
        if self._model is not None:
            self._model.require_backward_grad_sync = enabled
