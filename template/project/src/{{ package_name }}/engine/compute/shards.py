"""Tensors that FSDP has sharded: each rank has its own rows of them."""

from __future__ import annotations

from typing import Any

from torch import nn


def own(tensor: Any) -> Any:
    """Return this rank's rows of a sharded tensor, or another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def names_not_finite(model: nn.Module) -> set[str]:
    """Return the names of the weights and buffers that have nan or inf (host sync)."""
    return {name for name, tensor in model.state_dict().items() if not own(tensor).isfinite().all()}
