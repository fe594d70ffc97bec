"""Copies complete tensors into weights, which FSDP may have sharded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .precision import own


def fill(tensor: Any, source: Tensor) -> None:
    """Copy a complete tensor into `tensor`; if that is sharded, each rank takes its own rows."""
    if hasattr(tensor, "to_local") and not hasattr(source, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        source = distribute_tensor(source.to(tensor.device), tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        own(tensor).copy_(own(source))
