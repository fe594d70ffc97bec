"""Turn the table of a series into the data folder that training reads."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_input, borders, conclude, destination

if TYPE_CHECKING:
    from ..dataset import Frames
    from ..engine.store import Store, StoreWriter
    from ..series import Series
    from ..tables import Source

UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add_input(parser, "a series")
    text = "rows a forecast looks at, one number for each frame (default: 96)"
    add("--history", default="96", metavar="ROWS", help=text)
    text = "rows to forecast (default: 24)"
    add("--horizon", type=int, default=24, metavar="ROWS", help=text)
    text = (
        "by time: shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    )
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)

    text = "time of a row (default: the first); `none`: rows count"
    add("--time-column", metavar="COLUMN", help=text)
    text = "columns to forecast, with commas between (default: all)"
    add("--targets", metavar="COLUMNS", help=text)
    text = "leave a column out; repeatable"
    add("--drop", action="append", default=[], metavar="COLUMN", help=text)
    text = "the last known value for empty cells; without it they are an error"
    add("--fill", choices=["last"], help=text)

    text = "time frames by resampling, finest first: M1,M5,M15,H1,H4"
    add("--frames", metavar="NAMES", help=text)
    text = (
        "how bars are made: first, max, min, last, sum (default: open, high, low, close and volume"
        " as their names say, others last)"
    )
    add("--aggregate", default="", metavar="COLUMN=RULE", help=text)
    text = "halves store standardised values, in half the space (default: float32)"
    add("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help=text)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Read, check and write; print what was found."""
    from ..engine.store import Store, StoreWriter
    from ..series import EMPTY
    from ..settings import WORKLOAD
    from ..tables import Source

    if arguments.horizon < 1:
        what = f"a horizon of {arguments.horizon} rows"
        raise UserError(what, "--horizon", "give at least 1")
    source = Source(Path(arguments.input), EMPTY, vars(arguments))
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            frames, columns, rounding = fill(writer, source, arguments)
        report(Store.open(folder), frames)
        if rounding:
            cost = f"{rounding:.1e} standard deviations"
            print(f"rounding:   {cost}, by storing {arguments.dtype}")
        conclude(writer, arguments.dry_run, columns)


def fill(
    writer: StoreWriter, source: Source, arguments: argparse.Namespace
) -> tuple[Frames, list[tuple[str, ...]], float]:
    """Read the series, learn from its training rows, write all frames.

    Returns the frames, a line for each column and the rounding error.
    """
    from ..dataset import describe, write_series
    from ..series import read_series

    how = aggregation(arguments.aggregate)
    series = read_series(writer, source, arguments.time_column, arguments.drop, arguments.fill)
    frames = make_frames(writer, series, how, arguments)
    base, history = next(iter(frames.values()))
    if len(base) < history + arguments.horizon:
        window = f"one window of {history} + {arguments.horizon}"
        what = f"{len(base)} rows are shorter than {window}"
        raise UserError(what, str(source.path), "give a smaller --history or --horizon")

    targets = target_columns(arguments.targets, base.names, source.path)
    splits = borders(arguments.split, len(base))
    facts, columns = describe(
        frames,
        splits,
        targets=targets,
        horizon=arguments.horizon,
        where=f"--split {arguments.split}",
    )
    rounding = write_series(writer, frames, splits, facts, arguments.dtype)
    writer.source = {
        "file": source.path.name,
        "rows": len(series),
        "split": arguments.split,
        "aggregate": how,
        "time_column": arguments.time_column,
        **source.written,
    }
    return frames, columns, rounding


def aggregation(given: str) -> dict[str, str]:
    """Rule by column, of `--aggregate`."""
    how = {}
    for text in given.split(","):
        if text.strip():
            column, _, rule = text.strip().partition("=")
            how[column] = rule
    return how


def target_columns(given: str | None, names: list[str], path: Path) -> list[int]:
    """Places of the columns to forecast."""
    from ..tables import place_of

    if not given:
        return list(range(len(names)))
    return [place_of(name.strip(), names, path) for name in given.split(",")]


def report(store: Store, frames: Frames) -> None:
    """Print the columns, the frames and how many windows there are."""
    from ..dataset import Samples

    base, _ = next(iter(frames.values()))
    print(f"columns:    {', '.join(base.names)}")
    for name, (bars, rows) in frames.items():
        print(f"{name + ':':12}{len(bars):,} rows, {rows} in a window")
    counts = [f"{len(Samples(store, None, name)):,} {name}" for name in store.splits]
    print(f"windows:    {', '.join(counts)}")


def make_frames(
    writer: StoreWriter, series: Series, how: dict[str, str], arguments: argparse.Namespace
) -> Frames:
    """Each time frame and its history in bars, the finest first. how: rule by column."""
    from ..series import RULES, resample
    from ..tables import place_of

    names = ["rows"]
    if arguments.frames:
        names = [name.strip() for name in arguments.frames.split(",")]
    histories = history_of_each(arguments.history, names)
    for column, rule in how.items():
        place_of(column, series.names, Path(arguments.input))
        if rule not in RULES:
            where = f"--aggregate {column}={rule}"
            raise UserError(f"no rule '{rule}'", where, f"take {', '.join(RULES)}")

    frames: Frames = {}
    finer_step = 0  # of the frame before
    for name, history in zip(names, histories, strict=True):
        step = seconds(name) if arguments.frames else series.step
        if step < series.step or step <= finer_step or step % series.step:
            remedy = f"rows are {series.step} s apart; name the finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = resample(writer, name, series, step, how)
        if frames and len(bars) < history:
            what = f"{len(bars)} bars of {name} are shorter than a history of {history}"
            raise UserError(what, arguments.input, "give a smaller --history")
        frames[name] = (bars, history)
        finer_step = step
    return frames


def history_of_each(given: str, names: list[str]) -> list[int]:
    """The numbers of `--history`, one for each frame."""
    histories = []
    for text in given.split(","):
        histories.append(int(text) if text.strip().isdecimal() else 0)
    if len(histories) == 1:
        histories *= len(names)
    if len(histories) != len(names) or min(histories) < 1:
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"'{given}' is no history", "--history", remedy)
    return histories


def seconds(frame: str) -> int:
    """`M15` is 900: a letter of S, M, H, D, W and a number."""
    match = re.fullmatch(r"([SMHDW])(\d+)", frame.upper())
    if not match or not int(match[2]):
        raise UserError(f"no time frame '{frame}'", "--frames", "such as M1, M15, H4, D1")
    return UNITS[match[1]] * int(match[2])


def add_new(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict` for new data."""
    new = "a new series, whose last window forecasts what comes after it"
    add_input(parser, new, required=False)


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write new data as a store into `folder`.

    It has the scaler, columns and frames of the training data.
    """
    from ..dataset import write_series
    from ..engine.store import StoreWriter
    from ..series import EMPTY, read_series, resample
    from ..tables import Source

    facts = trained.facts
    origin = trained.source
    how = origin.get("aggregate", {})
    time = origin.get("time_column")
    source = Source(path, EMPTY, flags, origin)
    frames: Frames = {}
    with StoreWriter(folder, trained.workload) as writer:
        series = read_series(writer, source, time, [], "last", facts["columns"])
        for frame in facts["frames"]:
            name = frame["name"]
            step = series.step if name == "rows" else frame["step"]
            bars = resample(writer, name, series, step, how)
            frames[name] = (bars, frame["history"])

        first = facts["frames"][0]
        base, history = frames[first["name"]]
        if len(base) < history:  # before its step, which a single row does not tell
            what = f"{len(series)} rows are shorter than a window of {history}"
            raise UserError(what, str(path), "give more history")
        if base.step != first["step"]:
            what = f"rows are {base.step} s apart, the model was trained on {first['step']} s"
            raise UserError(what, str(path), "give data of the same step")
        dtype = trained.arrays[first["name"]].dtype
        write_series(writer, frames, {"input": [0, len(base)]}, facts, dtype)
