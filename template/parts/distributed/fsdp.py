"""Sharding: each process has a shard of the model (fully_shard, FSDP2).

`torchrun --nproc_per_node=4 -m <package> train` starts the processes. A rank keeps its rows of
every weight, gradient and optimizer state. The weights of a block are gathered just before it runs,
and freed after it. So a model may be too large for one device; a small model only gets slower.

`checkpoint.py` saves a file or more for each rank, which any number of processes can read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from .group import Group

METHODS = ("predict", "generate")  # methods of a model that are called in addition to its forward


class Distributed(Group):
    """Rank, world size and device of this process; shards the model."""

    forward_exchanges = True
    _model: Any = None
    mesh: Any = None

    def wrap(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        """Shard the model in place, block by block; the other weights are one more shard.

        dtype: that of gathered weights; gradients are summed and kept in float32. A head, which is
        a block whose `recomputes` is False, belongs to the other weights, because it may use the
        weight of an embedding.
        """
        if self.world == 1:
            return model
        if self.mesh is None:
            self.mesh = init_device_mesh(self.device.type, (self.world,))
        reduce_dtype = torch.float32 if dtype else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype)
        for block in model.blocks():  # type: ignore[operator]
            # These modules are called outside of the block's forward.
            for inner in getattr(block, "apart", list)():
                fully_shard(inner, mesh=self.mesh, mp_policy=policy)
            if getattr(block, "recomputes", True):
                fully_shard(block, mesh=self.mesh, mp_policy=policy)
        # A batch also has targets and values of any size, so it is not cast.
        policy = replace(policy, cast_forward_inputs=False)
        self._model = fully_shard(model, mesh=self.mesh, mp_policy=policy)
        for name in METHODS:
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)
        return model

    def exchange_gradients(self, enabled: bool) -> None:
        """Keep gradients local, whole and in memory, for all but the last micro-batch of a step."""
        if self._model is not None:
            self._model.set_requires_gradient_sync(enabled)
