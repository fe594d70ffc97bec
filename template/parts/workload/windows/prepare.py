"""Take an HDF5 file of windows as the data that training reads; nothing is copied."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.runs import typed_path
from ..prepare.splits import add_dry_run, borders, destination, print_summary

if TYPE_CHECKING:
    from ..engine.store import Array, Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add = parser.add_argument
    text = "HDF5 with features (N, T, F) and targets (N, H)"
    add("--input", required=True, type=typed_path, metavar="FILE", help=text)
    text = "their names (default: %(default)s)"
    add("--datasets", default="features,targets", metavar="NAMES", help=text)
    text = "shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=text)
    text = "left out at borders (default: those that overlap)"
    add("--purge", type=int, metavar="ROWS", help=text)
    text = "store anew; halves hold standardised values, in half the space"
    add("--dtype", choices=["float32", "float16", "bfloat16"], help=text)
    add_dry_run(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Check every value, write a manifest that names the file, and print what was found."""
    from ..dataset import write_windows
    from ..engine.store import Store

    path = Path(arguments.input)
    names = [name.strip() for name in arguments.datasets.split(",")]
    if len(names) != 2:
        what = f"'{arguments.datasets}' is not two names"
        raise UserError(what, "--datasets", "such as features,targets")
    features, targets = arrays_of(path, names)
    step = shift(features)
    purge = arguments.purge
    if purge is None:
        purge = overlap(features, targets, step)
    splits = purged_borders(arguments.split, features.shape[0], purge)

    source = {
        "file": path.name,
        "rows": features.shape[0],
        "split": arguments.split,
        "datasets": names,
    }
    with destination(load().data.path, arguments.dry_run) as folder:
        rounding = write_windows(folder, features, targets, splits, arguments.dtype, source)
        for array in (features, targets):
            print(f"{array.name + ':':12}{array.shape} {array.dtype}")
        shared = "none"
        if step:
            shared = f"each window is {step} steps later, {purge} left out at each border"
        print(f"overlap:    {shared}")
        counts = [f"{last - first:,} {name}" for name, (first, last) in splits.items()]
        print(f"windows:    {', '.join(counts)}")
        if rounding:
            cost = f"{rounding:.1e} standard deviations"
            print(f"rounding:   {cost}, by storing {arguments.dtype}")
        print_summary(Store.open(folder), arguments.dry_run)


def overlap(features: Array, targets: Array, step: int) -> int:
    """How many windows before a border share a moment with the first one behind it."""
    if not step:
        return 0
    return math.ceil((features.shape[1] + targets.shape[1]) / step) - 1


def purged_borders(split: str, count: int, purge: int) -> dict[str, list[int]]:
    """First and last + 1 window of each split, without the last `purge` ones before a border."""
    splits = borders(split, count)
    for before, behind in (("train", "validation"), ("validation", "test")):
        if splits[behind][0] < splits[behind][1]:
            splits[before][1] = max(splits[before][1] - purge, splits[before][0])

    # Before a store that is there is replaced.
    train, validation, _ = (last - first for first, last in splits.values())
    if not (train and validation):
        what = f"{train} training and {validation} validation windows fit into the split"
        raise UserError(what, f"--split {split}", "give it more rows, or a smaller --purge")
    return splits


def arrays_of(path: Path, names: list[str]) -> list[Array]:
    """`features`, and `targets` where two datasets are named, as they lie in the file."""
    from ..engine.hdf5 import hdf5_arrays

    datasets = hdf5_arrays(path, *names)
    expected = (("features", "(N, T, F)"), ("targets", "(N, H)"))
    arrays = []
    for name, (role, axes) in zip(names, expected, strict=False):
        shape = datasets[name].shape
        if len(shape) != axes.count(",") + 1:
            where = f"{path}, dataset '{name}'"
            raise UserError(f"shape {shape} where {axes} is expected", where, "see --datasets")
        arrays.append(replace(datasets[name], name=role))
    return arrays


def shift(features: Array) -> int:
    """Steps by which each window is later than the one before; 0 where they do not overlap."""
    rows = features.read(0, 4)
    history = features.shape[1]
    if len(rows) < 2:
        return 0
    for step in range(1, history):
        if (rows[1:, : history - step] == rows[:-1, step:]).all():
            return step
    return 0


def add_new(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict` for new data."""
    parser.add_argument(
        "--input", type=typed_path, metavar="FILE", help="HDF5 with new features (N, T, F)"
    )


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write new windows, without targets, as a store into `folder`.

    They have the scaler of the training data.
    """
    from ..engine.hdf5 import refer
    from ..engine.store import StoreWriter

    facts = trained.facts
    names = trained.source.get("datasets", ["features"])
    (features,) = arrays_of(path, names[:1])
    expected = (facts["history"], facts["columns"])
    if features.shape[1:] != expected:
        what = f"windows of {features.shape[1:]} where the model was trained on {expected}"
        raise UserError(what, str(path), "give windows of that shape")
    with StoreWriter(folder, trained.workload) as writer:
        refer(writer, features=features)
        writer.facts = facts
        writer.splits = {"input": [0, features.shape[0]]}
