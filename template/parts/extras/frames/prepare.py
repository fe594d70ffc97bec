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
    from ..prepare.frames import Frame
    from ..prepare.tables import Source


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    text = "number of past rows that a forecast sees; with --frames, one per frame (default: 96)"
    add("--history", default="96", metavar="ROWS", help=text)
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

    text = (
        "leave out windows across a longer gap in time, such as M30, H2 or D1 (default: windows "
        "run across gaps)"
    )
    add("--max-gap", metavar="NAME", help=text)
    text = "time frames to resample to, finest first, such as M1,M5,M15,H1,H4 (default: rows)"
    add("--frames", default="rows", metavar="NAMES", help=text)
    text = (
        "rule that makes bars of a column: first, max, min, last or sum (default: first for open, "
        "max for high, min for low, sum for volume, last for others)"
    )
    add("--aggregate", default="", metavar="COLUMN=RULE", help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, check and write the series, and print a summary."""
    from ..engine.data.store import Store, StoreWriter
    from ..prepare.series import EMPTY
    from ..prepare.tables import Source
    from ..settings import WORKLOAD

    if arguments.horizon < 1:
        what = f"the horizon cannot be {arguments.horizon}"
        raise UserError(what, "--horizon", "use at least 1 row")
    if arguments.max_gap and arguments.time_column == "none":
        what = "rows without times have no gaps"
        raise UserError(what, f"--max-gap {arguments.max_gap}", "remove the flag")
    source = Source(Path(arguments.input), EMPTY, vars(arguments))
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            frames, columns = fill(writer, source, arguments)
        report(Store.open(folder), frames)
        print_summary(writer, arguments.dry_run, columns)


def fill(
    writer: StoreWriter, source: Source, arguments: argparse.Namespace
) -> tuple[list[Frame], list[tuple[str, ...]]]:
    """Read the series and write all frames, with metadata from the training rows.

    Returns the frames, and a summary line for each column.
    """
    from ..prepare.frames import describe, make_frames, write_frames
    from ..prepare.series import read_series
    from ..prepare.tables import place_of

    series = read_series(writer, source, arguments.time_column, arguments.drop, arguments.fill)
    columns = series.names
    rules = read_rules(arguments.aggregate, columns, source.path)
    names = [name.strip() for name in arguments.frames.split(",")]
    histories = read_histories(arguments.history, names)
    frames = make_frames(series, names, histories, rules)
    wanted = arguments.targets.split(",") if arguments.targets else columns
    targets = [place_of(name.strip(), columns, source.path) for name in wanted]
    if len(set(targets)) < len(targets):
        remedy = "name each column once"
        raise UserError("a column is named twice", f"--targets {arguments.targets}", remedy)

    splits = borders(arguments.split, len(frames[0].bars))
    where = f"--split {arguments.split}"
    facts, lines = describe(frames, splits, targets, arguments.horizon, where)
    write_frames(writer, frames, splits, facts, arguments.max_gap)
    writer.source |= {
        "file": source.path.name,
        "rows": len(series),
        "split": arguments.split,
        "aggregate": rules,
        "fill": arguments.fill,
        "max_gap": arguments.max_gap,
        **source.written,
    }
    return frames, lines


def read_rules(given: str, columns: list[str], path: Path) -> dict[str, str]:
    """Return the rules of `--aggregate` by column."""
    from ..prepare.frames import RULES
    from ..prepare.tables import place_of

    rules = {}
    for text in filter(None, given.split(",")):
        column, _, rule = text.strip().partition("=")
        place_of(column, columns, path)
        if rule not in RULES:
            raise UserError(f"no rule '{rule}'", "--aggregate", f"choose {', '.join(RULES)}")
        rules[column] = rule
    return rules


def read_histories(given: str, names: list[str]) -> list[int]:
    """Return the numbers of `--history`, one for each frame."""
    histories = [int(text) if text.strip().isdecimal() else 0 for text in given.split(",")]
    if len(histories) == 1:
        histories *= len(names)
    if len(histories) != len(names) or min(histories) < 1:
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"'{given}' is not a valid history", "--history", remedy)
    return histories


def report(store: Store, frames: list[Frame]) -> None:
    """Print the columns, the frames and the numbers of windows."""
    from ..dataset import Samples

    print(f"columns:    {', '.join(frames[0].bars.names)}")
    for frame in frames:
        print(f"{frame.name + ':':12}{len(frame.bars):,} rows, {frame.history} in a window")
    counts = [f"{len(Samples(store, None, name)):,} {name}" for name in store.splits]
    print(f"windows:    {', '.join(counts)}")
