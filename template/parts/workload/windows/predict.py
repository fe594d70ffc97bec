"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.files import replacing
from ..engine.runs import find_run, typed_path
from ..trained import add_flags, collected, open_run, output_path


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    add_flags(parser, output=".npz (default: predictions.npz in the run's folder)")
    text = "HDF5 file with new features (N, T, F)"
    parser.add_argument("--input", type=typed_path, metavar="FILE", help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each window."""
    import numpy as np

    from ..engine.data.store import Store
    from ..prepare.fill import new_store

    split = "input" if arguments.input else arguments.split
    folder = find_run(arguments.run)
    output = output_path(
        arguments.output, folder / "predictions.npz", ".npz", source=arguments.input
    )
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            new_store(Path(arguments.input), vars(arguments), project.store, Path(temporary))
            project = replace(project, store=Store.open(Path(temporary)))
        windows = collected(project, project.loader(split))
    index = windows.pop("index")
    with replacing(output) as file:
        np.savez(file, allow_pickle=False, **windows)
    print(f"{len(index):,} forecasts of step {step} are in {output}")
