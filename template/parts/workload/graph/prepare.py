"""Turn daily prices of stocks into the data folder that training reads."""

from __future__ import annotations

import argparse
from bisect import bisect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_input, conclude, destination, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Plan, Stock
    from ..engine.store import StoreWriter
    from ..tables import Block, Source

PRICES = ("open", "high", "low", "close")
# A day of a stock; of `date`, days since 1970.
ROW = [("date", "i8"), ("prices", "f8", (4,)), ("adjusted", "f8"), ("volume", "f8")]
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
    from ..engine.store import StoreWriter
    from ..settings import WORKLOAD

    plan = plan_of(arguments)
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            fill(writer, plan, arguments)
        conclude(writer, arguments.dry_run)


def fill(writer: StoreWriter, plan: Plan, arguments: argparse.Namespace) -> None:
    """Writes all stocks; prints what was found."""
    from ..dataset import describe, panel, split_days

    path = Path(arguments.input)
    stocks, notes = read_stocks(writer, path, vars(arguments))
    stocks, short = long_enough(stocks, plan.window)
    if not stocks:
        raise UserError(
            f"no stock has {plan.window} days with prices", str(path), "choose a smaller --window"
        )
    found = panel(writer, stocks, plan)
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
    writer.facts, writer.splits = facts, splits
    writer.source |= {"path": path.name, "stocks": len(stocks)}
    report(found, facts, splits, {**notes, f"stocks left out: fewer than {plan.window} days": short})


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
    lonely = int((neighbors[:, 0].reshape(-1, stocks) < 0).all(0).sum())  # the first ones are taken first
    alone = int((seats[:, 1:2] < 0).all(1).sum())
    print(f"{'stocks:':14}{stocks}, at most {seats.shape[1]} a day")
    for name, (first, last) in splits.items():
        if last > first:
            period = f"{found.dates[first]} to {found.dates[last - 1]}"
            print(f"{name + ':':14}{last - first} days, {period}")
    edges = sum((column >= 0).mean() for column in neighbors.T)
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


def read_prices(source: Source) -> Iterator[tuple[np.ndarray, np.ndarray, list[str]]]:
    """A table of prices, piece by piece: rows (n,) of `ROW`, places (n,) of their tickers, and those.

    Without a column `ticker`, of the stock that the file is named as. Where a price is missing, so is the
    adjusted one.
    """
    import numpy as np

    from ..scaling import PIECE_ROWS

    path = source.path
    source.gaps = (*source.missing, *GAPS)
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
        date = dates(block, column["date"])
        name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
        places, tickers = np.zeros(len(date), int), [name.rpartition(".")[0] or name]
        if "ticker" in column:
            places, tickers = block.texts(column["ticker"])
            if (places < 0).any():
                row = int((places < 0).argmax())
                raise block.error(
                    "a ticker is missing", row, column["ticker"], "fill it in, or remove the row"
                )
        numbers = {name: column[name] for name in (*PRICES, "volume", "adjusted") if name in column}
        values = {name: block.numbers(cells, "mend the cell") for name, cells in numbers.items()}
        for first in range(0, len(date), PIECE_ROWS):
            part = slice(first, first + PIECE_ROWS)
            rows = np.empty(len(date[part]), ROW)
            rows["date"], rows["volume"] = date[part], values["volume"][part]
            for place, name in enumerate(PRICES):
                rows["prices"][:, place] = values[name][part]
            rows["adjusted"] = values.get("adjusted", values["close"])[part]
            check(rows, path, block.first + first)
            rows["adjusted"][np.isnan(rows["prices"]).any(1)] = np.nan
            yield rows, places[part], tickers


def dates(block: Block, name: str) -> np.ndarray:
    """(rows,) days since 1970. Raises `UserError` with the row of what is no date."""
    time_format = block.time_format(name)
    remedy = "write it as 2024-01-31, or see --time-format"
    return block.convert(name, lambda column: days(column, time_format), "date", remedy)


def days(column: Any, time_format: str) -> np.ndarray:
    """Days since 1970. Raises ArrowInvalid or ValueError for what is no date."""
    import pyarrow as pa

    from ..formats import ISO, to_seconds

    if time_format != ISO:
        return to_seconds(column, time_format) // 86400
    if column.null_count or pa.types.is_integer(column.type):
        raise ValueError
    if pa.types.is_string(column.type):
        column = pa.compute.utf8_trim_whitespace(column)
    return column.cast(pa.date32()).cast(pa.int32()).to_numpy()


def check(rows: np.ndarray, path: Path, first: int) -> None:
    """Raises `UserError` at the first of rows, from `first` on in their file, that no market makes."""
    high, low = rows["prices"][:, 1:3].T
    impossible = {
        "a price is 0 or below": (rows["prices"] <= 0).any(1) | (rows["adjusted"] <= 0),
        "the high is below the low": high < low,
        "the volume is below 0": rows["volume"] < 0,
    }
    for what, wrong in impossible.items():
        if wrong.any():
            where = f"{path}, row {first + int(wrong.argmax()) + 1}"
            raise UserError(what, where, "mend or remove the row; empty cells leave it out")


def read_stocks(
    writer: StoreWriter, path: Path, flags: dict[str, Any], known: dict[str, Any] | None = None
) -> tuple[dict[str, Stock], dict[str, int]]:
    """Stocks by ticker, in the order of their names, and counts of what was left out or filled in.

    A folder has a file for each stock, named as the stock, unless the files have a column `ticker`. The rows
    are in arrays that `writer` has until its end; how the files are written is in its `source`. known: how
    earlier files were written.
    """
    import numpy as np
    from tqdm import tqdm

    from ..dataset import Stock
    from ..tables import Source

    halted = unknown = 0
    tickers, starts, found = dict[str, int](), [0], dict[str, Stock]()
    files = Source(path, (), flags).files()
    for file in tqdm(files, "files", disable=None):
        earlier = len(tickers)
        starts.append(starts[-1])
        source = Source(file, ("",), flags, known)
        for rows, places, names in read_prices(source):
            numbers = [tickers.setdefault(name, len(tickers)) for name in names]
            if min(numbers) < earlier:
                name = names[int(np.argmin(numbers))]
                raise UserError(f"{name} is in two files", str(file), "keep each stock in one file")
            lost = np.isnan(rows["adjusted"])
            halted += int(lost.sum())
            unknown += int((np.isnan(rows["volume"]) & ~lost).sum())
            starts[-1] += len(rows)
            writer.append(".rows", rows, f"V{rows.itemsize}")
            writer.append(".tickers", np.array(numbers, np.int32)[places])
        known = source.written
    writer.source = known or {}
    stocks = by_stock(writer, len(tickers))
    for name, number in sorted(tickers.items()):
        rows = stocks[number].view(ROW)
        order = rows["date"].argsort(kind="stable")
        date = rows["date"][order]
        if (same := date[1:] == date[:-1]).any():
            last = order[1:][same].max()
            row = np.flatnonzero(writer.appended(".tickers") == number)[last]
            where = bisect(starts, row) - 1
            what = f"{name} has two rows of {rows['date'][last].astype('M8[D]')}"
            raise UserError(what, f"{files[where]}, row {row - starts[where] + 1}", "remove one of them")
        order = order[~np.isnan(rows["adjusted"][order])]
        stocks[number][: len(order)] = stocks[number][order]
        if len(order):
            date, *values = (rows[field][: len(order)] for field, *_ in ROW)
            found[name] = Stock(date.view("M8[D]"), *values)
    notes = {
        "rows left out: a price is missing": halted,
        "rows without a volume, taken as the usual one": unknown,
    }
    return found, notes


def by_stock(writer: StoreWriter, count: int) -> list[np.ndarray]:
    """The rows that were read, of each of `count` stocks together, mapped, in the order of their file."""
    import numpy as np

    from ..scaling import BLOCK_ROWS

    rows, tickers = writer.appended(".rows"), writer.appended(".tickers")
    found = writer.create(".stocks", rows.shape, str(rows.dtype))
    parts = [slice(first, first + BLOCK_ROWS) for first in range(0, len(rows), BLOCK_ROWS)]
    total = np.zeros(count, np.int64)
    for part in parts:
        total += np.bincount(tickers[part], minlength=count)
    place = total.cumsum() - total  # where the next row of each stock goes
    for part in parts:
        which = tickers[part].astype(np.min_scalar_type(count))  # numpy sorts small ones in linear time
        here, order = np.bincount(which, minlength=count), which.argsort(kind="stable")
        to = np.repeat(place - (here.cumsum() - here), here) + np.arange(len(order))
        found[to] = rows[part].take(order)
        place += here
    return np.split(np.asarray(found), place[:-1])
