"""Reads daily prices of stocks, for `prepare` and `predict`."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from .splits import add_input

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Stock
    from ..prepare.tables import RowBlock, Source

    Stocks = dict[str, Stock]
    Piece = tuple[np.ndarray, np.ndarray, list[str]]

Flags = dict[str, Any]
"""How files are written: delimiter, decimal mark, encoding and so on, by the name of the flag."""

PRICES = ("open", "high", "low", "close")
# One day of a stock; `date` counts days since 1970.
ROW = [("date", "i8"), ("prices", "f8", (4,)), ("adjusted", "f8"), ("volume", "f8")]
KNOWN = ("date", *PRICES, "volume", "ticker", "adjusted")
# A date of an exchange, such as `2024-01-31 00:00:00-05:00`, is another time in UTC.
MIDNIGHT = r"[T ]00:00(:00(\.0+)?)?(Z|[+-]\d\d:?\d\d)\s*$"
# Other names of columns, in lower case and letters alone.
NAMES = {
    "symbol": "ticker",
    "adjclose": "adjusted",
    "adjustedclose": "adjusted",
    "closeadj": "adjusted",
    "adjprice": "adjusted",
    "adjustedprice": "adjusted",
}


def add_prices(parser: ArgumentParser, title: str, required: bool = True) -> None:
    """Add the flags of commands that read prices: `prepare` and `predict`."""
    add_input(parser, title, required)
    text = "column with the names of the stocks (default: ticker or symbol, or the file's name)"
    parser.add_argument("--ticker", metavar="COLUMN", help=text)
    text = "own edges between stocks: a table with the columns from, to, weight and first date"
    parser.add_argument("--edges", type=typed_path, metavar="FILE", help=text)


def long_enough(stocks: Stocks, window: int, path: Path) -> Stocks:
    """Return the stocks that have a whole window. Raises `UserError` if there is none."""
    kept = {ticker: stock for ticker, stock in stocks.items() if len(stock.dates) >= window}
    if not kept:
        what = f"no stock has {window} days with prices"
        raise UserError(what, str(path), "add earlier days, or run prepare with a smaller --window")
    return kept


def read_prices(source: Source, unused: set[str]) -> Iterator[Piece]:
    """Yield a table of prices in pieces: rows (n,), indices (n,) of their tickers, and tickers.

    Without a column `ticker`, the name of the file is the ticker. If any price is missing, the
    adjusted price becomes missing, too. Names of columns that are left out are added to `unused`.
    """
    import numpy as np

    own = source.flags.get("features", [])
    ticker = source.flags.get("ticker")
    for block in source.blocks():
        column = find_columns(list(block.columns), source.path, ticker)
        unused |= block.columns.keys() - {*own, *map(column.get, KNOWN)}
        rows = np.empty(block.num_rows, [*ROW, ("own", "f8", (len(own),))])
        for place, name in enumerate(own):
            rows["own"][:, place] = block.numbers(name, "fix the cell, or see --missing")
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
        yield rows, places, tickers


def find_columns(written: list[str], path: Path, ticker: str | None) -> dict[str, str]:
    """Map each known name to the column of the table, in any spelling; ticker: its column."""
    plain = [re.sub("[^a-z]", "", name.lower()) for name in written]
    names = [NAMES.get(name, name) for name in plain]
    column = dict(zip(names, written, strict=True))
    if ticker:
        column["ticker"] = ticker
    for name in KNOWN:
        count = names.count(name)
        if name == "ticker" and ticker:
            count = 1
        if count > 1 or not (count or name in ("ticker", "adjusted")):
            what = f"{count or 'no'} column{'s' * (count > 1)} '{name}'"
            needed = "provide one each of date, open, high, low, close and volume"
            needed += "; ticker (see --ticker) and adjusted close are optional"
            raise UserError(what, str(path), needed)
    return column


def tickers_of(block: RowBlock, column: dict[str, str], path: Path) -> tuple[np.ndarray, list[str]]:
    """Return the index (n,) of each row's ticker in a list, and the list."""
    import numpy as np

    from .tables import PACKED

    if "ticker" not in column:
        name = Path(re.sub(f"{PACKED}$", "", path.name)).stem
        return np.zeros(block.num_rows, int), [name]

    encoded = block.column(column["ticker"]).dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy()
    if (places < 0).any():
        row = int((places < 0).argmax())
        remedy = "fill it in, or remove the row; if it is a name, such as NA, add --keep-na"
        raise block.error("a ticker is missing", row, column["ticker"], remedy)
    return places, encoded.dictionary.to_pylist()


def dates(block: RowBlock, name: str) -> np.ndarray:
    """Return days since 1970 (rows,). Raises `UserError`, with the row, for an invalid date."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from .times import read_dates

    column = block.columns[name]
    if pa.types.is_timestamp(column.type) and column.type.tz:
        block.columns[name] = pc.local_timestamp(column)
    elif pa.types.is_string(column.type) and not block.source.style["time_format"]:
        block.columns[name] = pc.replace_substring_regex(column, MIDNIGHT, "")
    remedy = "write it as 2024-01-31, or give the format, such as --time-format %d.%m.%Y"
    times = read_dates(block, name, remedy).to_numpy(zero_copy_only=False).astype("M8[s]")
    days = times.astype("M8[D]")
    is_wrong = days != times
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise block.error(f"'{block.column(name)[row]}' is not a date", row, name, remedy)
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
    path: Path, flags: Flags, known: Flags | None = None
) -> tuple[Stocks, Flags, dict[str, int]]:
    """Return stocks by ticker, sorted by name; how the files are written; and counts of rows.

    A folder has a file for each stock, named after the stock, unless the files have a column
    `ticker`. known: how earlier files were written. Raises `UserError` for two rows of a stock and
    a date.
    """
    import numpy as np
    from tqdm import tqdm

    from ..prepare.tables import Source, find_files

    written = known or {}
    unused: set[str] = set()
    tickers: dict[str, int] = {}  # numbered in order of appearance
    pieces = []
    numbers = []
    for file in tqdm(find_files(path), "files", disable=None):
        source = Source(file, flags, written)
        for rows, places, names in read_prices(source, unused):
            number_of = np.array([tickers.setdefault(name, len(tickers)) for name in names])
            pieces.append(rows)
            numbers.append(number_of[places])
        written = written | source.style

    rows = np.concatenate(pieces)
    number = np.concatenate(numbers)
    is_halted = np.isnan(rows["adjusted"])
    has_no_volume = np.isnan(rows["volume"]) & ~is_halted
    notes = {
        "rows left out: a price is missing": is_halted.sum(),
        "rows without a volume, treated as the usual volume": has_no_volume.sum(),
        "empty cells of --features, treated as the mean": np.isnan(rows["own"]).sum(),
        f"columns left out, see --features: {', '.join(sorted(unused))}": len(unused),
    }

    stocks = sorted_stocks(rows, number, tickers, path)
    return stocks, written, notes


def sorted_stocks(
    rows: np.ndarray, number: np.ndarray, tickers: dict[str, int], path: Path
) -> Stocks:
    """Return stocks by ticker, each with its days in order.

    number: which ticker each row belongs to. Raises `UserError` for two rows of a day, and for
    tickers that differ only in case.
    """
    import numpy as np

    from ..dataset import Stock

    order = np.lexsort([rows["date"], number])
    rows = rows[order]
    ends = np.bincount(number).cumsum()
    of_tickers = np.split(rows, ends[:-1])
    stocks = {}
    spelled: dict[str, str] = {}
    for name, index in sorted(tickers.items()):
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            what = f"two stocks differ only in case: '{other}' and '{name}'"
            raise UserError(what, str(path), "write a ticker in one way")
        days = of_tickers[index]
        is_repeated = np.diff(days["date"]) == 0
        if is_repeated.any():
            date = days["date"][is_repeated.argmax()].astype("M8[D]")
            remedy = "remove one of them; if a column names the stock, add --ticker COLUMN"
            raise UserError(f"{name} has two rows of {date}", str(path), remedy)
        days = days[~np.isnan(days["adjusted"])]
        if len(days):
            dates = days["date"].astype("M8[D]")
            stocks[name] = Stock(
                dates, days["prices"], days["adjusted"], days["volume"], days["own"].T
            )
    return stocks


def read_edges(flags: Flags, stocks: Stocks, left_out: Iterable[str]) -> np.ndarray | None:
    """Read the table of --edges, if it is given: from, to, weight and first day (4, n), by date.

    left_out: names of other stocks, whose edges are left out. Raises `UserError`, with the row, for
    an unknown stock, and for an edge that begins after the last day.
    """
    import numpy as np

    from .tables import Source

    if not flags["edges"]:
        return None
    number_of = dict.fromkeys(left_out, -1) | dict(zip(stocks, range(len(stocks)), strict=True))
    last = max(stock.dates[-1] for stock in stocks.values())
    pieces = []
    # The delimiter and the decimal mark of this file may be others.
    source = Source(Path(flags["edges"]), {**flags, "delimiter": None, "decimal": None})
    for block in source.blocks():
        edges = np.empty((4, block.num_rows))
        for place, name in enumerate(("from", "to")):
            cells = block.column(name).to_pylist()
            edges[place] = [number_of.get(cell, -2) for cell in cells]
        edges[2] = block.numbers("weight", "fix the cell")
        edges[3] = dates(block, "first date")
        impossible = {
            "an edge of an unknown stock": (edges[:2] < -1).any(0),
            "an edge without a weight": np.isnan(edges[2]),
            f"an edge that begins after the last day, {last}": edges[3] > last.astype(int),
        }
        for what, wrong in impossible.items():
            if wrong.any():
                where = f"{source.path}, row {block.first + int(wrong.argmax()) + 1}"
                raise UserError(what, where, "fix the row, or remove it")
        pieces.append(edges)

    edges = np.concatenate(pieces, 1)
    edges = edges[:, (edges[:2] >= 0).all(0)]
    return edges[:, edges[3].argsort(kind="stable")]
