"""Make a prepared dataset of a series in time frames, for `prepare` and `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.data.store import StoreWriter
from ..engine.errors import UserError
from .frames import RULES, describe, find_reach, make_frames, write_frames
from .series import check_windows, find_targets, read_series
from .splits import Lines, borders

if TYPE_CHECKING:
    from ..engine.data.store import Store
    from .tables import Source

ARRAYS = (".values", ".times")  # temporary: the frames are written


def fill(
    writer: StoreWriter, source: Source, flags: dict[str, Any], facts: dict[str, Any] | None = None
) -> Lines:
    """Read a series and write its frames; return a summary line for each column.

    facts: the metadata of the training data, for a series to predict; None computes them from the
    training rows.
    """
    if facts:
        return fill_like(writer, source, flags, facts)
    horizon = flags["horizon"]
    if flags["max_gap"] and flags["time_column"] == "none":
        what = "rows without times have no gaps"
        raise UserError(what, f"--max-gap {flags['max_gap']}", "remove the flag")
    series = read_series(writer, source, flags, arrays=ARRAYS)
    rules = read_rules(flags["aggregate"], series.names, source)
    names = [name.strip() for name in flags["frames"].split(",")]
    frames = make_frames(series, names, read_histories(flags["history"], names), rules)
    targets = find_targets(flags["targets"], series.names, source)
    splits = borders(flags["split"], len(frames[0].bars))
    check_windows(splits, find_reach(frames), horizon, f"--split {flags['split']}")
    facts, lines = describe(frames, splits["train"][1], targets, horizon)
    writer.source |= {"aggregate": rules, "max_gap": flags["max_gap"]}
    write_frames(writer, frames, splits, facts, flags["max_gap"])
    return lines


def fill_like(
    writer: StoreWriter, source: Source, flags: dict[str, Any], facts: dict[str, Any]
) -> Lines:
    """Read a series and write the frames that `facts` describe. flags: of the training data."""
    series = read_series(writer, source, flags, facts["columns"], ARRAYS)
    names = [frame["name"] for frame in facts["frames"]]
    histories = [frame["history"] for frame in facts["frames"]]
    step = facts["frames"][0]["step"]
    frames = make_frames(series, names, histories, flags.get("aggregate", {}), step)
    base = frames[0].bars
    if base.step != step:
        what = f"rows are {base.step} s apart, but {step} s in the training data"
        raise UserError(what, str(source.path), "provide data with the same step")
    write_frames(writer, frames, {"input": [0, len(base)]}, facts, flags.get("max_gap"))
    return []


def read_rules(given: str, columns: list[str], source: Source) -> dict[str, str]:
    """Return the rules of `--aggregate` by column."""
    from .tables import place_of

    rules = {}
    for text in filter(None, given.split(",")):
        column, _, rule = text.strip().partition("=")
        place_of(column, columns, source.path)
        if rule not in RULES:
            raise UserError(f"no rule '{rule}'", "--aggregate", f"choose {', '.join(RULES)}")
        rules[column] = rule
    return rules


def read_histories(given: str, names: list[str]) -> list[int]:
    """Return the numbers of `--history`, one for each frame."""
    histories = [int(text) if text.strip().isdecimal() else 0 for text in given.split(",")]
    if len(histories) == 1:
        histories *= len(names)
    if len(histories) != len(names) or min(histories) < 1:
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"'{given}' is not a valid history", "--history", remedy)
    return histories


# --- new data for `predict`


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write a new series as a dataset into `folder`, with the metadata of the training data."""
    from .tables import Source

    source = Source(path, flags, trained.source)
    with StoreWriter(folder, trained.workload) as writer:
        fill(writer, source, trained.source, trained.facts)
