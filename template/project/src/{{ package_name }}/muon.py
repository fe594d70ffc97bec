"""Muon for the matrices in blocks, AdamW for all other weights (`optimizer.name: muon`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .engine.errors import UserError
from .optimizer import decay_groups


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan 2024) for the first group, of matrices, and AdamW for the other groups.

    Muon's update is the orthogonalized average of gradients, computed in bfloat16. It is scaled to
    the size of AdamW's update (Liu et al. 2025), so that one learning rate and weight decay suit
    both. Muon keeps one average per matrix, AdamW two. A sharded matrix has the same update as a
    whole one, since its rows are exchanged.
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
        """Make one step with both optimizers."""
        loss = None
        if closure is not None:  # frameworks pass one
            loss = closure()
        # Do this at each step, because loading a state replaces the groups.
        muon, adamw = self.parts
        muon.param_groups = self.param_groups[:1]
        adamw.param_groups = self.param_groups[1:]
        for optimizer in self.parts:
            optimizer.state = self.state
            optimizer.step()
        return loss


def build(model: nn.Module, decay: float, **options: Any) -> MuonAdamW:
    """Build the optimizer: Muon for the inner matrices, AdamW for all other weights."""
    matrices = inner_matrices(model)
    in_muon = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in in_muon]
    return MuonAdamW(matrices, decay_groups(others, decay), decay, **options)


def inner_matrices(model: Any) -> list[Tensor]:
    """Return the trained weight matrices (out, in) of blocks, without embeddings and heads.

    Raises `UserError` if there is none.
    """
    embeddings = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))

    matrices: dict[int, Tensor] = {}  # by id, because a weight may be in two blocks
    for block in model.blocks():
        if getattr(block, "recomputes", True):
            for weight in block.parameters():
                is_embedding = id(weight) in embeddings
                if not is_embedding and weight.dim() == 2 and weight.requires_grad:
                    matrices[id(weight)] = weight
    if not matrices:
        what = "no block of the model has a matrix to train"
        remedy = "use optimizer.name adamw, or return your layers in blocks()"
        raise UserError(what, "optimizer.name muon", remedy)
    return list(matrices.values())
