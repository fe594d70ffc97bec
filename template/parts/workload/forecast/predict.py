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
    import numpy as np

    from ..dataset import Samples
    from ..engine.loading.store import Store


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
    """Write a table with a row for each window, step and target, or its columns to .npz."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".csv", ".parquet", ".npz")
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
    """Return the columns of the table."""
    import numpy as np

    from ..dataset import write_new

    split = "every" if arguments.every else "future"
    with prediction_loader(arguments, project, write_new, split) as loader:
        samples = loader.samples
        check_future(samples)
        windows = collected(project, loader)
        index = windows.pop("index")
        store = samples.store
        shape = windows["prediction"].shape
        window, ahead, target = np.indices(shape).reshape(3, -1)
        rows = samples.first_targets(index)[window] + ahead
        facts = store.facts
        return {
            "time": dates(store, rows),
            "series": all_series(store)[samples.series_of(index)[window]],
            "step": ahead + 1,
            "target": np.array(facts["columns"])[facts["targets"]][target],
            **{name: values.ravel() for name, values in windows.items()},
        }


def check_future(samples: Samples) -> None:
    """Raise `UserError` if a known column has no value in the rows to forecast.

    Print the series that are too short, and those without rows to forecast.
    """
    import numpy as np

    if samples.split in SPLITS:
        return
    store = samples.store
    facts = store.facts
    values = store.arrays["rows"].rows()
    pieces = store.arrays["pieces"].rows()
    firsts, *_, ends, stops, series = pieces.T
    has_future = stops > ends
    is_short = ends - firsts < samples.history
    for *_, end, stop, number in pieces[has_future & ~is_short]:
        is_missing = np.isnan(values[end:stop, facts["known"]])
        if is_missing.any():
            row, column = np.argwhere(is_missing)[0]
            name = facts["columns"][facts["known"][column]]
            time = dates(store, np.array([end + row]))[0]
            where = f"series '{all_series(store)[number]}', {time}"
            what = f"no value of '{name}' in a row to forecast"
            raise UserError(what, where, "add rows with known columns and empty targets")
    short = series[has_future & is_short]
    tell_skipped(f"series with fewer than {samples.history} rows", short, samples)
    if samples.split == "future":
        ended = np.setdiff1d(series, series[has_future])
        tell_skipped("series that end without rows to forecast", ended, samples)


def tell_skipped(what: str, series: np.ndarray, samples: Samples) -> None:
    """Print how many series have no forecast, and the first ones."""
    if len(series):
        listed = ", ".join(all_series(samples.store)[series[:5]])
        print(f"note: {what}, without a forecast: {len(series):,} ({listed})")


def all_series(store: Store) -> np.ndarray:
    """Return the names of the series (S,)."""
    import numpy as np

    return np.array(store.facts.get("names", store.facts["series"]))


def dates(store: Store, rows: np.ndarray) -> Any:
    """Return the dates, or the numbers, of rows."""
    from ..prepare.clocks import as_dates

    times = store.arrays["time"].rows()
    return as_dates(times[rows], store.source)
