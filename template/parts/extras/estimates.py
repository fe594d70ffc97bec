"""How long a step takes on this CPU and on every card of the table, and what an epoch costs there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from ..engine.errors import UserError
from ..engine.gpus import resolve_precision, table
from .costs import HALF, Costs, Device, Recorder, card

if TYPE_CHECKING:
    from ..config import Settings

Count = Callable[[str, bool], Costs]  # of a micro-batch, by the precision and whether on a GPU


def this_cpu(precision: str = "fp32") -> Device:
    """This machine's CPU, measured for a second: products, memory, and the host's time for an operation."""
    dtype = HALF.get(precision, torch.float32)
    square, wide = torch.randn(1024, 1024), torch.randn(1024, 1024, requires_grad=True)
    products = 2 * square.shape[0] ** 3
    layers = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.ReLU())))
    # On a CPU memory alone bounds little: functions and random numbers take their part.
    mixed = lambda: functional.dropout(functional.gelu(wide).softmax(-1), 0.1).sum().backward()  # noqa: E731
    small = lambda: layers(torch.ones(4, 8)).sum().backward()  # noqa: E731
    moved, launched = Costs(0, 0, 0, 0), Costs(0, 0, 0, 0)
    with Recorder(moved):
        mixed()
    with Recorder(launched):
        small()
    halves = square.to(dtype)
    full, half = products / fastest(lambda: square @ square), products / fastest(lambda: halves @ halves)
    bandwidth, launch = moved.bytes / fastest(mixed), fastest(small) / launched.kernels
    return Device("cpu", precision, full, half, bandwidth, 0.0, launch, is_host=True)


def fastest(function: Callable[[], Any], seconds: float = 0.4) -> float:
    """Seconds of the fastest call: what else runs on the machine only adds."""
    function()
    end, best = time.perf_counter() + seconds, float("inf")
    while (start := time.perf_counter()) < end:
        function()
        best = min(best, time.perf_counter() - start)
    return best


def estimates(
    settings: Settings, *, epoch: int, keys: list[str], prices: dict[str, float], count: Count
) -> list[dict[str, Any]]:
    """A row for this CPU and for each card, cheapest or fastest first; what does not fit comes last.

    epoch: steps of one. prices: of an hour, by card. count: the costs of a micro-batch.
    """
    training, precision = settings.training, settings.training.precision
    host = this_cpu(precision if precision in HALF else "fp32")
    steps = training.max_steps or training.epochs * epoch
    known: dict[Any, Costs] = {}  # by the type of number and, for half precision, whether on a GPU
    rows: list[dict[str, Any]] = []
    for key in ("cpu", *keys):
        gpu = table().get(key)
        try:
            rocm = gpu is not None and gpu.wheel.startswith("rocm")
            major, minor = map(int, gpu.sm.split(".")) if gpu else (0, 0)
            resolved, _ = resolve_precision(precision, (major, minor) if gpu else None, rocm)
        except UserError as error:
            rows.append({"card": key, "fits": False, "why": str(error)})
            continue
        device = card(gpu, resolved, host.launch) if gpu else host
        key_of_costs = HALF.get(resolved), resolved in HALF and gpu is not None
        if key_of_costs not in known:
            known[key_of_costs] = count(resolved, gpu is not None)
        costs = known[key_of_costs]
        seconds, bound = device.step(costs, training.gradient_accumulation_steps)
        price, hours = prices.get(key, settings.value("estimate.price_per_hour")), seconds * epoch / 3600
        rows.append(
            {
                "card": key,
                "fits": device.fits(costs),
                "precision": resolved,
                "memory_gb": costs.memory / 1e9,
                "card_gb": gpu.memory_gb if gpu else None,
                "step_ms": 1000 * seconds,
                "bound": bound,
                "epoch_hours": hours,
                "run_hours": seconds * steps / 3600,
                "epoch_price": hours * price if price else None,
            }
        )
    return sorted(rows, key=rank)


def rank(row: dict[str, Any]) -> tuple:
    """What is impossible last, before it what does not fit; else by price, or by time where there is none.

    Of cards that are as fast, as where all wait for the host, the smaller one first.
    """
    price, seconds = row.get("epoch_price"), round(row.get("step_ms", 0.0), 2)  # as they are printed
    return "why" in row, not row["fits"], price is None, price or 0.0, seconds, row.get("card_gb") or 0.0
