"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.files import replacing
from ..engine.runs import find_run
from ..prepare.splits import add_input
from ..trained import add_flags, collected, open_run, output_path


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    time = "`time` in it is in seconds since 1970, or a row number"
    add_flags(parser, output=f".npz; {time} (default: predictions.npz in the run's folder)")
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each window, `time`, the last known row, and the target `columns`."""
    import numpy as np

    from ..dataset import write_new
    from ..engine.data.store import Store
    from ..prepare.tables import Source

    split = "input" if arguments.input else arguments.split
    folder = find_run(arguments.run)
    output = output_path(
        arguments.output, folder / "predictions.npz", ".npz", source=arguments.input
    )
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            trained = project.store
            source = Source(Path(arguments.input), vars(arguments), trained.source)
            write_new(Path(temporary), source, trained)
            project = replace(project, store=Store.open(Path(temporary)))
        loader = project.loader(split)
        samples: Any = loader.samples
        windows = collected(project, loader)
        index = windows.pop("index")
        times = project.store.arrays["time"].rows()
        windows["time"] = times[samples.first_targets(index) - 1]
        facts = project.store.facts
        windows["columns"] = np.array(facts["columns"])[facts["targets"]]
    with replacing(output) as file:
        np.savez(file, allow_pickle=False, **windows)
    print(f"{len(index):,} forecasts of step {step} are in {output}")
