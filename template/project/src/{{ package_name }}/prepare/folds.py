"""Write folds: each part of the rows is held out once, from scales and categories, too."""

from __future__ import annotations

import numpy as np

from ..engine.errors import UserError
from ..engine.loading.store import StoreWriter
from .rows import Facts, Parts, Table, write_parts


def fold_sizes(sizes: dict[str, int], num_folds: int | None) -> dict[str, int]:
    """Return the number of rows of each fold and of the test split, or those of the splits."""
    if not num_folds:
        return sizes
    in_folds = np.array_split(np.arange(sizes["train"] + sizes["validation"]), num_folds)
    folds = {f"fold {number}": len(rows) for number, rows in enumerate(in_folds, 1)}
    return {**folds, "test": sizes["test"]}


def write_folds(writer: StoreWriter, table: Table, parts: Parts) -> Facts:
    """Write arrays and metadata of each fold; return those of the last one.

    Raises `UserError` for a class with fewer rows than folds.
    """
    folds = []
    *held_out, test = parts.values()
    if table.label:
        classes = table.levels[table.label]
        counts = np.bincount(table.codes[np.concatenate(held_out), -1], minlength=len(classes) + 1)
        rarest = counts[1:].argmin()
        if counts[1:].min() < len(held_out):
            what = f"the class '{classes[rarest]}' has {counts[1:].min()} rows"
            remedy = "use fewer folds, or remove its rows"
            raise UserError(what, f"--folds {len(held_out)}", remedy)

    for number, rows in enumerate(held_out, 1):
        others = [other for other in held_out if other is not rows]
        print(f"fold {number}:     {len(rows):,} held out, {sum(map(len, others)):,} train")
        splits = {"train": np.concatenate(others), "validation": rows, "test": test}
        facts = write_parts(writer, table, splits, f".{number}")
        folds.append({**facts, "splits": writer.splits})
    writer.facts = {"folds": folds}
    writer.splits = {}
    return folds[-1]
