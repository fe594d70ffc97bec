"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..engine.files import replacing
from ..engine.runs import typed_path
from ..trained import add_flags, collected, open_run, output_path, prediction_loader


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    add_flags(parser, output=".npz (default: predictions.npz in the run's folder)")
    text = "HDF5 file with new features (N, T, F)"
    parser.add_argument("--input", type=typed_path, metavar="FILE", help=text)
    text = "whether samples are the last axis in the file (default: as in `prepare`)"
    parser.add_argument("--transpose", action=argparse.BooleanOptionalAction, help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each window."""
    import numpy as np

    from ..prepare.fill import write_new

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".npz")
    with prediction_loader(arguments, project, write_new) as loader:
        windows = collected(project, loader)
    index = windows.pop("index")
    with replacing(output) as file:
        np.savez(file, allow_pickle=False, **windows)
    print(f"{len(index):,} forecasts of step {step} are in {output}")
