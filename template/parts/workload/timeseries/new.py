"""New data for `predict`: its flags, and how they become a prepared dataset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..prepare.splits import add_input

if TYPE_CHECKING:
    from ..engine.data.store import Store


def add_new(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict` for new data."""
    new = "new series, whose last window forecasts the rows after it"
    add_input(parser, new, required=False)


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write a new series as a dataset into `folder`, with the metadata of the training data."""
    from ..engine.data.store import StoreWriter
    from ..prepare.series import EMPTY, longest_step, read_series, write_series
    from ..prepare.tables import Source

    facts = trained.facts
    origin = trained.source
    frame = facts["frames"][0]
    source = Source(path, EMPTY, flags, origin)
    with StoreWriter(folder, trained.workload) as writer:
        time = origin.get("time_column")
        gaps = origin.get("fill", "last")  # synthetic data have no such flag
        series = read_series(writer, source, time, [], gaps, facts["columns"])
        if len(series) < frame["history"]:
            what = f"{len(series)} rows are shorter than a history of {frame['history']}"
            raise UserError(what, str(path), "give it that many rows")
        steps = sorted([series.step, frame["step"]])
        if len(series) > 1 and steps[1] > longest_step(steps[0]):
            what = f"rows are {series.step} s apart, but {frame['step']} s in the training data"
            raise UserError(what, str(path), "provide data with the same step")
        write_series(writer, series, {"input": [0, len(series)]}, facts)
