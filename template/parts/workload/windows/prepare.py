"""Prepare an HDF5 file of windows for training, without copying it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.fill import arrays_of
from ..prepare.splits import borders, print_next

if TYPE_CHECKING:
    from ..engine.loading.hdf5 import Hdf5Array


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    add = parser.add_argument
    text = "HDF5 file with features (N, T, F) and targets (N, H)"
    add("--input", required=True, type=typed_path, metavar="FILE", help=text)
    text = "names of the two datasets in the file (default: %(default)s)"
    add("--datasets", default="features,targets", metavar="NAMES", help=text)
    text = "fractions that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "windows to leave out before each border of splits (default: those that overlap)"
    add("--purge", type=int, metavar="ROWS", help=text)
    text = "whether samples are the last axis in the file, as MATLAB writes them; copies the arrays"
    add("--transpose", action=argparse.BooleanOptionalAction, help=text)
    text = "copy the arrays as this type; 16-bit types store standardized features"
    add("--dtype", choices=["float32", "float16", "bfloat16"], help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Check every value, write a manifest that refers to the file, and print a summary."""
    from ..dataset import write_windows
    from ..engine.loading.store import check_folder

    folder = check_folder(load().data.path, arguments.input)
    path = Path(arguments.input)
    names = [name.strip() for name in arguments.datasets.split(",")]
    if len(names) != 2:
        what = f"'{arguments.datasets}' is not two names"
        raise UserError(what, "--datasets", "name two, such as features,targets")
    features, targets = arrays_of(path, names, arguments.transpose)
    purge = arguments.purge
    if purge is None:
        purge = overlap(features, targets)
    if purge < 0:
        raise UserError(f"{purge} windows cannot be left out", "--purge", "use 0 or more")
    splits = purged_borders(arguments.split, features.shape[0], purge)

    source = {
        "file": path.name,
        "rows": features.shape[0],
        "split": arguments.split,
        "datasets": names,
        "transpose": bool(arguments.transpose),
    }
    write_windows(folder, features, targets, splits, arguments.dtype, source)
    report(features, targets)
    unused = features.shape[0] - splits["test"][1]
    print(
        f"left out:   {purge} windows before each border, which overlap with those after it; "
        f"{unused:,} after the last split"
    )
    counts = [f"{last - first:,} {name}" for name, (first, last) in splits.items()]
    print(f"windows:    {', '.join(counts)}")
    print_next(folder)


def report(features: Hdf5Array, targets: Hdf5Array) -> None:
    """Print the shapes with names of their axes, and three windows: wrong axes are visible."""
    import numpy as np

    count, history, columns = features.shape
    _, horizon = targets.shape
    print(f"features:   {count:,} windows × {history} rows × {columns} features, {features.dtype}")
    print(f"targets:    {count:,} windows × {horizon} targets, {targets.dtype}")
    shape = f"{history} rows of {columns} features → {horizon} target{'s' * (horizon > 1)}"
    with np.printoptions(precision=4, threshold=5, edgeitems=2):
        for number in (0, count // 2, count - 1):
            window, target = (array.read(number, number + 1)[0] for array in (features, targets))
            print(f"window {number}: {shape}: {window[0]} … {window[-1]} → {target}")


def overlap(features: Hdf5Array, targets: Hdf5Array) -> int:
    """Return how many windows before a border overlap with the first window after it."""
    rows = features.read(0, 4)
    history = features.shape[1]
    for step in range(1, history):
        # Each window starts `step` rows after the previous one.
        if len(rows) > 1 and (rows[1:, : history - step] == rows[:-1, step:]).all():
            return math.ceil((history + targets.shape[1]) / step) - 1
    return 0


def purged_borders(split: str, count: int, purge: int) -> dict[str, list[int]]:
    """Return first and last + 1 window of each split, without `purge` windows before a border."""
    splits = borders(split, count)
    for before, behind in (("train", "validation"), ("validation", "test")):
        if splits[behind][0] < splits[behind][1]:
            splits[before][1] = max(splits[before][1] - purge, splits[before][0])

    # Check this before an existing dataset is replaced.
    for name in ("train", "validation"):
        first, last = splits[name]
        if first == last:
            remedy = "give it more rows, or use a smaller --purge"
            raise UserError(f"no {name} window is left", f"--split {split}", remedy)
    return splits
