"""Turn a CSV file of a series into the data folder that training reads."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..dataset import Frames
    from ..engine.store import Store
    from ..series import Series

UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add, dtypes = parser.add_argument, ["float32", "float16", "bfloat16"]
    add("--input", required=True, metavar="FILE", help="CSV with a header line, also gzipped")
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
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")
    halves = "halves store standardised values, in half the space (default: float32)"
    add("--dtype", choices=dtypes, default="float32", help=halves)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads, checks and writes; prints what was found."""
    from ..dataset import Samples, describe, write_series
    from ..engine.store import Store
    from ..series import Source, place_of

    folder, path = Path(load().data.path), Path(arguments.input)
    if arguments.horizon < 1:
        raise UserError(f"a horizon of {arguments.horizon} rows", "--horizon", "give at least 1")
    source = Source(path, "\t" if arguments.delimiter == "tab" else arguments.delimiter)
    series = source.series(arguments.time_column, arguments.drop, arguments.fill)
    how = dict(part.strip().partition("=")[::2] for part in arguments.aggregate.split(",") if part.strip())
    frames = make_frames(series, how, arguments)
    (base, history), *_ = frames.values()
    if len(base) < history + arguments.horizon:
        what = f"{len(base)} rows are shorter than one window of {history} + {arguments.horizon}"
        raise UserError(what, str(path), "give a smaller --history or --horizon")
    wanted = arguments.targets.split(",") if arguments.targets else base.names
    targets = [place_of(name.strip(), base.names, path) for name in wanted]
    splits, where = borders(arguments.split, len(base)), f"--split {arguments.split}"
    facts = describe(frames, splits, targets=targets, horizon=arguments.horizon, where=where)
    origin = {"file": path.name, "rows": len(series), "split": arguments.split, "aggregate": how}
    origin |= {"delimiter": source.delimiter, "time_column": arguments.time_column}
    rounding = write_series(folder, frames, splits, facts, arguments.dtype, origin)
    store = Store.open(folder)
    print(f"columns:    {', '.join(base.names)}")
    for name, (bars, rows) in frames.items():
        print(f"{name + ':':12}{len(bars):,} rows, {rows} in a window")
    spread = dict(zip(base.names, facts["frames"][0]["std"], strict=True))
    if constant := [name for name, std in spread.items() if std == 1]:
        print(f"constant:   {', '.join(constant)}")
    counts = (f"{len(Samples(store, None, name)):,} {name}" for name in store.splits)
    print(f"windows:    {', '.join(counts)}")
    if rounding:
        print(f"rounding:   {rounding:.1e} standard deviations, by storing {arguments.dtype}")
    print(f"written to: {folder}")
    advise(store)


def advise(store: Store) -> None:
    """Names the loader for data that memory cannot hold, where the project has another one."""
    from ..engine.loader import Loader

    size = sum(array.shape[0] * array.row_bytes for array in store.arrays.values()) / 1e9
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if size > memory and "chunk_size_gb" in Loader.WITHOUT_EFFECT:
        remedy = "for the loader `chunk`, copier update --defaults -r :current: -d loader=chunk"
        print(f"note: {size:,.0f} GB of data, {memory:,.0f} GB of memory: {remedy}")


def make_frames(series: Series, how: dict[str, str], arguments: argparse.Namespace) -> Frames:
    """Each time frame and its history in bars, the finest first. how: rule by column."""
    from ..series import RULES, place_of, resample

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
        bars = resample(series, step, how)
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


def borders(split: str, count: int) -> dict[str, list[int]]:
    """First and last + 1 row of each split: `0.7,0.15,0.15` of them, or as many as `--split` says."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        shares = abs(sum(parts) - 1) < 1e-6
        if len(parts) != 3 or any(part < 0 or not (shares or part.is_integer()) for part in parts):
            raise ValueError
    except ValueError:
        remedy = "give three shares that add up to 1, such as 0.7,0.15,0.15, or three numbers of rows"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    marks = [round(sum(parts[:place]) * (count if shares else 1)) for place in range(4)]
    if shares:
        marks[-1] = count
    if marks[-1] > count:
        raise UserError(f"the split needs {marks[-1]} rows", f"--split {split}", f"the file has {count}")
    return dict(zip(("train", "validation", "test"), map(list, pairwise(marks)), strict=True))


def new_store(path: Path, trained: Store, folder: Path) -> None:
    """Writes new data as a store into `folder`, with the scaler, columns and frames of the training data."""
    from ..dataset import write_series
    from ..series import Source, resample

    facts, origin = trained.facts, trained.source
    source = Source(path, origin.get("delimiter", ","))
    series = source.series(origin.get("time_column"), [], "last", facts["columns"])
    frames = {}
    for frame in facts["frames"]:
        step = series.step if frame["name"] == "rows" else frame["step"]
        frames[frame["name"]] = resample(series, step, origin.get("aggregate", {})), frame["history"]
    first = facts["frames"][0]
    base = frames[first["name"]][0]
    if len(base) < first["history"]:  # before its step, which a single row does not tell
        what = f"{len(series)} rows are shorter than a window of {first['history']}"
        raise UserError(what, str(path), "give more history")
    if base.step != first["step"]:
        what = f"rows are {base.step} s apart, the model was trained on {first['step']} s"
        raise UserError(what, str(path), "give data of the same step")
    dtype = trained.arrays[first["name"]].dtype
    write_series(folder, frames, {"input": [0, len(base)]}, facts, dtype, {})
