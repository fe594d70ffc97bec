"""Turn daily prices of stocks into the data folder that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.errors import UserError
from ..splits import add_input, conclude, destination, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Plan, Stock

PRICES = ("open", "high", "low", "close")
NAMES = {"symbol": "ticker", "adjclose": "adjusted", "adjustedclose": "adjusted"}  # without blanks and _
GAPS = [case(gap) for gap in ("na", "nan", "null", "none") for case in (str.lower, str.upper, str.title)] + [
    "NaN"
]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a folder of one table per stock, or one long table")
    add("--target", default="range", choices=["return", "range", "volatility"], help="(default: range)")
    add("--horizons", default="1", metavar="DAYS", help="trading days ahead, such as 1,5,20 (default: 1)")
    add("--window", type=int, default=20, metavar="DAYS", help="days that the model sees (default: 20)")
    add("--neighbors", type=int, default=10, metavar="N", help="edges into each stock (default: 10)")
    add("--refresh", type=int, default=30, metavar="DAYS", help="calendar days a graph lasts (default: 30)")
    add(
        "--correlation-days",
        type=int,
        default=120,
        metavar="DAYS",
        help="trading days whose returns make a graph (default: 120)",
    )
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="shares that add up to 1, or numbers of days; test may be 0 (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads all prices, then makes features, targets and graphs."""
    from ..dataset import describe, panel, split_days, write
    from ..engine.store import Store

    path, plan = Path(arguments.input), plan_of(arguments)
    stocks, notes = read_stocks(path, vars(arguments))
    stocks, short = long_enough(stocks, plan.window)
    if not stocks:
        raise UserError(
            f"no stock has {plan.window} days with prices", str(path), "choose a smaller --window"
        )
    found = panel(stocks, plan)
    ahead = max(plan.horizons)
    days = len(found.dates) - ahead  # the last ones have no target yet
    sizes = split_sizes(arguments.split, days, "day")
    names = ("train", "validation", "test")
    for name, size in zip(names, sizes, strict=True):
        if size <= ahead and (size or name != "test"):
            what = f"a horizon of {ahead} days is longer than the {name} split of {size} days"
            raise UserError(what, f"--horizons {arguments.horizons}", "shorten it, or give --split more days")
    splits = split_days(days, sizes, ahead)
    facts = describe(found.arrays, list(stocks), plan, slice(*splits["train"]))
    with destination(load().data.path, arguments.dry_run) as folder:
        write(folder, found, facts, splits, {"path": path.name, "stocks": len(stocks)})
        report(found, facts, splits, {**notes, f"stocks left out: fewer than {plan.window} days": short})
        conclude(Store.open(folder), arguments.dry_run)


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The flags, checked."""
    from ..dataset import Plan

    try:
        horizons = tuple(int(days) for days in arguments.horizons.split(","))
    except ValueError:
        horizons = ()
    if not horizons or min(horizons) < 1 or len(set(horizons)) < len(horizons):
        remedy = "give different whole numbers of trading days, such as 1,5"
        raise UserError(f"'{arguments.horizons}' names no horizons", "--horizons", remedy)
    least = {"window": 2, "neighbors": 1, "refresh": 1, "correlation_days": 3}
    given = {name: getattr(arguments, name) for name in least}
    for name, value in given.items():
        if value < least[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{value} is too few", flag, f"give at least {least[name]}")
    overlap = min(30, max(3, arguments.correlation_days // 2))
    return Plan(target=arguments.target, horizons=horizons, overlap=overlap, **given)


def report(found: Any, facts: dict[str, Any], splits: dict[str, list[int]], notes: dict[str, int]) -> None:
    """What was made of the files, and how often each thing was odd."""
    seats, neighbors = found.arrays["seats"], found.arrays["neighbors"]
    stocks = len(facts["tickers"])
    lonely = int((neighbors.reshape(-1, stocks, neighbors.shape[1]) < 0).all((0, 2)).sum())
    alone = int(((seats >= 0).sum(1) == 1).sum())
    print(f"{'stocks:':14}{stocks}, at most {seats.shape[1]} a day")
    for name, (first, last) in splits.items():
        if last > first:
            period = f"{found.dates[first]} to {found.dates[last - 1]}"
            print(f"{name + ':':14}{last - first} days, {period}")
    edges = (neighbors >= 0).sum() / max(neighbors.size // neighbors.shape[1], 1)
    print(f"{'graphs:':14}{len(neighbors) // stocks}, {edges:.1f} edges into a stock")
    odd = {
        **notes,
        "days with a single stock, which has no neighbour": alone,
        "stocks without a neighbour in any graph": lonely,
    }
    for what, count in odd.items():
        if count:
            print(f"{'note:':14}{what}: {count:,}")


def long_enough(stocks: dict[str, Stock], window: int) -> tuple[dict[str, Stock], int]:
    """The stocks that have a whole window, and how many have not."""
    kept = {ticker: stock for ticker, stock in stocks.items() if len(stock.dates) >= window}
    return kept, len(stocks) - len(kept)


class Prices(NamedTuple):
    """The rows of one file."""

    path: Path
    columns: dict[
        str, np.ndarray
    ]  # (n,) by plain name: `date` in days since 1970, `ticker` places in `tickers`
    tickers: list[str]

    def error(self, what: str, row: int, remedy: str) -> UserError:
        return UserError(what, f"{self.path}, row {row + 1}", remedy)


def read_prices(path: Path, flags: dict[str, Any]) -> Prices:
    """A table of prices; without a column `ticker`, of the stock that the file is named as."""
    import numpy as np

    from ..tables import Source

    source, found = Source(path, ("",), flags), list[dict[str, np.ndarray]]()
    source.gaps = (*source.missing, *GAPS)
    tickers: dict[str, int] = {}
    for block in source.blocks("reading"):
        plain = [name.lower().replace(" ", "").replace("_", "") for name in block.table.column_names]
        names = [NAMES.get(name, name) for name in plain]
        for name in ("date", *PRICES, "volume"):
            if names.count(name) != 1:
                what = f"{names.count(name) or 'no'} column{'s' * (names.count(name) > 1)} '{name}'"
                remedy = (
                    "it needs date, open, high, low, close and volume, and may have ticker and adjusted close"
                )
                raise UserError(what, str(path), remedy)
        column = dict(zip(names, block.table.column_names, strict=True))
        date = block.convert(column["date"], days, "date", "write it as 2024-01-31")
        place = np.zeros(len(date), int)
        if "ticker" in column:
            places, cells = block.texts(column["ticker"])
            if (places < 0).any():
                row = int((places < 0).argmax())
                raise block.error(
                    "a ticker is missing", row, column["ticker"], "fill it in, or remove the row"
                )
            place = np.array([tickers.setdefault(cell, len(tickers)) for cell in cells])[places]
        numbers = {name: column[name] for name in (*PRICES, "volume", "adjusted") if name in column}
        values = {name: block.numbers(cells, "mend the cell") for name, cells in numbers.items()}
        found.append({"date": date, "ticker": place, **values})
    if not tickers:
        name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
        tickers[name.rpartition(".")[0] or name] = 0
    columns = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return Prices(path, columns, list(tickers))


def days(column: Any) -> np.ndarray:
    """Days since 1970. Raises ArrowInvalid or ValueError for what is no date."""
    import pyarrow as pa

    if column.null_count or pa.types.is_integer(column.type):
        raise ValueError
    if pa.types.is_string(column.type):
        column = pa.compute.utf8_trim_whitespace(column)
    return column.cast(pa.date32()).cast(pa.int32()).to_numpy()


def read_stocks(path: Path, flags: dict[str, Any]) -> tuple[dict[str, Stock], dict[str, int]]:
    """Stocks by ticker, in the order of their names, and counts of what was left out or filled in.

    A folder has a file for each stock, named as the stock, unless the files have a column `ticker`.
    """
    import numpy as np
    from tqdm import tqdm

    from ..dataset import Stock
    from ..tables import Source

    halted = unknown = 0
    parts: dict[str, Stock] = {}
    for file in tqdm(Source(path, (), flags).files(), "files", disable=None):
        table = read_prices(file, flags)
        columns, date = table.columns, table.columns["date"]
        prices = np.stack([columns[name] for name in PRICES], 1)  # (n, 4)
        adjusted, volume = columns.get("adjusted", prices[:, 3]), columns["volume"]
        check(table, prices, adjusted, volume)
        here = np.isfinite(prices).all(1) & np.isfinite(adjusted)
        halted, unknown = halted + int((~here).sum()), unknown + int(np.isnan(volume[here]).sum())
        order = np.lexsort((date, columns["ticker"]))
        same = (np.diff(columns["ticker"][order]) == 0) & (np.diff(date[order]) == 0)
        if same.any():
            row = order[1:][same].max()
            what = (
                f"{table.tickers[columns['ticker'][row]]} has two rows of {date[row].astype('datetime64[D]')}"
            )
            raise table.error(what, row, "remove one of them")
        order = order[here[order]]
        places, starts = np.unique(columns["ticker"][order], return_index=True)
        for place, rows in zip(places, np.split(order, starts[1:]), strict=True):
            if (name := table.tickers[place]) in parts:
                raise UserError(f"{name} is in two files", str(file), "keep each stock in one file")
            parts[name] = Stock(
                date[rows].astype("datetime64[D]"), prices[rows], adjusted[rows], volume[rows]
            )
    notes = {
        "rows left out: a price is missing": halted,
        "rows without a volume, taken as the usual one": unknown,
    }
    return dict(sorted(parts.items())), notes


def check(table: Prices, prices: np.ndarray, adjusted: np.ndarray, volume: np.ndarray) -> None:
    """Raises `UserError` at the first row that no market makes."""
    impossible = {
        "a price is 0 or below": (prices <= 0).any(1) | (adjusted <= 0),
        "the high is below the low": prices[:, 1] < prices[:, 2],
        "the volume is below 0": volume < 0,
    }
    for what, rows in impossible.items():
        if rows.any():
            raise table.error(what, int(rows.argmax()), "mend or remove the row; empty cells leave it out")
