"""Turn daily prices of stocks into the data folder that training reads."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Plan, Stock

ENDINGS = (".csv", ".csv.gz")
PRICES = ("open", "high", "low", "close")
NAMES = {"symbol": "ticker", "adjclose": "adjusted", "adjustedclose": "adjusted"}  # without blanks and _
MISSING = {"", "na", "nan", "null", "none"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="folder of CSV files, one per stock, or one long CSV")
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

    folder, path, plan = Path(load().data.path), Path(arguments.input), plan_of(arguments)
    stocks, notes = read_stocks(path)
    stocks, short = long_enough(stocks, plan.window)
    if not stocks:
        raise UserError(
            f"no stock has {plan.window} days with prices", str(path), "choose a smaller --window"
        )
    found = panel(stocks, plan)
    ahead = max(plan.horizons)
    days = len(found.dates) - ahead  # the last ones have no target yet
    sizes = split_sizes(arguments.split, days)
    names = ("train", "validation", "test")
    for name, size in zip(names, sizes, strict=True):
        if size <= ahead and (size or name != "test"):
            what = f"a horizon of {ahead} days is longer than the {name} split of {size} days"
            raise UserError(what, f"--horizons {arguments.horizons}", "shorten it, or give --split more days")
    splits = split_days(days, sizes, ahead)
    facts = describe(found.arrays, list(stocks), plan, slice(*splits["train"]))
    write(folder, found, facts, splits, {"path": path.name, "stocks": len(stocks)})
    report(found, facts, splits, {**notes, f"stocks left out: fewer than {plan.window} days": short})
    print(f"{'written to:':14}{folder}")


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


class Table(NamedTuple):
    """One CSV file: columns of cells by their plain names, and the line that each row stands in."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def error(self, what: str, row: int, remedy: str) -> UserError:
        return UserError(what, f"{self.path}, line {self.lines[row]}", remedy)

    def numbers(self, name: str) -> np.ndarray:
        """(n,) float64, NaN where the cell is missing. Raises `UserError` for a text and for infinity."""
        import numpy as np

        cells = ["nan" if cell.lower() in MISSING else cell for cell in self.columns[name]]
        for row, cell in enumerate(cells):
            if not _is_number(cell):
                raise self.error(f"'{cell}' is not a number", row, f"mend the cell in column '{name}'")
        return np.array(cells, np.float64)

    def dates(self) -> np.ndarray:
        """(n,) datetime64[D]."""
        import numpy as np

        for row, cell in enumerate(self.columns["date"]):
            try:
                if len(cell) != len("2024-01-31"):
                    raise ValueError
                np.datetime64(cell, "D")
            except ValueError:
                raise self.error(f"'{cell}' is not a date", row, "write it as 2024-01-31") from None
        return np.array(self.columns["date"], "datetime64[D]")


def _is_number(cell: str) -> bool:
    try:
        return not math.isinf(float(cell)) and "_" not in cell
    except ValueError:
        return False


def read_stocks(path: Path) -> tuple[dict[str, Stock], dict[str, int]]:
    """Stocks by ticker, in the order of their names, and counts of what was left out or filled in.

    A folder has a file for each stock, named as the stock, unless the files have a column `ticker`.
    """
    import numpy as np
    from tqdm import tqdm

    from ..dataset import Stock

    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.name.lower().endswith(ENDINGS))
        if not paths:
            raise UserError("no .csv or .csv.gz file in the folder", str(path), "point --input at the prices")
    else:
        paths = [path]
    halted = unknown = 0
    parts: dict[str, Stock] = {}
    for file in tqdm(paths, "reading", disable=None):
        table = read_table(file)
        stem = file.name.lower().removesuffix(".gz").removesuffix(".csv")
        tickers = np.array(table.columns.get("ticker") or [file.name[: len(stem)]] * len(table.lines))
        prices = np.stack([table.numbers(name) for name in PRICES], 1)  # (n, 4)
        adjusted = table.numbers("adjusted") if "adjusted" in table.columns else prices[:, 3]
        volume, dates = table.numbers("volume"), table.dates()
        check(table, prices, adjusted, volume)
        here = np.isfinite(prices).all(1) & np.isfinite(adjusted)
        halted, unknown = halted + int((~here).sum()), unknown + int(np.isnan(volume[here]).sum())
        order = np.lexsort((dates, tickers))
        same = (tickers[order][1:] == tickers[order][:-1]) & (dates[order][1:] == dates[order][:-1])
        if same.any():
            row = order[1:][same].max()
            what = f"{tickers[row]} has two rows of {dates[row]}"
            raise table.error(what, row, "remove one of them")
        order = order[here[order]]
        names, starts = np.unique(tickers[order], return_index=True)
        for name, rows in zip(names.tolist(), np.split(order, starts[1:]), strict=True):
            if name in parts:
                raise UserError(f"{name} is in two files", str(file), "keep each stock in one file")
            if not name:
                raise table.error("a ticker is missing", rows[0], "fill it in, or remove the row")
            parts[name] = Stock(dates[rows], prices[rows], adjusted[rows], volume[rows])
    notes = {
        "rows left out: a price is missing": halted,
        "rows without a volume, taken as the usual one": unknown,
    }
    return dict(sorted(parts.items())), notes


def check(table: Table, prices: np.ndarray, adjusted: np.ndarray, volume: np.ndarray) -> None:
    """Raises `UserError` at the first row that no market makes."""
    impossible = {
        "a price is 0 or below": (prices <= 0).any(1) | (adjusted <= 0),
        "the high is below the low": prices[:, 1] < prices[:, 2],
        "the volume is below 0": volume < 0,
    }
    for what, rows in impossible.items():
        if rows.any():
            raise table.error(what, int(rows.argmax()), "mend or remove the row; empty cells leave it out")


def read_table(path: Path) -> Table:
    """The cells of a CSV file, plain or gzipped, with a header line; blank lines are skipped."""
    lines, rows = [], []
    try:
        with open(path, "rb") as raw:
            plain = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            reader = csv.reader(io.TextIOWrapper(plain, "utf-8-sig", newline=""), strict=True)
            header = next((row for row in reader if row), [])
            for row in reader:
                if row and len(row) != len(header):
                    what = f"{len(row)} cells where the header has {len(header)}"
                    raise UserError(what, f"{path}, line {reader.line_num}", "mend the line")
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", str(path), "check --input") from error
    except (EOFError, zlib.error) as error:
        raise UserError("the gzip file is damaged", str(path), "fetch it again") from error
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8", str(path), "save it as UTF-8") from error
    except csv.Error as error:
        raise UserError(f"not a readable CSV ({error})", str(path), "save it anew") from error
    names = [name.strip().lower().replace(" ", "").replace("_", "") for name in header]
    names = [NAMES.get(name, name) for name in names]
    for name in ("date", *PRICES, "volume"):
        if names.count(name) != 1:
            what = f"{names.count(name) or 'no'} column{'s' * (names.count(name) > 1)} '{name}'"
            remedy = (
                "it needs date, open, high, low, close and volume, and may have ticker and adjusted close"
            )
            raise UserError(what, str(path), remedy)
    if not rows:
        raise UserError("no rows under the header", str(path), "remove the file, or fetch it again")
    cells = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    return Table(path, dict(zip(names, cells, strict=True)), lines)


def split_sizes(split: str, count: int) -> list[int]:
    """Days of train, validation and test: `0.7,0.15,0.15` of them, or as many as `--split` says."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        if len(parts) != 3 or not all(0 <= part < math.inf for part in parts):
            raise ValueError
        shares = abs(sum(parts) - 1) < 1e-6
        if not shares and any(part != int(part) for part in parts):
            raise ValueError
    except ValueError:
        remedy = "give three shares that add up to 1, such as 0.7,0.15,0.15, or three numbers of days"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    if shares:
        last = round(max(count, 0) * parts[2])
        first = min(round(max(count, 0) * parts[0]), count - last)
        sizes = [first, count - last - first, last]
    else:
        sizes = [int(part) for part in parts]
    for name, size in zip(("training", "validation"), sizes, strict=False):
        if size < 1:
            raise UserError(f"no day is left for {name}", f"--split {split}, {count} days", "give it one")
    if sum(sizes) > count:
        raise UserError(f"the split needs {sum(sizes)} days", f"--split {split}", f"there are {count}")
    return sizes
