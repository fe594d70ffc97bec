"""Flags of `prepare` and `predict`, without what `--help` does not need."""

from __future__ import annotations

import argparse

from .splits import add_input


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare` for the history."""
    text = "number of past rows that a forecast sees (default: 96)"
    parser.add_argument("--history", type=int, default=96, metavar="ROWS", help=text)


def add_new(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict` for new data."""
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)
