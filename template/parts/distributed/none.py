"""One process on one device. The other parts of this slot have the same face over torch.distributed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

LIGHTNING: dict[str, Any] = {"devices": 1}
ACCELERATE: dict[str, Any] = {}


class Distributed:
    """Rank, world and device of this process, and what must be summed over all of them."""

    rank, world, is_main = 0, 1, True

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that the step calls."""
        return model

    def no_sync(self) -> Any:
        """Around all but the last micro-batch of a group: gradients stay local."""
        return nullcontext()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, the same on each."""
        return tensor

    def close(self) -> None:
        """Leaves the process group."""
