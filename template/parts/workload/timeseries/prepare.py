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

UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add, dtypes = parser.add_argument, ["float32", "float16", "bfloat16"]
    add_input(parser, "a series")
    looks = "rows a forecast looks at, one number for each frame (default: 96)"
    add("--history", default="96", metavar="ROWS", help=looks)
    add("--horizon", type=int, default=24, metavar="ROWS", help="rows to forecast (default: 24)")
    shares = "by time: shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=shares)
    add("--time-column", metavar="COLUMN", help="time of a row (default: the first); `none`: rows count")
    add("--targets", metavar="COLUMNS", help="columns to forecast, with commas between (default: all)")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable")
    add("--fill", choices=["last"], help="the last known value for empty cells; without it they are an error")
    add("--frames", metavar="NAMES", help="time frames by resampling, finest first: M1,M5,M15,H1,H4")
    rules = "how bars are made: first, max, min, last, sum (default: open, high, low, close and volume as"
    add("--aggregate", default="", metavar="COLUMN=RULE", help=rules + " their names say, others last)")
    halves = "halves store standardised values, in half the space (default: float32)"
    add("--dtype", choices=dtypes, default="float32", help=halves)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads, checks and writes; prints what was found."""
    from ..dataset import Samples, describe, write_series
    from ..engine.store import Store, StoreWriter
    from ..series import EMPTY, read_series
    from ..settings import WORKLOAD
    from ..tables import Source, place_of

    path, split = Path(arguments.input), arguments.split
    if arguments.horizon < 1:
        raise UserError(f"a horizon of {arguments.horizon} rows", "--horizon", "give at least 1")
    source = Source(path, EMPTY, vars(arguments))
    how = dict(part.strip().partition("=")[::2] for part in arguments.aggregate.split(",") if part.strip())
    with destination(load().data.path, arguments.dry_run) as folder:
        with StoreWriter(folder, WORKLOAD) as writer:
            series = read_series(writer, source, arguments.time_column, arguments.drop, arguments.fill)
            frames = make_frames(writer, series, how, arguments)
            (base, history), *_ = frames.values()
            if len(base) < history + arguments.horizon:
                what = f"{len(base)} rows are shorter than one window of {history} + {arguments.horizon}"
                raise UserError(what, str(path), "give a smaller --history or --horizon")
            wanted = arguments.targets.split(",") if arguments.targets else base.names
            targets = [place_of(name.strip(), base.names, path) for name in wanted]
            splits, horizon = borders(split, len(base)), arguments.horizon
            facts, columns = describe(
                frames, splits, targets=targets, horizon=horizon, where=f"--split {split}"
            )
            rounding = write_series(writer, frames, splits, facts, arguments.dtype)
            writer.source = {"file": path.name, "rows": len(series), "split": split, "aggregate": how}
            writer.source |= {"time_column": arguments.time_column, **source.written}
        store = Store.open(folder)
        print(f"columns:    {', '.join(base.names)}")
        for name, (bars, rows) in frames.items():
            print(f"{name + ':':12}{len(bars):,} rows, {rows} in a window")
        counts = (f"{len(Samples(store, None, name)):,} {name}" for name in store.splits)
        print(f"windows:    {', '.join(counts)}")
        if rounding:
            print(f"rounding:   {rounding:.1e} standard deviations, by storing {arguments.dtype}")
        conclude(writer, arguments.dry_run, columns)


def make_frames(
    writer: StoreWriter, series: Series, how: dict[str, str], arguments: argparse.Namespace
) -> Frames:
    """Each time frame and its history in bars, the finest first. how: rule by column."""
    from ..series import RULES, resample
    from ..tables import place_of

    names = [name.strip() for name in arguments.frames.split(",")] if arguments.frames else ["rows"]
    histories = [int(part) if part.strip().isdecimal() else 0 for part in arguments.history.split(",")]
    histories *= len(names) if len(histories) == 1 else 1
    if len(histories) != len(names) or min(histories) < 1:
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"'{arguments.history}' is no history", "--history", remedy)
    for column, rule in how.items():
        place_of(column, series.names, Path(arguments.input))
        if rule not in RULES:
            raise UserError(f"no rule '{rule}'", f"--aggregate {column}={rule}", f"take {', '.join(RULES)}")
    frames, before = {}, 0
    for name, history in zip(names, histories, strict=True):
        step = seconds(name) if arguments.frames else series.step
        if step < max(series.step, before + 1) or step % series.step:
            remedy = f"rows are {series.step} s apart; name the finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = resample(writer, name, series, step, how)
        if before and len(bars) < history:
            what = f"{len(bars)} bars of {name} are shorter than a history of {history}"
            raise UserError(what, arguments.input, "give a smaller --history")
        frames[name], before = (bars, history), step
    return frames


def seconds(frame: str) -> int:
    """`M15` is 900: a letter of S, M, H, D, W and a number."""
    found = re.fullmatch(r"([SMHDW])(\d+)", frame.upper())
    if not found or not int(found[2]):
        raise UserError(f"no time frame '{frame}'", "--frames", "such as M1, M15, H4, D1")
    return UNITS[found[1]] * int(found[2])


def add_new(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict` for new data."""
    new = "a new series, whose last window forecasts what comes after it"
    add_input(parser, new, required=False)


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Writes new data as a store into `folder`, with the scaler, columns and frames of the training data."""
    from ..dataset import write_series
    from ..engine.store import StoreWriter
    from ..series import EMPTY, read_series, resample
    from ..tables import Source

    facts, origin = trained.facts, trained.source
    source, frames = Source(path, EMPTY, flags, origin), {}
    with StoreWriter(folder, trained.workload) as writer:
        series = read_series(writer, source, origin.get("time_column"), [], "last", facts["columns"])
        for frame in facts["frames"]:
            name, step = frame["name"], series.step if frame["name"] == "rows" else frame["step"]
            bars = resample(writer, name, series, step, origin.get("aggregate", {}))
            frames[name] = bars, frame["history"]
        first = facts["frames"][0]
        base = frames[first["name"]][0]
        if len(base) < first["history"]:  # before its step, which a single row does not tell
            what = f"{len(series)} rows are shorter than a window of {first['history']}"
            raise UserError(what, str(path), "give more history")
        if base.step != first["step"]:
            what = f"rows are {base.step} s apart, the model was trained on {first['step']} s"
            raise UserError(what, str(path), "give data of the same step")
        dtype = trained.arrays[first["name"]].dtype
        write_series(writer, frames, {"input": [0, len(base)]}, facts, dtype)
