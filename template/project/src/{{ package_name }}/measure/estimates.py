"""Estimate the time of a step and the price of an epoch, on this CPU and on every known card."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from ..engine.compute.gpu_table import Gpu, gpu_table
from ..engine.compute.gpus import Card, resolve_precision
from ..engine.errors import UserError
from .costs import HALF, Costs, Device, Recorder, card

if TYPE_CHECKING:
    from ..settings import Settings

Count = Callable[[str, bool], Costs]  # (precision, whether on a GPU) to the costs of a micro-batch


def this_cpu(precision: str = "fp32") -> Device:
    """Measure this machine's CPU: products, memory, and the host's time per operation."""
    square = torch.randn(1024, 1024)
    halves = square.to(HALF.get(precision, torch.float32))
    products = 2 * square.shape[0] ** 3

    # On a CPU, functions and random numbers also take time, so measure them with the memory.
    wide = torch.randn(1024, 1024, requires_grad=True)

    def mixed() -> None:
        functional.dropout(functional.gelu(wide).softmax(-1), 0.1).sum().backward()

    layers = nn.Sequential()
    for _ in range(8):
        layers.append(nn.Linear(8, 8))
        layers.append(nn.ReLU())

    def small() -> None:
        layers(torch.ones(4, 8)).sum().backward()

    moved = Costs(0, 0, 0, 0)
    with Recorder(moved):
        mixed()
    launched = Costs(0, 0, 0, 0)
    with Recorder(launched):
        small()
    return Device(
        "cpu",
        precision,
        flops=products / fastest(lambda: square @ square),
        half_flops=products / fastest(lambda: halves @ halves),
        bandwidth=moved.bytes / fastest(mixed),
        memory=0.0,
        launch=fastest(small) / launched.kernels,
        is_host=True,
    )


def fastest(function: Callable[[], Any], seconds: float = 0.4) -> float:
    """Return the seconds of the fastest call, since other work on the machine only adds time."""
    function()
    best = float("inf")
    start = time.perf_counter()
    end = start + seconds
    while start < end:
        function()
        stop = time.perf_counter()
        best = min(best, stop - start)
        start = stop
    return best


def estimates(
    settings: Settings, *, epoch: int, keys: list[str], prices: dict[str, float], count: Count
) -> list[dict[str, Any]]:
    """Return a row for this CPU and each card; the cheapest or fastest is first.

    epoch: number of steps of an epoch. prices: price of an hour, by card. count: counts the costs
    of a micro-batch. Cards without enough memory are last.
    """
    precision = settings.training.precision
    host = this_cpu(precision if precision in HALF else "fp32")
    # Costs depend only on the dtype and, in half precision, on whether it is a GPU.
    known: dict[Any, Costs] = {}
    rows: list[dict[str, Any]] = []
    for key in ("cpu", *keys):
        gpu = gpu_table().get(key)
        try:
            resolved = resolve(precision, gpu)
        except UserError as error:
            rows.append({"card": key, "fits": False, "why": str(error)})
            continue
        is_half_on_gpu = resolved in HALF and gpu is not None
        key_of_costs = (HALF.get(resolved), is_half_on_gpu)
        if key_of_costs not in known:
            known[key_of_costs] = count(resolved, gpu is not None)
        costs = known[key_of_costs]
        device = host if gpu is None else card(gpu, resolved, host.launch)
        price = prices.get(key, settings.value("estimate.price_per_hour"))
        rows.append(
            {
                "card": key,
                "fits": device.fits(costs),
                "precision": resolved,
                "memory_gb": costs.memory / 1e9,
                "card_gb": None if gpu is None else gpu.memory_gb,
                **times(settings, device, costs, epoch, price),
            }
        )
    return sorted(rows, key=rank)


def times(
    settings: Settings, device: Device, costs: Costs, epoch: int, price: float
) -> dict[str, Any]:
    """Return the time of a step, an epoch and the run on a device, and the price of an epoch."""
    training = settings.training
    steps = training.max_steps or training.epochs * epoch
    seconds, bound = device.step(costs, training.gradient_accumulation_steps)
    hours = seconds * epoch / 3600
    return {
        "step_ms": 1000 * seconds,
        "bound": bound,
        "epoch_hours": hours,
        "run_hours": seconds * steps / 3600,
        "epoch_price": hours * price if price else None,
    }


def resolve(precision: str, gpu: Gpu | None) -> str:
    """Return the precision that training would use on a card."""
    if gpu is None:
        return resolve_precision(precision, Card("CPU", None))[0]
    major, minor = map(int, gpu.sm.split("."))
    card = Card(gpu.label, (major, minor), hip=gpu.wheel.startswith("rocm"))
    return resolve_precision(precision, card)[0]


def rank(row: dict[str, Any]) -> tuple:
    """Return the sort key of a row: the price, or the time if there is no price.

    Cards without enough memory come after the others, and impossible precisions come last. Among
    equally fast cards, for example if all wait for the host, the smaller one comes first.
    """
    price = row.get("epoch_price")
    step_ms = round(row.get("step_ms", 0.0), 2)  # equal if printed the same
    memory = row.get("card_gb") or 0.0
    return "why" in row, not row["fits"], price is None, price or 0.0, step_ms, memory
