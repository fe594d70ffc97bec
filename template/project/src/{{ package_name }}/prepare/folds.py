"""Write folds: each part of the rows is held out once, from scales and categories, too."""

from __future__ import annotations

import numpy as np

from ..engine.loading.store import StoreWriter
from .rows import Facts, Parts, Table, write_parts


def write_folds(writer: StoreWriter, table: Table, parts: Parts) -> Facts:
    """Write arrays and metadata of each fold; return those of the last one."""
    folds = []
    *held_out, test = parts.values()
    for number, rows in enumerate(held_out, 1):
        print(f"fold {number}:")
        others = [other for other in held_out if other is not rows]
        splits = {"train": np.concatenate(others), "validation": rows, "test": test}
        folds.append(write_parts(writer, table, splits, f".{number}"))
    writer.facts = {"folds": folds}
    return folds[-1]
