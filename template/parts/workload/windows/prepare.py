"""Take an HDF5 file of windows as the data that training reads; nothing is copied."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..splits import add_dry_run, borders, conclude, destination

if TYPE_CHECKING:
    from ..engine.store import Array, Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `prepare`."""
    add, dtypes = parser.add_argument, ["float32", "float16", "bfloat16"]
    add("--input", required=True, metavar="FILE", help="HDF5 with features (N, T, F) and targets (N, H)")
    add("--datasets", default="features,targets", metavar="NAMES", help="their names (default: %(default)s)")
    shares = "shares that add up to 1, or numbers of rows; test may be 0 (default: %(default)s)"
    add("--split", default="0.7,0.15,0.15", metavar="TRAIN,VALIDATION,TEST", help=shares)
    add("--purge", type=int, metavar="ROWS", help="left out at borders (default: those that overlap)")
    add("--dtype", choices=dtypes, help="store anew; halves hold standardised values, in half the space")
    add_dry_run(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Checks every value, writes a manifest that names the file, and prints what was found."""
    from ..dataset import write_windows
    from ..engine.store import Store

    path = Path(arguments.input)
    names = [name.strip() for name in arguments.datasets.split(",")]
    if len(names) != 2:
        raise UserError(f"'{arguments.datasets}' is not two names", "--datasets", "such as features,targets")
    features, targets = arrays_of(path, names)
    splits = borders(arguments.split, features.shape[0])
    step, purge = shift(features), arguments.purge
    if purge is None:  # windows before a border that share a moment with the first one behind it
        purge = math.ceil((features.shape[1] + targets.shape[1]) / step) - 1 if step else 0
    for before, behind in (("train", "validation"), ("validation", "test")):
        if splits[behind][0] < splits[behind][1]:
            splits[before][1] = max(splits[before][1] - purge, splits[before][0])
    counts = {name: last - first for name, (first, last) in splits.items()}
    if not (counts["train"] and counts["validation"]):  # before a store that is there is replaced
        what = f"{counts['train']} training and {counts['validation']} validation windows fit into the split"
        raise UserError(what, f"--split {arguments.split}", "give it more rows, or a smaller --purge")
    source = {"file": path.name, "rows": features.shape[0], "split": arguments.split, "datasets": names}
    with destination(load().data.path, arguments.dry_run) as folder:
        rounding = write_windows(folder, features, targets, splits, arguments.dtype, source)
        for array in (features, targets):
            print(f"{array.name + ':':12}{array.shape} {array.dtype}")
        overlap = f"each window is {step} steps later, {purge} left out at each border" if step else "none"
        print(f"overlap:    {overlap}")
        print(f"windows:    {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
        if rounding:
            print(f"rounding:   {rounding:.1e} standard deviations, by storing {arguments.dtype}")
        conclude(Store.open(folder), arguments.dry_run)


def arrays_of(path: Path, names: list[str]) -> list[Array]:
    """`features`, and `targets` where two datasets are named, as they lie in the file."""
    from ..engine.hdf5 import hdf5_arrays

    found, arrays = hdf5_arrays(path, *names), []
    for name, role, axes in zip(names, ("features", "targets"), ("(N, T, F)", "(N, H)"), strict=False):
        shape = found[name].shape
        if len(shape) != axes.count(",") + 1:
            where = f"{path}, dataset '{name}'"
            raise UserError(f"shape {shape} where {axes} is expected", where, "see --datasets")
        arrays.append(replace(found[name], name=role))
    return arrays


def shift(features: Array) -> int:
    """Steps by which each window is later than the one before; 0 where they do not overlap."""
    rows, history = features.read(0, 4), features.shape[1]
    steps = range(1, history) if len(rows) > 1 else ()
    return next((step for step in steps if (rows[1:, : history - step] == rows[:-1, step:]).all()), 0)


def add_new(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict` for new data."""
    parser.add_argument("--input", metavar="FILE", help="HDF5 with new features (N, T, F)")


def new_store(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Writes new windows, without targets, as a store into `folder`, with the scaler of the training data."""
    from ..engine.hdf5 import refer
    from ..engine.store import StoreWriter

    facts = trained.facts
    (features,) = arrays_of(path, trained.source.get("datasets", ["features"])[:1])
    expected = facts["history"], facts["columns"]
    if features.shape[1:] != expected:
        what = f"windows of {features.shape[1:]} where the model was trained on {expected}"
        raise UserError(what, str(path), "give windows of that shape")
    with StoreWriter(folder, trained.workload) as writer:
        refer(writer, features=features)
        writer.facts, writer.splits = facts, {"input": [0, features.shape[0]]}
