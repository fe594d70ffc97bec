"""Turn the table of a series into the prepared dataset that training reads.

`prepare/frames.py` resamples it into time frames.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, destination, print_summary


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    text = "number of past rows that a forecast sees; with --frames, one per frame (default: 96)"
    add("--history", type=numbers, default=[96], metavar="ROWS", help=text)
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


def numbers(text: str) -> list[int]:
    """Return numbers that are separated by commas. argparse reports a ValueError."""
    return [int(number) for number in text.split(",")]


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, resample, check and write the series, and print a summary."""
    from ..engine.data.store import StoreWriter
    from ..prepare.frames import TEMPORARY, fill, make_frames
    from ..prepare.series import read_series
    from ..prepare.tables import Source, place_of
    from ..settings import WORKLOAD

    source = Source(Path(arguments.input), vars(arguments))
    max_gap = arguments.max_gap
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            series = read_series(writer, source, vars(arguments), arrays=TEMPORARY)
            names = arguments.targets.split(",") if arguments.targets else series.names
            targets = [place_of(name.strip(), series.names, source.path) for name in names]
            rules = read_rules(arguments.aggregate, series.names, source.path)
            frames = make_frames(series, read_histories(arguments), rules)
            horizon = arguments.horizon
            counts, lines = fill(writer, frames, targets, horizon, arguments.split, max_gap)
            writer.source |= {"aggregate": rules, "max_gap": max_gap}

        for frame in frames:
            print(f"{frame.name + ':':12}{len(frame.bars):,}, {frame.history} in a window")
        print(f"windows:    {', '.join(counts)}")
        print_summary(writer, arguments.dry_run, lines)


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


def read_histories(arguments: argparse.Namespace) -> dict[str, int]:
    """Return how many bars of each frame a window has, by its name."""
    names = [name.strip() for name in arguments.frames.split(",")]
    histories = arguments.history
    if len(histories) == 1:
        histories = histories * len(names)
    if len(histories) != len(names):
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"{len(histories)} numbers of bars", "--history", remedy)
    return dict(zip(names, histories, strict=True))
