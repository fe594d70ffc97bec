"""Sharding: each process has a shard of the model (fully_shard, FSDP2).

`torchrun --nproc_per_node=4 -m <package> train` starts the processes. A rank keeps its rows of
every weight, gradient and optimizer state. The weights of a block are gathered just before it runs,
and freed after it. So a model may be too large for one device; a small model only gets slower.

A checkpoint has a file for each rank. Any number of processes can read it: each takes its own rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .files import sha256
from .group import Group
from .shards import Shards, own, save_tensors

METHODS = ("predict", "generate")  # methods of a model that are called in addition to its forward


class Distributed(Group):
    """Rank, world size and device of this process; shards the model."""

    forward_exchanges = True
    _model: Any = None
    _mesh: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Shard the model in place, block by block; the other weights are one more shard.

        dtype: that of gathered weights; gradients are summed and kept in float32. A head, which is
        a block whose `recomputes` is False, belongs to the other weights, because it may use the
        weight of an embedding.
        """
        if self.world == 1:
            return model
        if self._mesh is None:
            self._mesh = init_device_mesh(self.device.type, (self.world,))
        reduce_dtype = torch.float32 if dtype else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype)
        for block in model.blocks():  # type: ignore[operator]
            # These modules are called outside of the block's forward.
            for inner in getattr(block, "apart", list)():
                fully_shard(inner, mesh=self._mesh, mp_policy=policy)
            if getattr(block, "recomputes", True):
                fully_shard(block, mesh=self._mesh, mp_policy=policy)
        # A batch also has targets and values of any size, so it is not cast.
        policy = replace(policy, cast_forward_inputs=False)
        self._model = fully_shard(model, mesh=self._mesh, mp_policy=policy)
        for name in METHODS:
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)
        return model

    def exchange_gradients(self, enabled: bool) -> None:
        """Keep gradients local, whole and in memory, for all but the last micro-batch of a step."""
        if self._model is not None:
            self._model.set_requires_gradient_sync(enabled)

    def save_shards(self, state: dict[str, Any], folder: Path) -> Shards:
        """Write this rank's rows of each sharded tensor of a checkpoint's state."""
        whole, sharded = split(state)
        if not sharded:
            return Shards(whole, {}, {})
        path = folder / f"shard-{self.rank:05}.safetensors"
        aliases = save_tensors({key: own(tensor) for key, tensor in sharded.items()}, path)
        shapes = {key: list(tensor.shape) for key, tensor in sharded.items()}
        return Shards(whole, {**shapes, **aliases}, {path.name: sha256(path)})

    def give_shards(self, state: dict[str, Any], folder: Path, shapes: dict[str, Any]) -> None:
        """Put this rank's rows into `state`, read from the files of all ranks that saved.

        shapes: by key, the shape of the whole tensor, or the earlier key of the same tensor (tied
        weights). Parts that are not in `state` are not read. A checkpoint of one process has no
        shards; its tensors are sharded here.
        """
        if self.world > 1 and not shapes:
            self._shard_all(state)
        tensors: dict[str, Tensor] = {}
        files = [safe_open(path, "pt") for path in sorted(folder.glob("shard-*.safetensors"))]
        for key, shape in shapes.items():
            if key.partition("/")[0] not in state:
                continue
            if isinstance(shape, str):
                tensors[key] = tensors[shape]
            else:
                tensors[key] = self._read(files, key, shape)
            *path, name = (int(word) if word.isdigit() else word for word in key.split("/"))
            place: Any = state
            for word in path:
                place = place[word]
            place[name] = tensors[key]

    def _shard_all(self, state: dict[str, Any]) -> None:
        """Shard the weights and the optimizer's averages in a checkpoint of one process."""
        weights = state["model"]
        for name, target in self._model.state_dict().items():
            if isinstance(target, DTensor) and name in weights:
                weights[name] = self._shard(weights[name])
        for values in state.get("optimizer", {"state": {}})["state"].values():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim() > 0:  # not the step count
                    values[name] = self._shard(value)

    def _shard(self, whole: Tensor) -> DTensor:
        return distribute_tensor(whole.to(self.device), self._mesh, [Shard(0)])

    def _read(self, files: list[Any], key: str, shape: list[int]) -> Tensor:
        """Read this rank's rows of one tensor."""
        first, last = rows(shape[0], self.rank, self.world)
        pieces = []
        for rank, file in enumerate(files):
            start, end = rows(shape[0], rank, len(files))
            low = max(first, start)
            high = min(last, end)
            if low < high:
                pieces.append(file.get_slice(key)[low - start : high - start])
        local = torch.cat(pieces) if pieces else torch.empty(0, *shape[1:])
        local = local.to(self.device)
        if self.world == 1:
            return local
        whole = torch.empty(shape, device="meta")
        return DTensor.from_local(
            local, self._mesh, [Shard(0)], shape=whole.shape, stride=whole.stride()
        )


def split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a checkpoint's state into its other values and its sharded tensors.

    A tensor's key is its path: {"optimizer/state/0/exp_avg": DTensor}.
    """
    whole: dict[str, Any] = {}
    sharded: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, DTensor):
            sharded[str(key)] = value
        elif isinstance(value, dict):
            whole[key], inner = split(value)
            for name, tensor in inner.items():
                sharded[f"{key}/{name}"] = tensor
        else:
            whole[key] = value
    return whole, sharded


def rows(count: int, rank: int, world: int) -> tuple[int, int]:
    """Return the rows [first, last) of `count` that a rank has, as `fully_shard` divides them."""
    size = -(-count // world)
    return min(rank * size, count), min((rank + 1) * size, count)
