"""Estimate fit, time and price of a run on each card, before one is rented; needs no GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field

from ..engine import gpus
from ..engine.config import Section, defaults, near
from ..engine.errors import UserError
from ..engine.files import read_rows
from ..engine.report import read_metrics, spent

if TYPE_CHECKING:
    from ..config import Settings
    from ..measure.costs import Costs


class Price(Section):
    """What the machine costs."""

    price_per_hour: float = Field(0.0, ge=0, description="of the machine, in any currency; 0 is none")


class Sections(Section):
    """Settings of this verb."""

    estimate: Price = defaults(Price)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add = parser.add_argument
    add("--json", action="store_true", help="print a JSON list instead of a table")
    add("--gpu", nargs="+", metavar="NAME", help="cards to estimate (default: all)")
    price = "price of a card's hour, such as h100=2.5; of others it is estimate.price_per_hour"
    add("--price", nargs="+", metavar="NAME=X", default=[], help=price)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Prints a table; the fastest card first, or the cheapest epoch where there are prices."""
    keys = [known(name, "--gpu") for name in arguments.gpu or gpus.table() if name != "cpu"]
    prices = dict(map(priced, arguments.price))
    settings = load()

    import torch

    from ..assemble import open_store
    from ..dataset import Samples
    from ..engine.loader import Loader
    from ..engine.order import order_of
    from ..measure.costs import count
    from ..measure.estimates import estimates
    from ..model import build_model

    training, store = settings.training, open_store(settings)
    samples: Any = Samples(store, settings, "train")
    samples.training = True
    loader: Any = Loader(samples, store, settings, order_of(samples, settings), torch.device("cpu"))
    batches = loader.epoch(0)
    batch = next(batches)
    batches.close()
    loader.close()

    def measure(precision: str, on_gpu: bool) -> Costs:
        recomputed, optimizer = training.gradient_checkpointing, settings.optimizer.name
        build = lambda: build_model(settings, store.facts)  # noqa: E731
        return count(build, batch, precision, recomputed, optimizer, on_gpu)

    epoch = -(-len(loader) // training.gradient_accumulation_steps)
    try:
        rows = estimates(settings, epoch=epoch, keys=keys, prices=prices, count=measure)
    except (RuntimeError, NotImplementedError) as error:
        what = f"the model cannot be counted without data ({str(error).splitlines()[0]})"
        raise UserError(what, "model.py", "keep values such as `.item()` out of forward") from error
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    costs = measure("fp32", False)
    size = f"{costs.parameters:,} parameters, epochs of {epoch:,} steps, micro-batches of {costs.samples:,}"
    work = f"{costs.flops / 1e9:,.3g} GFLOP, {costs.bytes / 1e9:,.3g} GB moved, {costs.kernels:,} operations"
    parts = ", ".join(f"{name} {amount / 1e9:.3g}" for name, amount in costs.parts.items())
    print(f"{size}\na micro-batch in fp32: {work}\nGB in fp32: {parts}\n")
    print("\n".join(table(rows)))
    print("\nAt best: no kernel reaches a peak. Divide by the share that a run of yours reached.")
    return 0


def known(name: str, where: str) -> str:
    """A card of the table, or `cpu`. Raises `UserError` for another name."""
    if name not in ("cpu", *gpus.table()):
        guess = near([name], {key: key for key in gpus.table()})
        remedy = f"did you mean {guess}?" if guess else f"one of {', '.join(gpus.table())}"
        raise UserError(f"no card {name!r} in the table", where, remedy)
    return name


def priced(text: str) -> tuple[str, float]:
    """`h100=2.5`. Raises `UserError` for anything else."""
    name, _, price = text.partition("=")
    try:
        value = float(price)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{text!r} is no price", "--price", "write NAME=PRICE, such as h100=2.5")
    return known(name, "--price"), value


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Columns for a terminal."""
    header = ("card", "precision", "memory, GB", "step, ms", "bound by", "epoch", "run", "price of an epoch")
    cells = [header, *map(shown, rows)]
    widths = (16, 11, 16, 11, 10, 10, 10, 0)
    lines = ["".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    if any(" !" in row[2] for row in cells):
        lines.append("! does not fit")
    if {row["bound"] for row in rows if row.get("card_gb")} == {"launch"}:
        what = "every card waits for the host, which hands out operations more slowly than the card runs them"
        lines.append(f"{what}: a faster card gains nothing, a larger --data.batch_size does")
    return lines


def shown(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a card."""
    if "why" in row:
        return row["card"], row["why"], *[""] * 6
    of = f" of {row['card_gb']:g}" if row["card_gb"] else ""
    memory = f"{row['memory_gb']:.2f}{of}{'' if row['fits'] else ' !'}"
    price = "" if row["epoch_price"] is None else f"{row['epoch_price']:.3g}"
    spent = hours(row["epoch_hours"]), hours(row["run_hours"]), price
    return row["card"], row["precision"], memory, f"{row['step_ms']:,.2f}", row["bound"], *spent


def hours(value: float) -> str:
    """`1.5` to `1.5 h`, less than one in minutes or seconds."""
    for unit, length in (("h", 1.0), ("min", 1 / 60)):
        if value >= length:
            return f"{value / length:,.1f} {unit}"
    return f"{value * 3600:.1f} s"


def report(run: Path) -> list[str]:
    """What a run's training, evaluations and checkpoints cost, at the price of its settings."""
    try:
        settings = yaml.safe_load((run / "config.resolved.yaml").read_text(encoding="utf-8"))
        price = settings["estimate"]["price_per_hour"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # of before this verb was added, or cut off
        return []
    parts = spent(*read_metrics(run / "metrics.jsonl"), read_rows(run / "events.jsonl"))
    seconds = sum(part for _, part, _ in parts)
    money = f"{seconds / 3600 * price:,.4g} at {price:g} an hour"
    return ["## Money", "", f"{money}: training, evaluations and checkpoints."] if price and seconds else []
