"""Tensors that FSDP has sharded: each rank has its own rows of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def fill(tensor: Any, source: Tensor) -> None:
    """Copy a complete tensor into `tensor`; if that is sharded, each rank takes its own rows."""
    if hasattr(tensor, "to_local") and not hasattr(source, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        source = distribute_tensor(source.to(tensor.device), tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        own(tensor).copy_(own(source))


def own(tensor: Any) -> Any:
    """Return this rank's rows of a sharded tensor, or another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def names_not_finite(model: nn.Module) -> set[str]:
    """Return the names of the weights and buffers that have nan or inf (host sync)."""
    return {name for name, tensor in model.state_dict().items() if not own(tensor).isfinite().all()}
