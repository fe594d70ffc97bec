"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.runs import find_run
from ..prepare.flags import add_new
from ..trained import (
    add_flags,
    collected,
    open_run,
    output_path,
    write_output,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    time = "`time` in it, if any, is in seconds since 1970, or a row number"
    add_flags(parser, output=f".npz; {time} (default: predictions.npz in the run's folder)")
    add_new(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each window.

    For a series also `columns`, the names of the targets, and `time`, the last known row.
    """
    import numpy as np

    from ..engine.data.store import Store
    from ..prepare.fill import new_store

    split = "input" if arguments.input else arguments.split
    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.npz", ".npz")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            new_store(Path(arguments.input), vars(arguments), project.store, Path(temporary))
            project = replace(project, store=Store.open(Path(temporary)))
        loader = project.loader(split)
        samples: Any = loader.samples
        windows = collected(project, loader)
        index = windows.pop("index")
        if "time" in samples.store.arrays:
            times = samples.store.arrays["time"].rows()
            windows["time"] = times[samples.first_targets(index) - 1]
            facts = samples.store.facts
            windows["columns"] = np.array(facts["columns"])[facts["targets"]]
    write_output(output, windows)
    print(f"{len(index):,} forecasts of step {step} are in {output}")
