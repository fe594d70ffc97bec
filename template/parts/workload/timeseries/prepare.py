"""Turn the table of a series into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..prepare.flags import add_flags
from ..prepare.splits import add_input, destination, print_summary

if TYPE_CHECKING:
    from ..engine.data.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    add_flags(parser)
    text = "number of rows to forecast (default: 24)"
    add("--horizon", type=int, default=24, metavar="ROWS", help=text)
    text = (
        "fractions of time that add up to 1, or numbers of rows; test may be 0 (default: "
        "%(default)s)"
    )
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)

    text = "column with the time of a row, or `none` to count rows (default: the first column)"
    add("--time-column", metavar="COLUMN", help=text)
    text = "columns to forecast, separated by commas (default: all)"
    add("--targets", metavar="COLUMNS", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)
    text = "fill empty cells with the last known value; they are an error otherwise"
    add("--fill", choices=["last"], help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, check and write the series, and print a summary."""
    from ..engine.data.store import Store, StoreWriter
    from ..prepare.fill import fill
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    source = Source(Path(arguments.input), vars(arguments))
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            lines = fill(writer, source, vars(arguments))
        report(Store.open(folder))
        print_summary(writer, arguments.dry_run, lines)


def report(store: Store) -> None:
    """Print the numbers of rows and windows."""
    from ..dataset import Samples

    for frame in store.facts["frames"]:
        num_rows = store.arrays[frame["name"]].shape[0]
        print(f"{frame['name'] + ':':12}{num_rows:,}, {frame['history']} in a window")
    counts = [f"{len(Samples(store, None, name)):,} {name}" for name in store.splits]
    print(f"windows:    {', '.join(counts)}")
