"""Tokens per second and MFU: which share of the GPU's peak the model's own arithmetic makes up.

FLOPs are counted, not estimated: matrix products and attention of one forward and backward, run by
`torch.utils.flop_counter` on the meta device, where nothing is computed. Recomputed activations do not
count, a causal mask halves nothing (PaLM, appendix B), and the peak is the dense one of `gpus.yml`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .gpus import match, this_card
from .seams import Batch, Samples


@dataclass
class Work:
    """What one sample is, and what one device can do."""

    tokens: int = 0  # targets of a full sample; 0 where a workload does not count in tokens
    peak: float = 0.0  # FLOP/s; 0 where it is not known
    why: str = ""
    count: Callable[[], float] = float  # FLOPs of forward and backward; called once, for the first row

    @cached_property
    def flops(self) -> float:
        return self.count()

    @property
    def sentence(self) -> str:
        """What a run's start says of it; nothing where a workload does not count in tokens."""
        return f" of {self.tokens:,} tokens; MFU {self.why}" if self.tokens else ""

    def rates(self, samples_per_second: float, devices: int) -> dict[str, float]:
        """Metrics of a training that takes so many samples a second on all devices together."""
        rates = {"tokens_per_second": samples_per_second * self.tokens} if self.tokens else {}
        if self.peak and self.flops:
            rates["mfu"] = samples_per_second * self.flops / (self.peak * devices)
        return rates


def measure(
    samples: Samples, build: Callable[[], nn.Module], batch: Batch, device: torch.device, precision: str
) -> Work:
    """The work of one sample. build: gives the model, plain and without its optimizations."""
    if not (tokens := getattr(samples, "tokens", 0)):
        return Work()
    peak, why = peak_of(device, precision)
    if hasattr(samples, "typical"):  # of ragged ones the first is as good as any, and padding is no work
        batch = samples.typical()
    shapes = {name: torch.empty_like(value[:1], device="meta") for name, value in batch.items()}
    return Work(tokens, peak, why, lambda: count_flops(build, shapes))


def count_flops(build: Callable[[], nn.Module], batch: Batch) -> float:
    """FLOPs of forward and backward over one sample; `batch` gives shapes only."""
    first = {name: torch.empty_like(value[:1], device="meta") for name, value in batch.items()}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), FlopCounterMode(display=False) as counter:
        build()(first).loss.backward()
    return float(counter.get_total_flops())


def peak_of(device: torch.device, precision: str) -> tuple[float, str]:
    """Dense FLOP/s of the device in this precision, and a sentence; 0 where it is not known.

    fp8 has none: some layers multiply in fp8 and others in bf16, so no single peak fits.
    """
    card = this_card(device)
    if card.capability is None:
        return 0.0, "n/a: there is no GPU"
    if precision == "fp8":
        return 0.0, "n/a: fp8 and bf16 layers have different peaks"
    gpu, why = match(card.name, card.sm_count, card.memory_gb)
    if gpu is None or precision not in gpu.tflops:
        return 0.0, f"n/a: {why if gpu is None else f'no published {precision} peak'}"
    return gpu.tflops[precision] * 1e12, f"of {gpu.tflops[precision]:g} TFLOPS, {gpu.label} dense {precision}"
