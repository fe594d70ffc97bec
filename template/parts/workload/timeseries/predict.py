"""Forecast with a trained run: for a split of the prepared dataset, or for new data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..engine.errors import note
from ..engine.files import replacing
from ..prepare.splits import add_input
from ..trained import add_flags, collected, open_run, output_path, prediction_loader

UNEVEN = 0.1  # of the rows: such as months and business days, but not a few missing rows


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".npz, .csv or .parquet (default: predictions.npz in the run's folder)"
    add_flags(parser, output=output)
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a table with a row for each window, step and target, or its columns to .npz."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".npz", ".csv", ".parquet")
    columns = predicted(arguments, project)
    with replacing(output) as file:
        if output.suffix == ".npz":
            np.savez(file, allow_pickle=False, **columns)
        elif output.suffix == ".csv":
            csv.write_csv(pa.table(columns), file)
        else:
            parquet.write_table(pa.table(columns), file)
    print(f"{len(columns['time']):,} rows with forecasts of step {step} are in {output}")


def predicted(arguments: argparse.Namespace, project: Any) -> dict[str, Any]:
    """Return the columns of the table. After the last row of the data, times have the usual step.

    `time` is that of the forecast, a date or the number of a row.
    """
    import numpy as np

    from ..dataset import write_new
    from ..prepare.clocks import as_dates, times_after

    with prediction_loader(arguments, project, write_new) as loader:
        windows = collected(project, loader)
        rows = loader.samples.first_targets(windows.pop("index"))
        times = np.array(project.store.arrays["time"].rows())
    facts = project.store.facts
    source = project.store.source  # of `--input`, if there is one
    usual = facts["frames"][0]["step"]
    is_new = rows.max() + facts["horizon"] > len(times)
    if is_new and (np.diff(times) != usual).sum() > UNEVEN * len(times):
        note(f"rows are not evenly spaced: times after the last row are {usual:,} s apart")
    seconds = usual * (1 + np.arange(facts["horizon"]))
    later = times_after(times[-1:], seconds, source)
    window, step, target = np.indices(windows["prediction"].shape).reshape(3, -1)
    ahead = np.append(times, later)[rows[window] + step]
    return {
        "time": as_dates(ahead, source),
        "step": step + 1,
        "target": np.array(facts["columns"])[facts["targets"]][target],
        **{name: values.ravel() for name, values in windows.items()},
    }
