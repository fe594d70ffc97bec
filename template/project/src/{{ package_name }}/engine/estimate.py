"""How long a step takes on any card, before one is rented: the work of `costs.py` against the table of GPUs.

Each operation takes the longer of its FLOPs at the card's dense peak and its bytes at its bandwidth (a
roofline: Williams et al., 2009), and the step no less than the host needs to launch its operations. Real
steps take longer, because no kernel reaches a peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from .costs import HALF, Costs, Recorder
from .errors import UserError
from .gpus import Gpu, resolve_precision, table

CONTEXT_BYTES = 0.8e9  # CUDA's own, and what its allocator cannot use
USABLE = 0.93  # share of the sold memory that a driver reports
UPDATE_PASSES = 10  # over all weights: norm, division, and what AdamW reads and writes
UPDATE_KERNELS = 20


class Device(NamedTuple):
    """What a roofline needs of a card, or of this CPU. Rates are per second."""

    name: str
    precision: str
    flops: float  # of products in fp32 or TF32
    half_flops: float
    bandwidth: float  # bytes
    memory: float  # bytes
    launch: float = 0.0  # seconds of the host for an operation
    is_host: bool = False  # launches and computes in turn, not side by side

    def fits(self, costs: Costs) -> bool:
        return self.is_host or costs.memory + CONTEXT_BYTES <= USABLE * self.memory

    def step(self, costs: Costs, accumulation: int = 1) -> tuple[float, str]:
        """Seconds of an optimizer step at best, and what bounds it: compute, memory or launch."""
        compute = memory = 0.0
        for (flops, size, half), count in costs.operations.items():
            by_flops, by_bytes = flops / (self.half_flops if half else self.flops), size / self.bandwidth
            if by_flops > by_bytes:
                compute += count * by_flops
            else:
                memory += count * by_bytes
        update = UPDATE_PASSES * 4 * costs.parameters / self.bandwidth
        bounds = {"compute": accumulation * compute, "memory": accumulation * memory + update}
        device, launch = sum(bounds.values()), self.launch * (accumulation * costs.kernels + UPDATE_KERNELS)
        if self.is_host or launch > device:
            bounds["launch"] = launch
        seconds = device + launch if self.is_host else max(device, launch)
        return seconds, max(bounds, key=lambda name: bounds[name])


def card(gpu: Gpu, precision: str, launch: float = 0.0) -> Device:
    """A row of the table in a resolved precision. launch: seconds of the host for an operation."""
    full = gpu.tflops.get("fp32", min(gpu.tflops.values()))  # unpublished for some: at best the slowest other
    full = full if precision == "fp32" else gpu.tflops.get("tf32", full)
    half = gpu.tflops.get("bf16" if precision == "fp8" else precision, full)
    rates = (full * 1e12, half * 1e12, gpu.bandwidth * 1e9, gpu.memory_gb * 1e9)
    return Device(gpu.key, precision, *rates, launch)


def this_cpu(precision: str = "fp32") -> Device:
    """This machine's CPU, measured for a second: products, memory, and the host's time for an operation."""
    dtype = HALF.get(precision, torch.float32)
    square, wide = torch.randn(1024, 1024), torch.randn(1024, 1024, requires_grad=True)
    halves, products = square.to(dtype), 2 * square.shape[0] ** 3
    layers = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.ReLU())))
    # On a CPU memory alone bounds little: functions and random numbers take their part.
    mixed = lambda: functional.dropout(functional.gelu(wide).softmax(-1), 0.1).sum().backward()  # noqa: E731
    small = lambda: layers(torch.ones(4, 8)).sum().backward()  # noqa: E731
    moved, launched = Costs(0, 0, 0, 0), Costs(0, 0, 0, 0)
    with Recorder(moved):
        mixed()
    with Recorder(launched):
        small()
    return Device(
        "cpu",
        precision,
        products / fastest(lambda: square @ square),
        products / fastest(lambda: halves @ halves),
        moved.bytes / fastest(mixed),
        0.0,
        fastest(small) / launched.kernels,
        is_host=True,
    )


def fastest(function: Callable[[], Any], seconds: float = 0.4) -> float:
    """Seconds of the fastest call: what else runs on the machine only adds."""
    function()
    end, best = time.perf_counter() + seconds, float("inf")
    while (start := time.perf_counter()) < end:
        function()
        best = min(best, time.perf_counter() - start)
    return best


def estimates(
    settings: Any, epoch: int, keys: list[str], prices: Mapping[str, float], count: Callable[[str], Costs]
) -> list[dict[str, Any]]:
    """A row for this CPU and for each card, cheapest or fastest first; what does not fit comes last.

    epoch: steps of one. prices: of an hour, by card. count: the costs of a micro-batch in a precision.
    """
    training, precision = settings.training, settings.training.precision
    host = this_cpu(precision if precision in HALF else "fp32")
    steps = training.max_steps or training.epochs * epoch
    known: dict[Any, Costs] = {}
    rows = []
    for key in ("cpu", *keys):
        gpu = table().get(key)
        try:
            resolved, _ = resolve_precision(
                precision, gpu.capability if gpu else None, gpu is not None and gpu.wheel.startswith("rocm")
            )
        except UserError as error:
            rows.append({"card": key, "fits": False, "why": str(error)})
            continue
        device = card(gpu, resolved, host.launch) if gpu else host
        if HALF.get(resolved) not in known:
            known[HALF.get(resolved)] = count(resolved)
        costs = known[HALF.get(resolved)]
        seconds, bound = device.step(costs, training.gradient_accumulation_steps)
        price = prices.get(key, settings.monitor.price_per_hour)
        row = {
            "card": key,
            "fits": device.fits(costs),
            "precision": resolved,
            "memory_gb": costs.memory / 1e9,
        }
        row |= {"card_gb": gpu.memory_gb if gpu else None, "step_ms": 1000 * seconds, "bound": bound}
        row |= {"epoch_hours": seconds * epoch / 3600, "run_hours": seconds * steps / 3600}
        rows.append(row | {"epoch_price": seconds * epoch / 3600 * price if price else None})
    return sorted(rows, key=rank)


def rank(row: dict[str, Any]) -> tuple:
    """What is impossible last, before it what does not fit; else by price, or by time where there is none."""
    price, seconds = row.get("epoch_price"), row.get("step_ms", 0.0)
    return "why" in row, not row["fits"], price is None, price or 0.0, seconds
