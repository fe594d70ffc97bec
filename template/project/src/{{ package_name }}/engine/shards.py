"""Files of tensors, and tensors that FSDP has sharded: each rank keeps its own rows of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from .files import sync


class Shards(NamedTuple):
    """The result of `save_shards` on one rank."""

    whole: dict[str, Any]  # the state without sharded tensors
    shapes: dict[str, Any]  # of sharded tensors; of a tied weight, the key of the other one
    sha256: dict[str, str]  # of the file with this rank's rows


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


# --- files


def save_tensors(tensors: dict[str, Tensor], path: Path) -> dict[str, str]:
    """Write each tensor once; return the names that share a tensor with another (tied weights)."""
    unique: dict[str, Tensor] = {}
    first_names: dict[tuple[Any, ...], str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and key in first_names:
            aliases[name] = first_names[key]
        else:
            first_names[key] = name
            unique[name] = tensor.contiguous()
    write_tensors(save_file, unique, path)
    return aliases


def write_tensors(save: Callable[..., None], content: dict[str, Any], path: Path) -> None:
    try:
        save(content, path)
    except (RuntimeError, SafetensorError) as error:
        # Both libraries raise these for a full disk.
        raise OSError(str(error)) from error
    sync(path)
