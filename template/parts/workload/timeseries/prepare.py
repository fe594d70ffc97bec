"""Turn a CSV file of a series, or an HDF5 file of windows, into the data folder that training reads."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..engine.store import Array
    from ..series import Series

UNITS = {"S": 1, "M": 60, "H": 3600, "D": 86400, "W": 604800}
SPLITS = ("train", "validation", "test")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    add(
        "--input", required=True, metavar="FILE", help="CSV with a header line (also .gz), or HDF5 of windows"
    )
    add(
        "--history",
        default="96",
        metavar="ROWS",
        help="rows a forecast looks at, one number for each frame (default: 96)",
    )
    add("--horizon", type=int, default=24, metavar="ROWS", help="rows to forecast (default: 24)")
    add(
        "--split",
        default="0.7,0.15,0.15",
        metavar="TRAIN,VALIDATION,TEST",
        help="by time: shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)",
    )
    add(
        "--time-column",
        metavar="COLUMN",
        help="time of the row (default: the first column); `none`: rows count",
    )
    add("--targets", metavar="COLUMNS", help="columns to forecast, with commas between (default: all)")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable")
    add(
        "--fill",
        choices=["last"],
        help="fill empty cells with the last known value; without it they are an error",
    )
    add("--frames", metavar="NAMES", help="time frames by resampling, finest first: M1,M5,M15,H1,H4")
    add(
        "--aggregate",
        default="",
        metavar="COLUMN=RULE",
        help="how bars are made: first, max, min, last, sum (default: open, high, low, close and volume "
        "as their names say, others last)",
    )
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")
    add("--datasets", default="features,targets", metavar="NAMES", help="of HDF5: (N, T, F) and (N, H)")
    add(
        "--purge",
        type=int,
        metavar="ROWS",
        help="of HDF5: rows left out at borders (default: as windows overlap)",
    )
    add(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="halves store standardised values, in half the space",
    )


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Reads, checks and writes; prints what was found."""
    folder, path = Path(load().data.path), Path(arguments.input)
    if arguments.horizon < 1:
        raise UserError(f"a horizon of {arguments.horizon} rows", "--horizon", "give at least 1")
    if is_hdf5(path):
        prepare_windows(folder, path, arguments)
    else:
        prepare_series(folder, path, arguments)


def is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in (".h5", ".hdf5", ".hdf")


def prepare_series(folder: Path, path: Path, arguments: argparse.Namespace) -> None:
    """Windows over the rows of a CSV file, in one or several time frames."""
    from ..dataset import write_series
    from ..series import Source

    source = Source(path, "\t" if arguments.delimiter == "tab" else arguments.delimiter)
    series = source.series(arguments.time_column, arguments.drop, arguments.fill)
    frames = make_frames(series, arguments)
    (base, history), *_ = frames.values()
    if len(base) < history + arguments.horizon:
        what = f"{len(base)} rows are shorter than one window of {history} + {arguments.horizon}"
        raise UserError(what, str(path), "give a smaller --history or --horizon")
    targets = choose(arguments.targets, base.names, path)
    splits = borders(arguments.split, len(base))
    origin = {"file": path.name, "rows": len(series), "split": arguments.split}
    origin |= {
        "delimiter": source.delimiter,
        "time_column": arguments.time_column,
        "aggregate": aggregation(arguments),
    }
    dtype = arguments.dtype or "float32"
    rounding = write_series(folder, frames, splits, targets, arguments.horizon, dtype, origin)
    lines = {"columns": ", ".join(base.names)}
    lines |= {name: f"{len(bars):,} rows, {history} in a window" for name, (bars, history) in frames.items()}
    report(folder, lines, rounding, arguments)


def report(folder: Path, lines: dict[str, str], rounding: float, arguments: argparse.Namespace) -> None:
    """Says what training will see."""
    from ..dataset import Samples
    from ..engine.store import Store

    store = Store.open(folder)
    counts = {name: len(Samples(store, None, name)) for name in store.splits}
    constant = [
        name
        for name, std in zip(store.facts["columns"], store.facts["frames"][0]["std"], strict=True)
        if std == 1
    ]
    if constant:
        lines["constant"] = ", ".join(constant)
    lines["windows"] = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if rounding:
        lines["rounding"] = f"{rounding:.1e} standard deviations, by storing {arguments.dtype}"
    for name, line in (lines | {"written to": str(folder)}).items():
        print(f"{name + ':':12}{line}")


def make_frames(series: Series, arguments: argparse.Namespace) -> dict[str, tuple[Series, int]]:
    """Each time frame and its history in bars, the finest first."""
    from ..series import RULES, check_column, resample

    names = [name.strip() for name in arguments.frames.split(",")] if arguments.frames else ["rows"]
    histories = [int(part) if part.strip().isdecimal() else 0 for part in arguments.history.split(",")]
    histories *= len(names) if len(histories) == 1 else 1
    if len(histories) != len(names) or min(histories) < 1:
        remedy = f"give one number, or {len(names)} for {', '.join(names)}"
        raise UserError(f"'{arguments.history}' is no history", "--history", remedy)
    how = aggregation(arguments)
    for column, rule in how.items():
        check_column(column, series.names, Path(arguments.input))
        if rule not in RULES:
            raise UserError(f"no rule '{rule}'", f"--aggregate {column}={rule}", f"take {', '.join(RULES)}")
    if not arguments.frames:
        return {"rows": (series, histories[0])}
    frames, before = {}, 0
    for name, history in zip(names, histories, strict=True):
        step = seconds(name)
        if step < max(series.step, before + 1) or step % series.step:
            remedy = f"rows are {series.step} s apart; name the finest first"
            raise UserError(f"a frame of {step} s does not fit here", f"--frames {name}", remedy)
        bars = series if step == series.step else resample(series, step, how)
        if len(bars) < history:
            what = f"{len(bars)} bars of {name} are shorter than a history of {history}"
            raise UserError(what, arguments.input, "give a smaller --history")
        frames[name], before = (bars, history), step
    return frames


def aggregation(arguments: argparse.Namespace) -> dict[str, str]:
    """Rule by column, as `--aggregate` has it."""
    return dict(part.strip().partition("=")[::2] for part in arguments.aggregate.split(",") if part.strip())


def seconds(frame: str) -> int:
    """`M15` is 900: a letter of S, M, H, D, W and a number."""
    found = re.fullmatch(r"([SMHDW])(\d+)", frame.upper())
    if not found or not int(found[2]):
        raise UserError(f"no time frame '{frame}'", "--frames", "such as M1, M15, H4, D1")
    return UNITS[found[1]] * int(found[2])


def choose(given: str | None, names: list[str], path: Path) -> list[int]:
    """Places of the columns that `--targets` names; all without it."""
    from ..series import check_column

    wanted = [name.strip() for name in given.split(",")] if given else names
    for name in wanted:
        check_column(name, names, path)
    return [names.index(name) for name in wanted]


def borders(split: str, count: int) -> dict[str, list[int]]:
    """First and last + 1 row of each split: `0.7,0.15,0.15` of them, or as many as `--split` says."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        shares = abs(sum(parts) - 1) < 1e-6
        if len(parts) != 3 or not all(0 <= part < math.inf for part in parts):
            raise ValueError
        if not shares and any(part != int(part) for part in parts):
            raise ValueError
    except ValueError:
        remedy = "give three shares that add up to 1, such as 0.7,0.15,0.15, or three numbers of rows"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    first, second = round(count * parts[0]), round(count * (parts[0] + parts[1]))
    marks = [0, first, second, count] if shares else [0, *(int(sum(parts[:place])) for place in (1, 2, 3))]
    if marks[-1] > count:
        raise UserError(f"the split needs {marks[-1]} rows", f"--split {split}", f"the file has {count}")
    return {name: marks[place : place + 2] for place, name in enumerate(SPLITS)}


# --- HDF5 that is windows already


def prepare_windows(folder: Path, path: Path, arguments: argparse.Namespace) -> None:
    """An HDF5 file as it is; only `--dtype` stores it anew."""
    from ..dataset import write_windows

    features, targets = windows_of(path, arguments.datasets)
    count, history, _ = features.shape
    splits = borders(arguments.split, count)
    step, purge = shift(features), arguments.purge
    if purge is None:  # windows before a border that share a moment with the first one behind it
        purge = -(-(history + targets.shape[1]) // step) - 1 if step else 0
    for before, behind in (("train", "validation"), ("validation", "test")):
        if splits[behind][0] < splits[behind][1]:
            splits[before][1] = max(splits[before][1] - purge, splits[before][0])
    origin = {"file": path.name, "rows": count, "split": arguments.split}
    rounding = write_windows(folder, features, targets, splits, arguments.dtype, origin)
    lines = {"features": f"{features.shape} {features.dtype}", "targets": f"{targets.shape} {targets.dtype}"}
    lines["overlap"] = (
        f"each window is {step} steps later, {purge} left out at each border" if step else "none"
    )
    report(folder, lines, rounding, arguments)


def windows_of(path: Path, datasets: str, roles: tuple[str, ...] = ("features", "targets")) -> list[Array]:
    """The arrays of the file, by the names that the store gives them."""
    from ..engine.hdf5 import hdf5_arrays

    names = [name.strip() for name in datasets.split(",")][: len(roles)]
    if len(names) != len(roles):
        raise UserError(f"'{datasets}' is not two names", "--datasets", "such as features,targets")
    found = hdf5_arrays(path, *names)
    arrays = [replace(found[name], name=role) for name, role in zip(names, roles, strict=True)]
    for array, expected in zip(arrays, ("(N, T, F)", "(N, H)"), strict=False):
        if len(array.shape) != expected.count(",") + 1:
            where = f"{path}, dataset '{array.dataset}'"
            raise UserError(f"shape {array.shape} where {expected} is expected", where, "see --datasets")
    if len({array.shape[0] for array in arrays}) > 1:
        sizes = ", ".join(f"'{array.dataset}' {array.shape[0]}" for array in arrays)
        raise UserError(f"unequal numbers of rows: {sizes}", str(path), "write one row of each for a window")
    return arrays


def shift(features: Array) -> int:
    """Steps by which each window is later than the one before; 0 where they do not overlap."""
    rows, history = features.read(0, 4), features.shape[1]
    steps = range(1, history) if len(rows) > 1 else ()
    return next((step for step in steps if (rows[1:, : history - step] == rows[:-1, step:]).all()), 0)
