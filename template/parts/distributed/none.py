"""One process on one device, with the same methods as the modules for several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Distributed:
    """Rank, world size and device of this process; there is nothing to exchange."""

    rank = 0
    world = 1
    is_main = True
    forward_exchanges = False  # whether a model's forward waits for other ranks

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def begin(self, make: Callable[[], Path]) -> Path:
        """Make the folder of a new run."""
        return make()

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Return the model that the step calls; `dtype` is the dtype of its matrix products."""
        return model

    def exchange_gradients(self, enabled: bool) -> None:
        """Keep gradients local, for all but the last micro-batch of a step."""

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, the same on each."""
        return tensor

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's plain value, by rank."""
        return [value]

    def on_all_ranks(self, work: Callable[[], T], main_first: bool = False) -> T:
        """Run `work` on every rank; a `UserError` of one of them is raised on all."""
        return work()

    def agree(self, number: int) -> int:
        """Return the largest number: a signal to one rank stops all after the same step."""
        return number

    def close(self) -> None:
        """Leave the process group."""
