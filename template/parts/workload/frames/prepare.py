"""Turn the table of a series into the prepared dataset that training reads.

`prepare/frames.py` resamples it into time frames.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..prepare.splits import add_input, print_next


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--history",
        type=int,
        default=96,
        metavar="ROWS",
        help="number of past rows that a forecast sees, without --frames (default: 96)",
    )
    either.add_argument(
        "--frames",
        type=numbers,
        metavar="NAME=BARS",
        help="time frames to resample to, finest first, each with the number of its past bars, "
        "such as M1=480,M15=192,H4=48 (default: the rows)",
    )
    add(
        "--aggregate",
        type=pairs,
        default={},
        metavar="COLUMN=RULE",
        help="rules that make bars of columns: first, max, min, last or sum (default: first for "
        "open, max for high, min for low, sum for volume, last for others)",
    )
    add(
        "--max-gap",
        metavar="NAME",
        help="leave out windows across a longer gap in time, such as M30, H2 or D1 (default: "
        "windows run across gaps)",
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


def pairs(text: str) -> dict[str, str]:
    """Return the values of `a=x,b=y` by name. argparse reports a ValueError."""
    return dict(pair.split("=") for pair in text.split(","))


def numbers(text: str) -> dict[str, int]:
    """Do the same for numbers."""
    return {name: int(value) for name, value in pairs(text).items()}


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, resample, check and write the series, and print a summary."""
    from ..engine.loading.store import StoreWriter, check_folder
    from ..prepare.frames import RULES, TEMPORARY, fill, make_frames
    from ..prepare.series import read_series
    from ..prepare.tables import Source, place_of
    from ..settings import WORKLOAD

    source = Source(Path(arguments.input), vars(arguments))
    histories = arguments.frames or {"rows": arguments.history}
    rules = arguments.aggregate
    folder = check_folder(load().data.path, arguments.input)
    with StoreWriter(folder, WORKLOAD) as writer:
        series = read_series(writer, source, arrays=TEMPORARY)
        names = arguments.targets.split(",") if arguments.targets else series.names
        targets = [place_of(name.strip(), series.names, source.path) for name in names]
        for column, rule in rules.items():
            place_of(column, series.names, source.path)
            if rule not in RULES:
                raise UserError(f"no rule '{rule}'", "--aggregate", f"choose {', '.join(RULES)}")
        frames = make_frames(series, histories, rules)
        counts = fill(
            writer, frames, targets, arguments.horizon, arguments.split, arguments.max_gap
        )
        writer.source |= {"aggregate": rules, "max_gap": arguments.max_gap}

    for frame in frames:
        print(f"{frame.name + ':':12}{len(frame.bars):,}, {frame.history} in a window")
    print(f"windows:    {', '.join(counts)}")
    print_next(folder)
