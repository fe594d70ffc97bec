"""Turn the table of a series into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..prepare.splits import add_input, borders, print_next

if TYPE_CHECKING:
    import numpy as np

    from ..prepare.series import Series


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    add(
        "--history",
        type=int,
        default=96,
        help="number of past rows that a forecast sees (default: 96)",
    )
    add(
        "--horizon",
        type=int,
        default=24,
        help="number of rows to forecast (default: 24)",
    )
    add(
        "--max-gap",
        metavar="NAME",
        help="leave out windows across a longer gap in time, such as M30, H2 or D1 (default: "
        "windows run across gaps)",
    )
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="fractions of time that add up to 1, or numbers of rows; test may be 0 (default: "
        "%(default)s)",
    )
    add(
        "--time-column",
        metavar="COLUMN",
        help="column with the time of a row, or `none` to count rows (default: the first column)",
    )
    add(
        "--targets",
        metavar="COLUMNS",
        help="columns to forecast, separated by commas (default: all)",
    )
    add(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="leave a column out; repeatable",
    )
    add(
        "--fill",
        choices=["last"],
        help="fill empty cells with the last known value; they are an error otherwise",
    )


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, check and write the series, and print a summary."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.series import (
        count_windows,
        describe,
        describe_frame,
        read_series,
        write_windows,
    )
    from ..prepare.tables import Source, place_of
    from ..settings import WORKLOAD

    history = arguments.history
    horizon = arguments.horizon
    source = Source(Path(arguments.input), vars(arguments))
    folder = check_folder(load().data.path, arguments.input)
    with StoreWriter(folder, WORKLOAD) as writer:
        series = read_series(writer, source)
        names = arguments.targets.split(",") if arguments.targets else series.names
        targets = [place_of(name.strip(), series.names, source.path) for name in names]
        splits = borders(arguments.split, len(series))
        frame = describe_frame("rows", series, history, splits["train"][1])
        writer.facts = describe(series.names, targets, horizon, [frame])
        writer.splits = splits
        windows = write_windows(writer, series, history, horizon, arguments.max_gap)
        counts = count_windows(windows, splits, horizon)

    print(f"rows:       {len(series):,}, {history} in a window")
    print(f"windows:    {', '.join(counts)}")
    shape = f"{history} rows of {len(series.names)} columns → {horizon} rows of {len(targets)}"
    print(f"a window:   {shape}")
    print_windows(series, windows, targets, writer.source)
    print_next(folder)


def print_windows(
    series: Series, windows: range | np.ndarray, targets: list[int], source: dict[str, Any]
) -> None:
    """Print the last known row and the first targets of three windows. windows: rows of targets."""
    import numpy as np

    from ..prepare.clocks import as_dates

    with np.printoptions(precision=4, threshold=5, edgeitems=2):
        for row in (windows[0], windows[len(windows) // 2], windows[-1]):
            date = as_dates(series.times[[row]], source)[0]
            known = series.values[row - 1]
            first = series.values[row, targets]
            print(f"window:     … {known} → {date} {first} …")
