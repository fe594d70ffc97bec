"""Estimate memory, time and price of a run on each card, without a GPU, before you rent one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.compute.gpu_table import gpu_table
from ..engine.errors import UserError
from ..engine.monitoring.report import Record, numbers
from ..engine.sources import read

if TYPE_CHECKING:
    from ..measure.costs import Costs
    from ..settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("--json", action="store_true", help="print a JSON list instead of a table")
    add(
        "--gpu", nargs="+", action="extend", metavar="NAME", help="cards to estimate (default: all)"
    )
    price = "price per hour of a card, such as h100=2.5 (default: estimate.price_per_hour)"
    add("--price", nargs="+", action="extend", metavar="NAME=X", default=[], help=price)


def main(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Print a table with the fastest card first, or the cheapest one if there are prices."""
    names = arguments.gpu or gpu_table()
    keys = [known(name, "--gpu") for name in names if name != "cpu"]
    prices = dict(map(priced, arguments.price))
    settings = load()

    from ..measure.estimates import estimates

    measure, batches_per_epoch, size = counter(settings)
    epoch = -(-batches_per_epoch // settings.training.gradient_accumulation_steps)
    try:
        rows = estimates(settings, epoch=epoch, keys=keys, prices=prices, count=measure)
    except (RuntimeError, NotImplementedError) as error:
        what = f"the costs need values, not only shapes ({str(error).splitlines()[0]})"
        remedy = "avoid calls that read a value, such as `.item()`, in forward"
        raise UserError(what, "model.py", remedy) from error
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0

    print_costs(measure("fp32", False), epoch)
    print(f"prepared data: {size / 1e9:,.3g} GB, on the device if they stay there\n")
    print("\n".join(table(rows)))
    advice = "Divide them by the fraction of the roofline that your runs reach."
    print(f"\nThese times are lower bounds, since no kernel reaches its peak. {advice}")
    return 0


def counter(settings: Settings) -> tuple[Callable[[str, bool], Costs], int, int]:
    """Return a function that counts the costs of a micro-batch, the batches of an epoch, and the
    bytes of all rows."""
    import torch

    from ..assemble import open_store
    from ..dataset import Samples
    from ..engine.loading.loader import Loader
    from ..engine.training.project import make_order
    from ..measure.costs import count
    from ..model import build_model

    store = open_store(settings)
    samples: Any = Samples(store, settings, "train")
    samples.training = True
    order = make_order(samples, settings)
    loader: Any = Loader(samples, store, settings, order, torch.device("cpu"))
    batches = loader.epoch(0)
    batch = next(batches)
    batches.close()
    loader.close()

    def measure(precision: str, on_gpu: bool) -> Costs:
        return count(
            lambda: build_model(settings, store.facts),
            batch,
            precision,
            settings.training.gradient_checkpointing,
            settings.optimizer.name,
            on_gpu,
        )

    size = sum(array.shape[0] * array.row_bytes for array in store.arrays.values())
    return measure, len(loader), size


def print_costs(costs: Costs, epoch: int) -> None:
    batches = f"epochs of {epoch:,} steps, micro-batches of {costs.samples:,}"
    print(f"{costs.parameters:,} parameters, {batches}")
    moved = f"{costs.bytes / 1e9:,.3g} GB moved, {costs.kernels:,} operations"
    print(f"a micro-batch in fp32: {costs.flops / 1e9:,.3g} GFLOP, {moved}")
    parts = [f"{name} {amount / 1e9:.3g}" for name, amount in costs.parts.items()]
    print(f"GB in fp32: {', '.join(parts)}")


def known(name: str, where: str) -> str:
    """Return the key of a card in the table, or `cpu`. Raises `UserError` for another name."""
    key = name.lower()
    if key in ("cpu", *gpu_table()):
        return key
    longer = [card for card in gpu_table() if card.startswith(key)]
    similar = get_close_matches(key, gpu_table(), 1)
    remedy = f"choose from {', '.join(longer or gpu_table())}"
    if similar and not longer:
        remedy = f"did you mean {similar[0]}?"
    raise UserError(f"no card {name!r} in the table", where, remedy)


def priced(text: str) -> tuple[str, float]:
    """Parse `h100=2.5`. Raises `UserError` for anything else."""
    name, _, price = text.partition("=")
    try:
        value = float(price)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"invalid price {text!r}", "--price", "write NAME=PRICE, such as h100=2.5")
    return known(name, "--price"), value


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table for a terminal."""
    columns = {
        "card": 16,
        "precision": 11,
        "memory, GB": 16,
        "step, ms": 11,
        "bound by": 10,
        "epoch": 10,
        "run": 10,
        "price of an epoch": 0,
    }
    lines = []
    for cells in (tuple(columns), *map(shown, rows)):
        padded = [cell.ljust(width) for cell, width in zip(cells, columns.values(), strict=True)]
        lines.append("".join(padded).rstrip())
    if any("why" not in row and not row["fits"] for row in rows):
        lines.append("! does not fit")
    return lines


def shown(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a card."""
    if "why" in row:
        return row["card"], row["why"], *[""] * 6
    memory = f"{row['memory_gb']:.2f}"
    if row["card_gb"]:
        memory += f" of {row['card_gb']:g}"
    if not row["fits"]:
        memory += " !"
    price = ""
    if row["epoch_price"] is not None:
        price = f"{row['epoch_price']:.3g}"
    return (
        row["card"],
        row["precision"],
        memory,
        f"{row['step_ms']:,.2f}",
        row["bound"],
        hours(row["epoch_hours"]),
        hours(row["run_hours"]),
        price,
    )


def hours(value: float) -> str:
    """Format hours as `1.5 h`, or in minutes or seconds if less than an hour."""
    for unit, length in (("h", 1.0), ("min", 1 / 60)):
        if value >= length:
            return f"{value / length:,.1f} {unit}"
    return f"{value * 3600:.1f} s"


def report_lines(folder: Path) -> list[str]:
    """Return report lines with the price of a run, at the price per hour in its settings."""
    try:
        settings = read(folder / "config.resolved.yaml")
        price = float(settings["estimate.price_per_hour"])
    except (UserError, KeyError, TypeError, ValueError):
        return []  # a run from before this command was added, or a damaged file
    seconds = seconds_spent(folder)
    if not price or not seconds:
        return []
    money = f"{seconds / 3600 * price:,.4g} at {price:g} an hour"
    return ["## Money", "", f"{money}: training, evaluations and checkpoints."]


def seconds_spent(folder: Path) -> float:
    """Return the seconds of training, evaluations and checkpoints of a run, without pauses."""
    record = Record(folder)
    seconds = 0.0
    previous = 0
    for step, step_ms in numbers(record.training, "step_ms").items():
        seconds += max(step - previous, 0) * step_ms / 1000
        previous = step
    checkpoints = [event for event in record.events if event.get("event") == "checkpoint"]
    for row in (*record.evaluations, *checkpoints):
        seconds += row.get("seconds", 0)
    return seconds
