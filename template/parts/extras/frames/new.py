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
    from ..prepare.frames import make_frames, write_frames
    from ..prepare.series import EMPTY, read_series
    from ..prepare.tables import Source

    facts = trained.facts
    origin = trained.source
    names = [frame["name"] for frame in facts["frames"]]
    histories = [frame["history"] for frame in facts["frames"]]
    source = Source(path, EMPTY, flags, origin)
    with StoreWriter(folder, trained.workload) as writer:
        time = origin.get("time_column")
        gaps = origin.get("fill", "last")  # data of older versions do not say
        step = facts["frames"][0]["step"]
        series = read_series(writer, source, time, [], gaps, facts["columns"])
        frames = make_frames(series, names, histories, origin.get("aggregate", {}), step)
        base = frames[0].bars
        if base.step != step:
            what = f"rows are {base.step} s apart, but {step} s in the training data"
            raise UserError(what, str(path), "provide data with the same step")
        write_frames(writer, frames, {"input": [0, len(base)]}, facts, origin.get("max_gap"))
