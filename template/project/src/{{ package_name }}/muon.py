"""Muon for the matrices in blocks, AdamW for all other weights (`optimizer.name: muon`).

`assemble.py` calls it instead of `build_optimizer` in `optimizer.py`, which builds the AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .engine.errors import UserError
from .optimizer import build_optimizer


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan 2024) for the first group, of matrices, and AdamW for the other groups.

    Muon's update is the orthogonalized average of gradients, computed in bfloat16. It is scaled to
    the size of AdamW's update (Liu et al. 2025), so that one learning rate and weight decay suit
    both. Muon keeps one average per matrix, AdamW two. A sharded matrix has the same update as a
    whole one, since its rows are exchanged.
    """

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer):
        self.parts = (muon, adamw)
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


def build_muon(model: nn.Module, all_settings: Any) -> MuonAdamW:
    """Build Muon for the inner matrices, with the AdamW of `optimizer.py` for all other weights."""
    settings = all_settings.optimizer
    matrices = inner_matrices(model)
    in_muon = {id(weight) for weight in matrices}
    adamw = build_optimizer(model, all_settings)
    for group in adamw.param_groups:
        group["params"] = [weight for weight in group["params"] if id(weight) not in in_muon]
    muon = torch.optim.Muon(
        matrices,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonAdamW(muon, adamw)


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
