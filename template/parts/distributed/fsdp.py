"""A share of the model in each of several processes: fully_shard (FSDP2).

`torchrun --nproc_per_node=4 -m <package> train` starts them. A rank keeps its rows of every weight, of its
gradient and of the optimizer's state; a block's weights are put together just before it runs, and dropped
after it. So a model has room that is too large for one device; a small one only gets slower by it.

A checkpoint has a file for each rank. Any number of processes can read it: each takes its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from .group import Group, number

# To Lightning each rank is a run of one process.
LIGHTNING: dict[str, Any] = {"devices": [number("LOCAL_RANK", 0)] if torch.cuda.is_available() else 1}
ACCELERATE: dict[str, Any] = {}
METHODS = ("predict", "generate")  # of a model, called beside its forward


class Distributed(Group):
    """Rank, world and device of this process; shards the model."""

    forward_exchanges = True
    _model: Any = None
    _mesh: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Shards the model in place, block by block; what is in no block goes with the whole.

        dtype: of the weights while they are together; gradients are summed and kept in float32. A block
        that does not recompute, a head, stays with the whole: it may use an embedding's weight.
        """
        if self.world == 1:
            return model
        self._mesh = self._mesh or init_device_mesh(self.device.type, (self.world,))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
        for block in model.blocks():  # type: ignore[operator]
            for inner in getattr(block, "apart", list)():  # what others call outside of the block's forward
                fully_shard(inner, mesh=self._mesh, mp_policy=policy)
            if getattr(block, "recomputes", True):
                fully_shard(block, mesh=self._mesh, mp_policy=policy)
        whole = replace(policy, cast_forward_inputs=False)  # a batch holds targets, and values of any size
        self._model = fully_shard(model, mesh=self._mesh, mp_policy=whole)
        for name in METHODS:
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)
        return model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Around all but the last micro-batch of a group: gradients stay local, whole and in memory."""
        if self._model is not None:
            self._model.set_requires_gradient_sync(False)
        yield
        if self._model is not None:
            self._model.set_requires_gradient_sync(True)

    def take_shards(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint's state apart: what rank 0 writes, and {"optimizer/state/0/exp_avg": DTensor}."""
        rest: dict[str, Any] = {}
        shards: dict[str, Any] = {}
        for key, value in state.items():
            if isinstance(value, DTensor):
                shards[str(key)] = value
            elif isinstance(value, dict):
                rest[key], found = self.take_shards(value)
                shards |= {f"{key}/{name}": tensor for name, tensor in found.items()}
            else:
                rest[key] = value
        return rest, shards

    def give_shards(self, state: dict[str, Any], folder: Path, shapes: dict[str, Any]) -> None:
        """Puts the rows of this rank back, read from the files of all ranks that saved.

        shapes: of the whole tensor by key, or the key before it whose tensor it is, too (tied weights).
        """
        found: dict[str, Tensor] = {}
        files = [safe_open(path, "pt") for path in sorted(folder.glob("shard-*.safetensors"))]
        for key, shape in shapes.items():
            *path, name = (int(part) if part.isdigit() else part for part in key.split("/"))
            place: Any = state
            for part in path:
                place = place[part]
            found[key] = found[shape] if isinstance(shape, str) else self._read(files, key, shape)
            place[name] = found[key]

    def _read(self, files: list[Any], key: str, shape: list[int]) -> Tensor:
        """This rank's rows of one tensor."""
        first, last = rows(shape[0], self.rank, self.world)
        parts = []
        for rank, file in enumerate(files):
            start, end = rows(shape[0], rank, len(files))
            low, high = max(first, start), min(last, end)
            if low < high:
                parts.append(file.get_slice(key)[low - start : high - start])
        local = (torch.cat(parts) if parts else torch.empty(0, *shape[1:])).to(self.device)
        if self.world == 1:
            return local
        whole = torch.empty(shape, device="meta")
        return DTensor.from_local(local, self._mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())


def rows(count: int, rank: int, world: int) -> tuple[int, int]:
    """Which rows of `count` a rank has: [first, last), as `fully_shard` cuts them."""
    size = -(-count // world)
    return min(rank * size, count), min((rank + 1) * size, count)
