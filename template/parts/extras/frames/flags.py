"""Flags of `prepare` and `predict`, without what `--help` does not need."""

from __future__ import annotations

import argparse

from .splits import add_input


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare` for the history and the frames."""
    add = parser.add_argument
    text = "number of past rows that a forecast sees; with --frames, one per frame (default: 96)"
    add("--history", default="96", metavar="ROWS", help=text)
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


def add_new(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict` for new data."""
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)
