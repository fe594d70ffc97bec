"""Turn daily prices of stocks into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, destination, print_summary, split_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Arrays, Plan, Stock
    from ..engine.data.store import StoreWriter
    from ..prepare.tables import Block, Source

    Stocks = dict[str, Stock]
    Piece = tuple[np.ndarray, np.ndarray, list[str], dict[str, str]]

Flags = dict[str, Any]
"""How files are written: delimiter, decimal mark, encoding and so on, by the name of the flag."""

PRICES = ("open", "high", "low", "close")
# One day of a stock; `date` counts days since 1970.
ROW = [("date", "i8"), ("prices", "f8", (4,)), ("adjusted", "f8"), ("volume", "f8")]
# Other names of columns, in lower case without spaces and underscores.
NAMES = {"symbol": "ticker", "adjclose": "adjusted", "adjustedclose": "adjusted"}
GAPS = ("na", "NA", "nan", "NaN", "null", "NULL", "None")
# Usual ratios of shares after a split to shares before it.
SPLITS = {"3:2": 1.5, **{f"{count}:1": float(count) for count in (*range(2, 11), 15, 20, 25, 50)}}
CLOSE = 0.04  # the price may differ by this fraction from that of a split
SHOWN = 5  # splits that are printed


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a folder with one table per stock, or one long table")
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


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read all prices, then compute features, targets and graphs."""
    from ..engine.data.store import StoreWriter
    from ..settings import WORKLOAD

    plan = plan_of(arguments)
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            fill(writer, plan, arguments)
        print_summary(writer, arguments.dry_run)


def fill(writer: StoreWriter, plan: Plan, arguments: argparse.Namespace) -> None:
    """Write all stocks, and print a summary."""
    from ..dataset import describe, panel, split_days

    path = Path(arguments.input)
    stocks, notes = read_stocks(writer, path, vars(arguments))
    num_stocks = len(stocks)
    stocks = long_enough(stocks, plan.window, path)
    notes[f"stocks left out: fewer than {plan.window} days"] = num_stocks - len(stocks)
    most = max(len(stocks) - 1, 1)
    if plan.neighbors > most:
        notes["--neighbors, limited by the number of stocks"] = most
        plan = plan._replace(neighbors=most)

    arrays = panel(writer, stocks, plan)
    ahead = max(plan.horizons)
    num_days = len(arrays["dates"]) - ahead  # the last days have no target yet
    sizes = split_sizes(arguments.split, num_days, "day")
    check_sizes(sizes, ahead, arguments.horizons)
    splits = split_days(sizes, ahead)
    train = slice(*splits["train"])
    facts = describe(arrays, list(stocks), plan, train)
    writer.facts = facts
    writer.splits = splits
    writer.source |= {"path": path.name, "stocks": len(stocks)}
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
    seats = arrays["seats"]
    neighbors = arrays["neighbors"]
    dates = arrays["dates"].view("M8[D]")
    num_stocks = len(facts["tickers"])
    print(f"{'stocks:':14}{num_stocks}, at most {seats.shape[1]} a day")
    for name, (first, last) in splits.items():
        if last > first:
            period = f"{dates[first]} to {dates[last - 1]}"
            print(f"{name + ':':14}{last - first} days, {period}")
    edges = sum((column >= 0).mean() for column in neighbors.T)
    print(f"{'graphs:':14}{len(neighbors) // num_stocks}, {edges:.1f} edges into a stock")

    # Seats and neighbours fill up from the first one on.
    is_alone = (seats[:, 1:2] < 0).all(1)
    notes["days with a single stock, which has no neighbour"] = is_alone.sum()
    first_neighbor = neighbors[:, 0].reshape(-1, num_stocks)
    is_lonely = (first_neighbor < 0).all(0)
    notes["stocks without a neighbour in any graph"] = is_lonely.sum()
    for what, count in notes.items():
        if count:
            print(f"{'note:':14}{what}: {count:,}")


def long_enough(stocks: Stocks, window: int, path: Path) -> Stocks:
    """Return the stocks that have a whole window. Raises `UserError` if there is none."""
    kept = {ticker: stock for ticker, stock in stocks.items() if len(stock.dates) >= window}
    if not kept:
        what = f"no stock has {window} days with prices"
        raise UserError(what, str(path), "add earlier days, or run prepare with a smaller --window")
    return kept


def read_prices(source: Source) -> Iterator[Piece]:
    """Yield a table of prices in pieces: rows (n,), indices (n,) of their tickers, and tickers.

    The last element maps known names to columns. Without a column `ticker`, the name of the file is
    the ticker. If any price is missing, the adjusted price becomes missing, too.
    """
    import numpy as np

    from ..prepare.scaling import PIECE_ROWS

    for block in source.blocks():
        column = find_columns(block.table.column_names, source.path)
        date = dates(block, column["date"])
        places, tickers = tickers_of(block, column, len(date), source.path)
        values = {}
        prices = block.with_missing(GAPS)
        for name in (*PRICES, "volume", "adjusted"):
            if name in column:
                values[name] = prices.numbers(column[name], "fix the cell")
        values.setdefault("adjusted", values["close"])

        for first in range(0, len(date), PIECE_ROWS):
            piece = slice(first, first + PIECE_ROWS)
            rows = as_rows(date, values, piece)
            check(rows, source.path, block.first + first)
            rows["adjusted"][np.isnan(rows["prices"]).any(1)] = np.nan
            yield rows, places[piece], tickers, column


def find_columns(written: list[str], path: Path) -> dict[str, str]:
    """Map each known name to the column of the table, in any spelling."""
    plain = [name.lower().replace(" ", "").replace("_", "") for name in written]
    names = [NAMES.get(name, name) for name in plain]
    for name in ("date", *PRICES, "volume"):
        count = names.count(name)
        if count != 1:
            what = f"{count or 'no'} column{'s' * (count > 1)} '{name}'"
            needed = "provide one each of date, open, high, low, close and volume"
            needed += "; ticker and adjusted close are optional"
            raise UserError(what, str(path), needed)
    return dict(zip(names, written, strict=True))


def tickers_of(
    block: Block, column: dict[str, str], num_rows: int, path: Path
) -> tuple[np.ndarray, list[str]]:
    """Return the index (n,) of each row's ticker in a list, and the list."""
    import numpy as np

    from ..prepare.tables import encode

    if "ticker" not in column:
        name = path.name
        if name.lower().endswith(".gz"):
            name = name[:-3]
        ticker = name.rpartition(".")[0] or name
        return np.zeros(num_rows, int), [ticker]

    places, tickers = encode(block.column(column["ticker"]))
    if (places < 0).any():
        row = int((places < 0).argmax())
        remedy = "fill it in, or remove the row"
        raise block.error("a ticker is missing", row, column["ticker"], remedy)
    return places, tickers


def as_rows(date: np.ndarray, values: dict[str, np.ndarray], piece: slice) -> np.ndarray:
    """Return a piece of the columns as rows (n,) of `ROW`."""
    import numpy as np

    rows = np.empty(len(date[piece]), ROW)
    rows["date"] = date[piece]
    rows["volume"] = values["volume"][piece]
    rows["adjusted"] = values["adjusted"][piece]
    for place, name in enumerate(PRICES):
        rows["prices"][:, place] = values[name][piece]
    return rows


def dates(block: Block, name: str) -> np.ndarray:
    """Return days since 1970 (rows,). Raises `UserError`, with the row, for an invalid date."""
    seconds, is_known = block.sole_times(name)
    is_date = is_known & (seconds % 86400 == 0)
    if not is_date.all():
        row = int(is_date.argmin())
        cell = block.column(name)[row].as_py() or ""
        remedy = "write it as 2024-01-31, or see --time-format"
        raise block.error(f"'{cell}' is not a date", row, name, remedy)
    return seconds // 86400


def check(rows: np.ndarray, path: Path, first: int) -> None:
    """Raise `UserError` for the first row with impossible prices or volume.

    first: the number of rows before these in the file.
    """
    high = rows["prices"][:, 1]
    low = rows["prices"][:, 2]
    impossible = {
        "a price is 0 or below": (rows["prices"] <= 0).any(1) | (rows["adjusted"] <= 0),
        "the high is below the low": high < low,
        "the volume is below 0": rows["volume"] < 0,
    }
    for what, wrong in impossible.items():
        if wrong.any():
            where = f"{path}, row {first + int(wrong.argmax()) + 1}"
            raise UserError(what, where, "fix or remove the row, or leave its cells empty")


def read_stocks(
    writer: StoreWriter, path: Path, flags: Flags, known: Flags | None = None
) -> tuple[Stocks, dict[str, int]]:
    """Return stocks by ticker, sorted by name, and counts of rows left out or filled in.

    A folder has a file for each stock, named after the stock, unless the files have a column
    `ticker`. `writer` keeps the rows on disk until it closes, and stores in `source` how the files
    are written. known: how earlier files were written.
    """
    from ..prepare.tables import Source

    files = Source(path, (), flags).files()
    reading = Reading(writer, flags, known)
    reading.read(files)
    writer.source = reading.written or {}

    stocks = {}
    rows_of_stock = by_stock(writer, len(reading.tickers))
    for name, number in sorted(reading.tickers.items()):
        stored = rows_of_stock[number]
        dates = stored.view(ROW)["date"]
        order = dates.argsort(kind="stable")
        repeated = repeated_date(dates, order)
        if repeated is not None:
            date = dates[repeated].astype("M8[D]")
            where = reading.place_of(number, repeated, files)
            raise UserError(f"{name} has two rows of {date}", where, "remove one of them")
        stock = sorted_stock(stored, order)
        if stock is not None:
            stocks[name] = stock
    note_closes(stocks, reading)
    notes = {
        "rows left out: a price is missing": reading.num_halted,
        "rows without a volume, treated as the usual volume": reading.num_without_volume,
    }
    return stocks, notes


def note_closes(stocks: Stocks, reading: Reading) -> None:
    """Print the columns of the returns, and the days that look like a split of shares."""
    closes = Counter[str]()
    splits = []
    for name, stock in stocks.items():
        number = reading.tickers[name]
        closes[reading.closes[number]] += 1
        if number not in reading.adjusted:
            splits += split_days_of(name, stock)
    columns = [f"column '{close}' ({count} stocks)" for close, count in closes.items()]
    print(f"{'returns from:':14}{', '.join(columns)}")
    if splits:
        what = f"days on which the price changes as in a split of shares: {len(splits):,}"
        print(f"{'note:':14}{what}; add adjusted closes, or returns are wrong")
    for line in splits[:SHOWN]:
        print(f"{'':14}{line}")


def split_days_of(name: str, stock: Stock) -> list[str]:
    """Return stock, date and ratio where the price changes overnight as in a split of shares."""
    import numpy as np

    # The ratio of the last close to the open: 4 after a split of 4:1, 0.1 after one of 1:10.
    ratios = stock.prices[:-1, 3] / stock.prices[1:, 0]
    lines = []
    for row in np.flatnonzero(np.abs(np.log(ratios)) > np.log(SPLITS["3:2"]) - CLOSE):
        size = max(ratios[row], 1 / ratios[row])
        likely = min(SPLITS, key=lambda split: abs(SPLITS[split] / size - 1))
        if abs(SPLITS[likely] / size - 1) <= CLOSE:
            before, after = likely.split(":")
            split = likely if ratios[row] > 1 else f"{after}:{before}"
            lines.append(f"{name}, {stock.dates[row + 1]}, {split}")
    return lines


class Reading:
    """Writes the rows of files in their order, with the numbers of their tickers."""

    def __init__(self, writer: StoreWriter, flags: Flags, known: Flags | None):
        self.writer = writer
        self.flags = flags
        self.written = known  # how the last file was written
        self.tickers: dict[str, int] = {}  # numbered in order of appearance
        self.closes: dict[int, str] = {}  # the column of the returns of each ticker
        self.adjusted: set[int] = set()  # tickers whose closes are adjusted
        self.starts = [0]  # the first row of each file, and the end of the last
        self.num_halted = 0
        self.num_without_volume = 0

    def read(self, files: list[Path]) -> None:
        from tqdm import tqdm

        from ..prepare.tables import Source

        for file in tqdm(files, "files", disable=None):
            num_earlier = len(self.tickers)
            self.starts.append(self.starts[-1])
            source = Source(file, ("",), self.flags, self.written)
            for rows, places, names, column in read_prices(source):
                numbers = self._numbers(names, num_earlier, file)
                close = column.get("adjusted", column["close"])
                self.closes |= dict.fromkeys(numbers.tolist(), close)
                if "adjusted" in column:
                    self.adjusted.update(numbers.tolist())
                self._write(rows, numbers[places])
            self.written = source.written

    def _numbers(self, names: list[str], num_earlier: int, file: Path) -> np.ndarray:
        """Return the numbers of tickers. Raises `UserError` for a ticker of an earlier file."""
        import numpy as np

        numbers = [self.tickers.setdefault(name, len(self.tickers)) for name in names]
        if min(numbers) < num_earlier:
            name = names[int(np.argmin(numbers))]
            raise UserError(f"{name} is in two files", str(file), "keep each stock in one file")
        return np.array(numbers, np.int32)

    def _write(self, rows: np.ndarray, tickers: np.ndarray) -> None:
        import numpy as np

        is_halted = np.isnan(rows["adjusted"])
        has_no_volume = np.isnan(rows["volume"]) & ~is_halted
        self.num_halted += is_halted.sum()
        self.num_without_volume += has_no_volume.sum()
        self.starts[-1] += len(rows)
        self.writer.append(".rows", rows, f"V{rows.itemsize}")
        self.writer.append(".tickers", tickers)

    def place_of(self, number: int, row_of_stock: int, files: list[Path]) -> str:
        """Return the file and the row in it of a stock's row, for an error."""
        import numpy as np

        row = np.flatnonzero(self.writer.appended(".tickers") == number)[row_of_stock]
        file = bisect(self.starts, row) - 1
        return f"{files[file]}, row {row - self.starts[file] + 1}"


def repeated_date(dates: np.ndarray, order: np.ndarray) -> int | None:
    """Return the last row with a date that an earlier row has, if any."""
    in_order = dates[order]
    is_repeated = in_order[1:] == in_order[:-1]
    if not is_repeated.any():
        return None
    return order[1:][is_repeated].max()


def sorted_stock(stored: np.ndarray, order: np.ndarray) -> Stock | None:
    """Return the stock of these rows, sorted in place, or None if every row lacks a price."""
    import numpy as np

    from ..dataset import Stock

    rows = stored.view(ROW)
    has_prices = ~np.isnan(rows["adjusted"][order])
    order = order[has_prices]
    stored[: len(order)] = stored[order]
    if not len(order):
        return None
    rows = rows[: len(order)]
    dates = rows["date"].view("M8[D]")
    return Stock(dates, rows["prices"], rows["adjusted"], rows["volume"])


def by_stock(writer: StoreWriter, count: int) -> list[np.ndarray]:
    """Return the rows of each of `count` stocks, memory-mapped, in the order of their files."""
    import numpy as np

    from ..dataset import create
    from ..prepare.scaling import BLOCK_ROWS

    rows = writer.appended(".rows")
    tickers = writer.appended(".tickers")
    grouped = create(writer, ".stocks", rows.shape, str(rows.dtype))
    blocks = [slice(first, first + BLOCK_ROWS) for first in range(0, len(rows), BLOCK_ROWS)]
    total = np.zeros(count, np.int64)
    for block in blocks:
        total += np.bincount(tickers[block], minlength=count)

    place = total.cumsum() - total  # the next free row of each stock
    for block in blocks:
        # Numpy sorts small integer types in linear time.
        small = tickers[block].astype(np.min_scalar_type(count))
        order = small.argsort(kind="stable")
        here = np.bincount(small, minlength=count)  # rows of each stock in the block
        first_here = here.cumsum() - here
        move = np.repeat(place - first_here, here)
        to = move + np.arange(len(order))
        grouped[to] = rows[block].take(order)
        place += here
    return np.split(np.asarray(grouped), place[:-1])
