"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..engine.files import replacing
from ..prepare.splits import add_input
from ..trained import add_flags, collected, open_run, output_path, prediction_loader


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    time = "`time` in it is in seconds since 1970, or a row number"
    add_flags(parser, output=f".npz; {time} (default: predictions.npz in the run's folder)")
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)
    zone = "time zone of times without an offset (default: as in `prepare`)"
    parser.add_argument("--timezone", metavar="ZONE", help=zone)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each window, `time`, the last known row, and the target `columns`."""
    import numpy as np

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".npz")
    windows = predicted(arguments, project)
    with replacing(output) as file:
        np.savez(file, allow_pickle=False, **windows)
    print(f"{len(windows['time']):,} forecasts of step {step} are in {output}")


def predicted(arguments: argparse.Namespace, project: Any) -> dict[str, Any]:
    """Return the arrays of the file."""
    import numpy as np

    from ..dataset import write_new

    with prediction_loader(arguments, project, write_new) as loader:
        windows = collected(project, loader)
        times = project.store.arrays["time"].rows()
        windows["time"] = times[loader.samples.first_targets(windows.pop("index")) - 1]
        facts = project.store.facts
        windows["columns"] = np.array(facts["columns"])[facts["targets"]]
    return windows
