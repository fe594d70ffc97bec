"""Tensors that FSDP has split: of each, a rank keeps its own rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fill(tensor: Any, source: Tensor) -> None:
    """Copy a complete tensor in place; of a sharded one, each rank takes its rows (collective)."""
    source = source.to(tensor.device)
    if hasattr(tensor, "to_local") and not hasattr(source, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        source = distribute_tensor(source, tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        own(tensor).copy_(own(source))


def own(tensor: Any) -> Tensor:
    """Return this rank's rows of a sharded tensor, or another tensor as it is."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
