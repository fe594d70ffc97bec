"""Forecast with a trained run: what comes after the prepared data, or after new data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..prepare.splits import SPLITS, add_input
from ..trained import add_flags, collected, open_run, output_path, prediction_loader

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ..dataset import Samples


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".csv, .parquet or .npz (default: predictions.csv in the run's folder)"
    add_flags(parser, split=False, output=output)
    parser.add_argument(
        "--split",
        choices=[*SPLITS, "future"],
        default="future",
        help="which windows to forecast. future: one of each series, after its last target "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help="forecast after every row of --input, as soon as its history is complete",
    )
    new = "series to forecast after their last targets; the last rows may have the known columns"
    add_input(parser, new, required=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a table with a row for each window, step and target."""
    from ..dataset import write_new

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".csv", ".parquet", ".npz")
    split = "every" if arguments.every else "future"
    with prediction_loader(arguments, project, write_new, split) as loader:
        check_future(loader.samples)
        windows = collected(project, loader)
        columns = describe(windows.pop("index"), loader.samples)
    write(output, columns, windows)
    print(f"{len(columns['time']):,} forecasts of step {step} are in {output}")


def check_future(samples: Samples) -> None:
    """Raise `UserError` if a known column has no value in the rows to forecast.

    Print the series that are too short.
    """
    import numpy as np

    store = samples.store
    facts = store.facts
    if samples.split in SPLITS:
        return
    pieces = store.arrays["pieces"].rows()
    times = store.arrays["time"].rows()
    values = store.arrays["rows"].rows()
    has_future = pieces[:, 5] > pieces[:, 4]
    is_short = pieces[:, 4] - pieces[:, 0] < samples.history
    for *_, end, stop, series in pieces[has_future & ~is_short]:
        is_missing = np.isnan(values[end:stop, facts["known"]])
        if is_missing.any():
            row, column = np.argwhere(is_missing)[0]
            name = facts["columns"][facts["known"][column]]
            where = f"series '{all_series(samples)[series]}', {as_text(times[end + row], samples)}"
            what = f"no value of '{name}' in a row to forecast"
            raise UserError(what, where, "add rows with known columns and empty targets")
    short = all_series(samples)[pieces[has_future & is_short, 6]]
    if len(short):
        note = f"series with fewer than {samples.history} rows, without a forecast"
        print(f"note: {note}: {len(short):,} ({', '.join(short[:5])})")


def all_series(samples: Samples) -> np.ndarray:
    """Return the names of the series (S,)."""
    import numpy as np

    facts = samples.store.facts
    return np.array(facts.get("names", facts["series"]))


def as_text(time: Any, samples: Samples) -> str:
    """Return a time as a text, or the number of a row."""
    has_times = samples.store.facts["roles"]["time"] != "none"
    return str(time.astype("M8[s]")) if has_times else f"row {time + 1}"


def describe(index: np.ndarray, samples: Samples) -> dict[str, Any]:
    """Return series, last known row, times of the steps and names of the targets of windows."""
    import numpy as np

    facts = samples.store.facts
    times = samples.store.arrays["time"].rows()
    firsts = samples.first_targets(index)
    steps = times[firsts[:, None] + np.arange(samples.horizon)]
    if facts["roles"]["time"] != "none":
        steps = steps.astype("M8[s]")
    return {
        "series": all_series(samples)[samples.series_of(index)],
        "time": times[firsts - 1],
        "ahead": steps,
        "columns": np.array(facts["columns"])[facts["targets"]],
    }


def write(path: Path, columns: dict[str, Any], windows: dict[str, np.ndarray]) -> None:
    """Write forecasts (N, H, G): as they are to .npz, otherwise with a row for each number."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    with replacing(path) as file:
        if path.suffix == ".npz":
            np.savez(file, allow_pickle=False, **columns, **windows)
            return
        count, horizon, num_targets = windows["prediction"].shape
        table = pa.table(
            {
                "time": np.repeat(columns["ahead"].ravel(), num_targets),
                "series": np.repeat(columns["series"], horizon * num_targets),
                "step": np.tile(np.repeat(np.arange(1, horizon + 1), num_targets), count),
                "target": np.tile(columns["columns"], count * horizon),
                **{name: values.ravel() for name, values in windows.items()},
            }
        )
        if path.suffix == ".csv":
            csv.write_csv(table, file)
        else:
            parquet.write_table(table, file)
