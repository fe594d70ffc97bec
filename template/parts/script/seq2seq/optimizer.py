def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW or Adafactor, with weight decay for matrices only, without frozen weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups: list = [
        {"params": [p for p in weights if p.dim() >= 2]},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0},
    ]
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, weight_decay=settings.weight_decay)
    # None is PyTorch's default, which is not fused.
    fused = settings.fused or None
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=fused)
