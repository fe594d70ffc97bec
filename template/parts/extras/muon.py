"""Muon for the matrices in blocks, AdamW for all other weights (`optimizer.name: muon`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .errors import UserError
from .optimization import decay_groups


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan 2024) for its first group, of matrices, and AdamW for the others.

    Muon's update is the mean of gradients made orthogonal, in bfloat16, scaled to the size of
    AdamW's (Liu et al. 2025), so that one learning rate and weight decay suit both. It keeps one
    average per matrix instead of two. A sharded matrix, whose rows are exchanged, has the update of
    the whole one.
    """

    def __init__(
        self, matrices: list[Tensor], others: list[dict[str, Any]], decay: float, **options: Any
    ):
        muon = torch.optim.Muon(
            matrices, lr=options["lr"], weight_decay=decay, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(others, **options)
        self.parts: tuple[torch.optim.Optimizer, torch.optim.Optimizer] = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """Make one step of both."""
        loss = None
        if closure is not None:  # a framework's
            loss = closure()
        # Each time, because loading a state puts new groups in their place.
        muon, adamw = self.parts
        muon.param_groups = self.param_groups[:1]
        adamw.param_groups = self.param_groups[1:]
        for optimizer in self.parts:
            optimizer.state = self.state
            optimizer.step()
        return loss


def inner_matrices(model: Any) -> list[Tensor]:
    """Return the trained weights (out, in) in blocks, for Muon: no embeddings, no heads."""
    embeddings = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))

    matrices: dict[int, Tensor] = {}  # by id: a weight may be in two blocks
    for block in model.blocks():
        if getattr(block, "recomputes", True):
            for weight in block.parameters():
                is_embedding = id(weight) in embeddings
                if not is_embedding and weight.dim() == 2 and weight.requires_grad:
                    matrices[id(weight)] = weight
    return list(matrices.values())


def make_optimizer(
    model: nn.Module, decay: float, options: dict[str, Any]
) -> torch.optim.Optimizer:
    """Make the optimizer; `options` are AdamW's. Raises `UserError` if blocks have no matrix."""
    matrices = inner_matrices(model)
    if not matrices:
        what = "no block of the model has a matrix to train"
        remedy = "choose adamw, or name your layers in blocks()"
        raise UserError(what, "optimizer.name muon", remedy)
    in_muon = set(map(id, matrices))
    others = [weight for weight in model.parameters() if id(weight) not in in_muon]
    return MuonAdamW(matrices, decay_groups(others, decay), decay, **options)
