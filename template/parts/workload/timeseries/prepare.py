"""Turn the table of a series into the prepared dataset that training reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, borders, destination, print_summary

if TYPE_CHECKING:
    from ..engine.data.store import Store, StoreWriter
    from ..prepare.series import Series
    from ..prepare.tables import Source


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    text = "number of past rows that a forecast sees (default: 96)"
    add("--history", type=int, default=96, metavar="ROWS", help=text)
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
    from ..prepare.series import EMPTY
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    for name in ("history", "horizon"):
        rows = getattr(arguments, name)
        if rows < 1:
            raise UserError(f"the {name} cannot be {rows}", f"--{name}", "use at least 1 row")
    source = Source(Path(arguments.input), EMPTY, vars(arguments))
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            series, columns = fill(writer, source, arguments)
        report(Store.open(folder), series)
        print_summary(writer, arguments.dry_run, columns)


def fill(
    writer: StoreWriter, source: Source, arguments: argparse.Namespace
) -> tuple[Series, list[tuple[str, ...]]]:
    """Read and write the series, with metadata from the training rows.

    Returns the series, and a summary line for each column.
    """
    from ..prepare.series import describe, read_series, write_series
    from ..prepare.tables import place_of

    series = read_series(writer, source, arguments.time_column, arguments.drop, arguments.fill)
    wanted = arguments.targets.split(",") if arguments.targets else series.names
    targets = [place_of(name.strip(), series.names, source.path) for name in wanted]
    if len(set(targets)) < len(targets):
        remedy = "name each column once"
        raise UserError("a column is named twice", f"--targets {arguments.targets}", remedy)

    splits = borders(arguments.split, len(series))
    where = f"--split {arguments.split}"
    facts, lines = describe(series, splits, targets, arguments.history, arguments.horizon, where)
    write_series(writer, series, splits, facts)
    writer.source |= {
        "file": source.path.name,
        "rows": len(series),
        "split": arguments.split,
        "fill": arguments.fill,
        **source.written,
    }
    return series, lines


def report(store: Store, series: Series) -> None:
    """Print the columns and the numbers of rows and windows."""
    from ..dataset import Samples

    print(f"columns:    {', '.join(series.names)}")
    print(f"rows:       {len(series):,}, {store.facts['frames'][0]['history']} in a window")
    counts = [f"{len(Samples(store, None, name)):,} {name}" for name in store.splits]
    print(f"windows:    {', '.join(counts)}")
