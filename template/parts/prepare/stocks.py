"""Reads daily prices of stocks, for `prepare` and `predict`."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Stock
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
JUMP = 1.45  # a price that changes overnight by this factor may be due to a split of shares, 3:2
SHOWN = 5  # splits that are printed


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

    for block in source.blocks():
        column = find_columns(list(block.columns), source.path)
        rows = np.empty(block.num_rows, ROW)
        rows["date"] = dates(block, column["date"])
        places, tickers = tickers_of(block, column, source.path)
        for place, name in enumerate(PRICES):
            rows["prices"][:, place] = block.numbers(column[name], "fix the cell, or see --missing")
        rows["volume"] = block.numbers(column["volume"], "fix the cell, or see --missing")
        rows["adjusted"] = rows["prices"][:, 3]
        if "adjusted" in column:
            rows["adjusted"] = block.numbers(column["adjusted"], "fix the cell, or see --missing")
        check(rows, source.path, block.first)
        rows["adjusted"][np.isnan(rows["prices"]).any(1)] = np.nan
        yield rows, places, tickers, column


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


def tickers_of(block: Block, column: dict[str, str], path: Path) -> tuple[np.ndarray, list[str]]:
    """Return the index (n,) of each row's ticker in a list, and the list."""
    import numpy as np

    from ..prepare.tables import encode

    if "ticker" not in column:
        name = re.sub(r"(?i)\.gz$", "", path.name)
        return np.zeros(block.num_rows, int), [name.rpartition(".")[0] or name]

    places, tickers = encode(block.column(column["ticker"]))
    if (places < 0).any():
        row = int((places < 0).argmax())
        remedy = "fill it in, or remove the row"
        raise block.error("a ticker is missing", row, column["ticker"], remedy)
    return places, tickers


def dates(block: Block, name: str) -> np.ndarray:
    """Return days since 1970 (rows,). Raises `UserError`, with the row, for an invalid date."""
    import numpy as np

    times = block.times(name)
    days = times.astype("M8[D]")
    is_wrong = days != times  # also if one is missing
    if is_wrong.any():
        row = int(is_wrong.argmax())
        cell = block.column(name)[row].as_py() or ""
        remedy = "write it as 2024-01-31, or see --time-format"
        raise block.error(f"'{cell}' is not a date", row, name, remedy)
    return days.astype(np.int64)


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
    import numpy as np
    from tqdm import tqdm

    from ..dataset import create
    from ..prepare.tables import find_files

    files = find_files(path)
    reading = Reading(writer, flags, known)
    for file in tqdm(files, "files", disable=None):
        reading.read(file)
    writer.source = reading.written or {}

    rows = writer.appended(".rows")
    tickers = writer.appended(".tickers")
    ends = np.bincount(tickers).cumsum()
    rows_of_tickers = np.split(tickers.argsort(kind="stable"), ends[:-1])
    sorted_rows = create(writer, ".stocks", rows.shape, str(rows.dtype))
    stocks = {}
    first = 0
    for name, number in sorted(reading.tickers.items()):
        kept = reading.by_date(name, rows_of_tickers[number])
        if len(kept):
            last = first + len(kept)
            sorted_rows[first:last] = rows[kept]
            stocks[name] = as_stock(sorted_rows[first:last])
            first = last
    note_closes(stocks, reading)
    notes = {
        "rows left out: a price is missing": reading.num_halted,
        "rows without a volume, treated as the usual volume": reading.num_without_volume,
    }
    return stocks, notes


def as_stock(stored: np.ndarray) -> Stock:
    """Return a stock from its stored rows, sorted by date."""
    from ..dataset import Stock

    rows = stored.view(ROW)
    return Stock(rows["date"].view("M8[D]"), rows["prices"], rows["adjusted"], rows["volume"])


class Reading:
    """Writes the rows of files in their order, with the numbers of their tickers."""

    def __init__(self, writer: StoreWriter, flags: Flags, known: Flags | None):
        self.writer = writer
        self.flags = flags
        self.written = known  # how the last file was written
        self.tickers: dict[str, int] = {}  # numbered in order of appearance
        self.closes: dict[int, str] = {}  # the column of the returns of each ticker
        self.adjusted: set[int] = set()  # tickers whose closes are adjusted
        self.starts: list[tuple[int, Path]] = []  # the first row of each file
        self.num_rows = 0
        self.num_halted = 0
        self.num_without_volume = 0

    def read(self, file: Path) -> None:
        """Write the rows of a file. Raises `UserError` for a ticker of an earlier file."""
        import numpy as np

        from ..prepare.tables import Source

        num_earlier = len(self.tickers)
        self.starts.append((self.num_rows, file))
        source = Source(file, self.flags, self.written)
        for rows, places, names, column in read_prices(source):
            numbers = [self.tickers.setdefault(name, len(self.tickers)) for name in names]
            if min(numbers) < num_earlier:
                name = names[int(np.argmin(numbers))]
                raise UserError(f"{name} is in two files", str(file), "keep each stock in one file")
            self.closes |= dict.fromkeys(numbers, column.get("adjusted", column["close"]))
            if "adjusted" in column:
                self.adjusted.update(numbers)
            is_halted = np.isnan(rows["adjusted"])
            self.num_halted += is_halted.sum()
            self.num_without_volume += (np.isnan(rows["volume"]) & ~is_halted).sum()
            self.num_rows += len(rows)
            self.writer.append(".rows", rows, f"V{rows.itemsize}")
            self.writer.append(".tickers", np.array(numbers, np.int32)[places])
        self.written = source.style

    def by_date(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the rows of a stock that have all prices, in order of their dates.

        Raises `UserError` for two rows of a date.
        """
        import numpy as np

        content = self.writer.appended(".rows")[rows].view(ROW)
        order = content["date"].argsort(kind="stable")
        dates = content["date"][order]
        later = order[1:][dates[1:] == dates[:-1]]  # rows with a date that an earlier row has
        if len(later):
            row = later.max()
            file = bisect([start for start, _ in self.starts], rows[row]) - 1
            start, path = self.starts[file]
            date = content["date"][row].astype("M8[D]")
            where = f"{path}, row {rows[row] - start + 1}"
            raise UserError(f"{name} has two rows of {date}", where, "remove one of them")
        return rows[order[~np.isnan(content["adjusted"][order])]]


def note_closes(stocks: Stocks, reading: Reading) -> None:
    """Print the columns of the returns, and the days that look like a split of shares."""
    closes = Counter[str]()
    splits = []
    for name, stock in stocks.items():
        number = reading.tickers[name]
        closes[reading.closes[number]] += 1
        if number not in reading.adjusted:
            splits += jumps(name, stock)
    columns = [f"column '{close}' ({count} stocks)" for close, count in closes.items()]
    print(f"{'returns from:':14}{', '.join(columns)}")
    if splits:
        what = f"days on which the price changes as in a split of shares: {len(splits):,}"
        print(f"{'note:':14}{what}; add adjusted closes, or returns are wrong")
    for line in splits[:SHOWN]:
        print(f"{'':14}{line}")


def jumps(name: str, stock: Stock) -> list[str]:
    """Return stock, date and ratio where the price changes overnight as in a split of shares."""
    import numpy as np

    # The open to the last close: 0.25 after a split of 4:1.
    ratios = stock.prices[1:, 0] / stock.prices[:-1, 3]
    rows = np.flatnonzero(np.abs(np.log(ratios)) > np.log(JUMP))
    return [f"{name}, {stock.dates[row + 1]}, price × {ratios[row]:.2g}" for row in rows]
