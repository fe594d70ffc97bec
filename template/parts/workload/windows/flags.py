"""The flags of `predict` for new data, without what `--help` does not need."""

from __future__ import annotations

import argparse

from ..engine.runs import typed_path


def add_new(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict` for new data."""
    parser.add_argument(
        "--input", type=typed_path, metavar="FILE", help="HDF5 file with new features (N, T, F)"
    )
