"""One process on one device. The other parts of this slot have the same face over torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import UserError

T = TypeVar("T")

LIGHTNING: dict[str, Any] = {"devices": 1}
ACCELERATE: dict[str, Any] = {}


class Distributed:
    """Rank, world and device of this process, and what all of them must agree on."""

    rank, world, is_main = 0, 1, True
    forward_exchanges = False  # whether a model's forward waits for other ranks

    def __init__(self) -> None:
        world = os.environ.get("WORLD_SIZE", "1")
        if world != "1":
            remedy = "start it without torchrun, or `copier update -d distributed=ddp`"
            raise UserError("this project trains in one process", f"WORLD_SIZE={world}", remedy)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def begin(self, make: Callable[[], Path]) -> Path:
        """The folder of a new run."""
        return make()

    def restarted(self, name: str | None = None) -> Path | None:
        """The run that this job had begun before it was started anew."""
        return None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """The model that the step calls; `dtype` is that of its products."""
        return model

    def no_sync(self) -> Any:
        """Around all but the last micro-batch of a group: gradients stay local."""
        return nullcontext()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, the same on each."""
        return tensor

    def gather(self, value: T) -> list[T]:
        """Every rank's plain value, by rank."""
        return [value]

    def together(self, work: Callable[[], T], main_first: bool = False) -> T:
        """`work()` on every rank; what one of them raises as a `UserError`, all raise."""
        return work()

    def agree(self, number: int) -> int:
        """The largest number of all ranks: a signal to one of them stops all after the same step."""
        return number

    def take_shards(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint's state apart: what rank 0 writes, and what each rank has for itself, nothing."""
        return state, {}

    def give_shards(self, state: dict[str, Any], folder: Path, shapes: dict[str, Any]) -> None:
        """Puts it back."""

    def close(self) -> None:
        """Leaves the process group."""
