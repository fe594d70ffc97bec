def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW, with weight decay for matrices only, and without frozen weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups: list = [
        {"params": [p for p in weights if p.dim() >= 2]},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0},
    ]
    # None is PyTorch's default, which is not fused.
    return torch.optim.AdamW(
        groups, weight_decay=settings.weight_decay, fused=settings.fused or None
    )
