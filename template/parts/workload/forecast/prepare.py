"""Turn a table of series into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, print_next

if TYPE_CHECKING:
    from ..prepare.panel import Panel

COLUMNS = "columns, separated by commas, "


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add_input(parser, "series, one below the other in any order, or a folder with a file a series")
    add_columns(parser)
    add = parser.add_argument
    add(
        "--history",
        type=int,
        default=96,
        metavar="ROWS",
        help="number of past rows that a forecast sees (default: 96)",
    )
    add(
        "--horizon",
        type=int,
        default=24,
        metavar="ROWS",
        help="number of rows to forecast (default: 24)",
    )
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions that add up to 1, or numbers of rows or series; test may be 0. With "
        "`--split-by end`: rest,VALIDATION,TEST, in rows of each series (default: %(default)s)",
    )
    add(
        "--split-by",
        choices=["time", "end", "series"],
        default="time",
        help="time: splits begin at the same time in all series. end: validation and test are the "
        "last rows of each series. series: splits have different series (default: %(default)s)",
    )
    add(
        "--season",
        type=int,
        metavar="ROWS",
        help="after how many rows values are alike, for MASE and the seasonal naive forecast "
        "(default: by the distance of rows, such as 24 for hours)",
    )
    add(
        "--stride",
        type=int,
        default=1,
        metavar="ROWS",
        help="rows from one window of validation and test to the next (default: 1)",
    )
    add(
        "--fill",
        choices=["none", "last", "zero"],
        help="what to do with empty cells, which are an error otherwise. none: leave targets out "
        "of the loss. last, zero: add absent rows, and use the last known value; for targets, the "
        "last value or 0, as of sales",
    )
    add(
        "--max-gap",
        metavar="NAME",
        help="leave out windows across a longer gap in time, such as M30, H2 or D1; closed nights "
        "and weekends are none (default: windows run across gaps)",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what a column is."""
    add = parser.add_argument
    add("--series", metavar="COLUMNS", help=f"{COLUMNS}that name the series of a row")
    add("--targets", metavar="COLUMNS", help=f"{COLUMNS}to forecast (default: all others)")
    add(
        "--time-column",
        metavar="COLUMN",
        help="column with the time of a row, or `none` to count the rows of each series (default: "
        "the first column that names no series)",
    )
    add(
        "--known",
        metavar="COLUMNS",
        help=f"{COLUMNS}whose future is known when a forecast is made, such as a promotion; texts "
        "are categories",
    )
    add(
        "--calendar",
        metavar="UNITS",
        help="parts of the time that a forecast sees: hour, weekday, day, month and yearday, "
        "separated by commas",
    )
    add("--static", metavar="COLUMNS", help=f"{COLUMNS}that have one value in all rows of a series")
    add(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="leave a column out; repeatable",
    )


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, check and write the series, and print a summary."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.pieces import Windows, count_windows, find_borders, find_pieces
    from ..prepare.reading import read_panel
    from ..prepare.scales import find_season
    from ..prepare.storing import write_panel
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    history = arguments.history
    if min(history, arguments.horizon, arguments.stride) < 1:
        what = "a window needs at least 1 row for each"
        raise UserError(what, "--history, --horizon, --stride", "give larger numbers")
    source = Source(Path(arguments.input), vars(arguments))
    folder = check_folder(load().data.path, arguments.input)
    with StoreWriter(folder, WORKLOAD) as writer:
        panel = read_panel(writer, source, arguments.horizon)
        borders = find_borders(panel, arguments.split, arguments.split_by)
        season = find_season(panel, borders, history, arguments.season)
        windows = Windows(history, arguments.horizon, season, arguments.stride)
        counts = count_windows(find_pieces(panel, borders), panel.keys, windows)
        write_panel(writer, panel, borders, windows)

    num_rows = int((panel.ends - panel.firsts).sum())
    print(f"series:     {len(panel.keys):,} with {num_rows:,} rows")
    print(f"windows:    {', '.join(counts)}, {history} rows of history in each")
    print(f"season:     {season} rows")
    print(f"targets:    {', '.join(panel.roles.targets)}")
    print_series(panel, writer.source)
    print_next(folder)


def print_series(panel: Panel, source: dict[str, Any]) -> None:
    """Print three series, from the first target to the last: wrong keys and times are visible."""
    from ..prepare.clocks import as_dates

    name = panel.roles.targets[0]
    column = panel.roles.places([name])
    last = len(panel.keys) - 1
    for number in sorted({0, last // 2, last}):
        first = panel.firsts[number]
        end = panel.ends[number]
        rows = [first, end - 1]
        dates = as_dates(panel.times[rows], source)
        values = panel.values[rows, column]
        cells = [f"{value:g} ({date})" for value, date in zip(values, dates, strict=True)]
        print(f"series {panel.keys[number]}: {end - first:,} rows, {name} {cells[0]} … {cells[1]}")
