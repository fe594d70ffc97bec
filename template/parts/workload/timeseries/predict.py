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
    output = ".npz, .csv or .parquet (default: predictions.npz in the run's folder)"
    add_flags(parser, output=output)
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write the forecasts of all windows: arrays to .npz, otherwise a table."""
    import numpy as np
    from pyarrow import csv, parquet

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".npz", ".csv", ".parquet")
    windows = predicted(arguments, project)
    source = project.store.source  # of `--input`, if there is one
    with replacing(output) as file:
        if output.suffix == ".npz":
            np.savez(file, allow_pickle=False, **windows)
        elif output.suffix == ".csv":
            csv.write_csv(as_table(windows, source), file)
        else:
            parquet.write_table(as_table(windows, source), file)
    print(f"{len(windows['time']):,} forecasts of step {step} are in {output}")


def predicted(arguments: argparse.Namespace, project: Any) -> dict[str, Any]:
    """Return `prediction` (N, H, G), the names of its `columns`, and times.

    `time` (N,) is that of the last known row, and `ahead` (N, H) are those of the forecasts, in
    seconds since 1970 or as row numbers. After the last row they follow the usual step.
    """
    import numpy as np

    from ..dataset import write_new

    with prediction_loader(arguments, project, write_new) as loader:
        windows = collected(project, loader)
        rows = loader.samples.first_targets(windows.pop("index"))
        times = np.array(project.store.arrays["time"].rows())
    facts = project.store.facts
    steps = np.arange(facts["horizon"])
    seconds = facts["frames"][0]["step"] * (1 + steps)
    # @if "timezones" in extras
    from ..prepare.zones import times_after

    later = times_after(times[-1:], seconds, project.store.source.get("timezone"))
    # @else
    later = times[-1] + seconds
    # @endif
    windows["time"] = times[rows - 1]
    windows["ahead"] = np.append(times, later)[rows[:, None] + steps]
    windows["columns"] = np.array(facts["columns"])[facts["targets"]]
    return windows


def as_table(windows: dict[str, Any], source: dict[str, Any]) -> Any:
    """Return a table with a row for each window, step and target."""
    import numpy as np
    import pyarrow as pa

    from ..prepare.clocks import as_dates

    forecasts = windows["prediction"]
    window, step, target = np.indices(forecasts.shape).reshape(3, -1)
    return pa.table(
        {
            "time": as_dates(windows["ahead"][window, step], source),
            "step": step + 1,
            "target": windows["columns"][target],
            "prediction": forecasts.ravel(),
        }
    )
