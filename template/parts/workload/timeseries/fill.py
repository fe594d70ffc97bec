"""Make a prepared dataset of a series, for `prepare` and `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .scaling import Scaler
from .series import JITTER, Series, blocks_of, check_windows, find_targets, read_series
from .splits import Lines, borders

if TYPE_CHECKING:
    from ..engine.data.store import Store
    from .tables import Source

Facts = dict[str, Any]


def fill(
    writer: StoreWriter, source: Source, flags: dict[str, Any], facts: Facts | None = None
) -> Lines:
    """Read and write a series; return a summary line for each column.

    facts: the metadata of the training data, for a series to predict; None computes them from the
    training rows.
    """
    if facts:
        series = read_series(writer, source, flags, facts["columns"])
        check_like(series, facts["frames"][0], str(source.path))
        writer.facts = facts
        writer.splits = {"input": [0, len(series)]}
        return []
    series = read_series(writer, source, flags)
    targets = find_targets(flags["targets"], series.names, source)
    writer.splits = borders(flags["split"], len(series))
    where = f"--split {flags['split']}"
    check_windows(writer.splits, flags["history"], flags["horizon"], where)
    border = writer.splits["train"][1]
    writer.facts, lines = describe(series, border, targets, flags["history"], flags["horizon"])
    return lines


def describe(
    series: Series, border: int, targets: list[int], history: int, horizon: int
) -> tuple[Facts, Lines]:
    """Return the metadata that a model is built from, and a summary line for each column.

    Scales come from the rows before `border` only. targets: the columns to forecast.
    """
    scaler = Scaler(len(series.names))
    for values in blocks_of(series.values[:border]):
        scaler.add(values)
    mean, std = scaler.scale()
    frame = {
        "name": "rows",
        "history": history,
        "step": series.step,
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    facts = {
        "columns": series.names,
        "targets": targets,
        "horizon": horizon,
        "frames": [frame],
        "target_mean": [mean[targets].tolist()],
        "target_std": [std[targets].tolist()],
    }
    return facts, scaler.columns(series.names)


def check_like(series: Series, frame: Facts, where: str) -> None:
    """Raise `UserError` for a series that is too short, or has another step than in training."""
    if len(series) < frame["history"]:
        what = f"{len(series)} rows are shorter than a history of {frame['history']}"
        raise UserError(what, where, "give it that many rows")
    difference = abs(series.step - frame["step"])
    if len(series) > 1 and difference > 2 * JITTER * frame["step"]:
        what = f"rows are {series.step} s apart, but {frame['step']} s in the training data"
        raise UserError(what, where, "provide data with the same step")


# --- new data for `predict`


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write a new series as a dataset into `folder`, with the metadata of the training data."""
    from .tables import Source

    source = Source(path, flags, trained.source)
    with StoreWriter(folder, trained.workload) as writer:
        fill(writer, source, trained.source, trained.facts)
