"""A gradient that overflows, as under fp16."""

import itertools

import torch


def overflowing():
    """Gradients of this process's seventh step are infinite."""
    real = torch.amp.GradScaler.unscale_
    calls = itertools.count(1)

    def unscale(self, optimizer):
        if next(calls) == 7:
            optimizer.param_groups[0]["params"][0].grad.fill_(float("inf"))
        real(self, optimizer)

    torch.amp.GradScaler.unscale_ = unscale  # type: ignore[method-assign]
