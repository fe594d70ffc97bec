"""The optimizer and its learning rate. Change both as you like: `train.py` calls them.

Their settings are the classes `Optimizer` and `Schedule` in `settings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .engine.settings import EngineSettings

ONECYCLE_START = 1 / 25  # first learning rate over the peak (Smith & Topin 2018; OneCycleLR)
ONECYCLE_END = ONECYCLE_START / 1e4


def build_optimizer(model: nn.Module, all_settings: EngineSettings) -> torch.optim.Optimizer:
    """Build AdamW or Adafactor. Frozen weights are left out.

    fused: one kernel updates all weights, on CUDA and on a CPU. Under fp16, a fused optimizer reads
    the overflow flag on the device; any other one waits for the GPU in each step. Adafactor
    (Shazeer & Stern 2018) has no such kernel. Its learning rate is relative to the size of each
    weight; betas and epsilon have no effect on it.
    """
    settings = all_settings.optimizer
    groups = decay_groups(model.parameters(), settings.weight_decay)
    if settings.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=settings.learning_rate)
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=settings.fused or None,  # None is PyTorch's default, which is not fused
    )


def decay_groups(weights: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Group the trained weights: matrices get weight decay, biases and norms get none.

    A group whose learning rate shall differ from that of the others gets a factor as `lr_factor`.
    """
    trained = [weight for weight in weights if weight.requires_grad]
    return [
        {"params": [weight for weight in trained if weight.dim() >= 2], "weight_decay": decay},
        {"params": [weight for weight in trained if weight.dim() < 2], "weight_decay": 0.0},
    ]


def is_fused(all_settings: EngineSettings) -> tuple[str, str]:
    """Return whether one kernel updates all weights, and why, for the table at the start."""
    settings = all_settings.optimizer
    if settings.name not in ("adamw", "muon"):
        return "off", f"{settings.name} has no fused kernel"
    return "on" if settings.fused else "off", ""


# --- the learning rate


def learning_rate(step: int, num_steps: int, all_settings: EngineSettings) -> float:
    """Return the learning rate of a step (from 0) in a run of `num_steps`. It has no state.

    The warm-up is linear, except for OneCycle. wsd decays with the square root of the steps, which
    reached lower losses than a straight line (Hägele et al. 2024, arXiv 2405.18392). `final_factor`
    holds at the end, but OneCycle has an end of its own.
    """
    schedule = all_settings.schedule
    peak: float = all_settings.optimizer.learning_rate
    warmup, decay_start = warmup_and_decay(num_steps, all_settings)

    if schedule.name == "onecycle" and step < warmup:
        return peak * cosine(ONECYCLE_START, 1.0, step / max(warmup - 1, 1))
    if schedule.name == "onecycle":
        return peak * cosine(1.0, ONECYCLE_END, (step - warmup + 1) / max(num_steps - warmup, 1))
    if step < warmup:
        return peak * ((step + 1) / warmup)
    passed = min(max(step - decay_start, 0) / max(num_steps - decay_start, 1), 1.0)
    if schedule.name == "cosine":
        return peak * cosine(1.0, schedule.final_factor, passed)
    if schedule.name == "linear":
        return peak * (1.0 + (schedule.final_factor - 1.0) * passed)
    if schedule.name == "wsd":
        return peak * (1.0 + (schedule.final_factor - 1.0) * math.sqrt(passed))
    return peak


def warmup_and_decay(num_steps: int, all_settings: EngineSettings) -> tuple[int, int]:
    """Return the steps of the warm-up, and the step from which the learning rate decays.

    With `auto`, the warm-up takes 100 steps, but at most a tenth of the run, so that a short run
    has time to decay; for OneCycle it takes 30 % of the run. Between the warm-up and the decay the
    rate is the peak, so the length of the run may change there.
    """
    schedule = all_settings.schedule
    warmup = schedule.warmup_steps
    if warmup == "auto":
        warmup = min(100, num_steps // 10)
        if schedule.name == "onecycle":
            warmup = round(0.3 * num_steps)
    if schedule.name == "constant":
        return warmup, num_steps
    if schedule.name != "wsd":
        return warmup, warmup
    decay = schedule.decay_steps
    if decay == "auto":
        decay = num_steps // 5
    return warmup, max(warmup, num_steps - decay)


def cosine(start: float, end: float, passed: float) -> float:
    """Return the value on half a cosine from `start` to `end`. passed: from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2
