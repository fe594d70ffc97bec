"""Turn daily prices of stocks into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import print_next, split_sizes
from ..prepare.stocks import add_prices, long_enough, read_edges, read_stocks

if TYPE_CHECKING:
    from ..dataset import Arrays, Plan, Stock
    from ..engine.loading.store import StoreWriter

    Stocks = dict[str, Stock]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_prices(parser, "a folder with one table per stock, or one long table")
    text = "column of numbers that is one more feature of its day; repeatable"
    add("--features", action="append", default=[], metavar="COLUMN", help=text)
    add(
        "--target",
        default="range",
        choices=["return", "range", "volatility"],
        help="quantity to predict (default: range)",
    )
    add(
        "--horizons",
        default="1",
        metavar="DAYS",
        help="how many trading days ahead to predict, such as 1,5,20 (default: 1)",
    )
    add(
        "--window",
        type=int,
        default=20,
        metavar="DAYS",
        help="number of past days that the model sees (default: 20)",
    )
    add(
        "--neighbors",
        type=int,
        default=10,
        metavar="N",
        help="number of edges into each stock (default: 10)",
    )
    add(
        "--refresh",
        type=int,
        default=30,
        metavar="DAYS",
        help="calendar days after which a new graph begins (default: 30)",
    )
    add(
        "--correlation-days",
        type=int,
        default=120,
        metavar="DAYS",
        help="trading days of returns that a graph is computed from (default: 120)",
    )
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions that add up to 1, or numbers of days; test may be 0 (default: %(default)s)",
    )


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all prices, then compute features, targets and graphs."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..settings import WORKLOAD

    plan = plan_of(arguments)
    folder = check_folder(load().data.path, arguments.input)
    with StoreWriter(folder, WORKLOAD) as writer:
        fill(writer, plan, arguments)
    print_next(folder)


def fill(writer: StoreWriter, plan: Plan, arguments: argparse.Namespace) -> None:
    """Write all stocks, and print a summary."""
    from ..dataset import describe, panel, split_days

    path = Path(arguments.input)
    named, source, notes = read_stocks(path, vars(arguments))
    stocks = long_enough(named, plan.window, path)
    notes[f"stocks left out: fewer than {plan.window} days"] = len(named) - len(stocks)
    most_neighbors = max(len(stocks) - 1, 1)
    plan = plan._replace(neighbors=min(plan.neighbors, most_neighbors))

    edges = read_edges(vars(arguments), stocks, named)
    arrays = panel(writer, stocks, plan, edges)
    ahead = max(plan.horizons)
    num_days = len(arrays["dates"]) - ahead  # the last days have no target yet
    sizes = split_sizes(arguments.split, num_days)
    check_sizes(sizes, ahead, arguments.horizons)
    splits = split_days(sizes, ahead)
    train = slice(*splits["train"])
    facts = describe(arrays, list(stocks), plan, train, arguments.features)
    if edges is not None:
        facts["edges"] = "own"
    writer.facts = facts
    writer.splits = splits
    writer.source = {**source, "path": path.name, "stocks": len(stocks)}
    writer.source |= {"ticker": arguments.ticker, "features": arguments.features}
    report(arrays, facts, splits, notes)


def check_sizes(sizes: list[int], ahead: int, horizons: str) -> None:
    """Raise `UserError` for a split that is not longer than the longest horizon."""
    for name, size in zip(("train", "validation", "test"), sizes, strict=True):
        if name == "test" and not size:
            continue
        if size <= ahead:
            what = f"a horizon of {ahead} days is longer than the {name} split of {size} days"
            remedy = "use a shorter horizon, or give the split more days"
            raise UserError(what, f"--horizons {horizons}", remedy)


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Check the flags and return them as a plan."""
    from ..dataset import Plan

    horizons = read_horizons(arguments.horizons)
    least = {"window": 2, "neighbors": 1, "refresh": 1, "correlation_days": 3}
    given = {name: getattr(arguments, name) for name in least}
    for name, value in given.items():
        if value < least[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{value} is too few", flag, f"use at least {least[name]}")
    overlap = min(30, max(3, arguments.correlation_days // 2))
    return Plan(target=arguments.target, horizons=horizons, overlap=overlap, **given)


def read_horizons(text: str) -> tuple[int, ...]:
    """Return the days of `--horizons`, such as 1,5."""
    try:
        horizons = tuple(int(days) for days in text.split(","))
    except ValueError:
        horizons = ()
    is_repeated = len(set(horizons)) < len(horizons)
    if not horizons or min(horizons) < 1 or is_repeated:
        remedy = "use different whole numbers of trading days, such as 1,5"
        raise UserError(f"'{text}' is not a list of horizons", "--horizons", remedy)
    return horizons


def report(
    arrays: Arrays, facts: dict[str, Any], splits: dict[str, list[int]], notes: dict[str, int]
) -> None:
    """Print a summary of stocks, splits and graphs, and the counts in `notes`."""
    neighbors = arrays["neighbors"]
    dates = arrays["dates"].view("M8[D]")
    num_stocks = len(facts["tickers"])
    print(f"{'stocks:':14}{num_stocks}, at most {arrays['seats'].shape[1]} a day")
    for name, (first, last) in splits.items():
        if last > first:
            period = f"{dates[first]} to {dates[last - 1]}"
            print(f"{name + ':':14}{last - first} days, {period}")
    unused = len(dates) - sum(last - first for first, last in splits.values())
    print(
        f"{'left out:':14}{unused} days: after the splits, or their target reaches beyond a split"
    )
    names = [feature["name"] for feature in facts["features"]]
    print(f"{'features:':14}{', '.join(names)}")
    for day in (0, len(dates) // 2, len(dates) - 1):
        print(
            f"{str(dates[day]) + ':':14}{(arrays['seats'][day] >= 0).sum()} stocks, "
            f"each {facts['window']} days of {len(names)} features → {facts['target']['kind']}"
        )
    edges = sum((column >= 0).mean() for column in neighbors.T)
    print(f"{'graphs:':14}{len(neighbors) // num_stocks}, {edges:.1f} edges into a stock")
    for what, count in notes.items():
        if count:
            print(f"{'note:':14}{what}: {count:,}")
