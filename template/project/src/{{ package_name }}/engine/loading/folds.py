"""Folds of a prepared dataset: it has arrays of each fold, whose names end with its number."""

from __future__ import annotations

from copy import copy

from ..errors import UserError
from .store import Store


def fold_of(store: Store, number: int | str) -> Store:
    """Return the dataset of a fold; that of the store for 0. Raises `UserError` for any other."""
    folds = store.facts.get("folds", [])
    if number == 0 and not folds:
        return store
    if number not in range(1, len(folds) + 1):
        what = f"the data have {len(folds)} folds, and data.fold is {number}"
        remedy = "train with --fold all, or with the number of a fold; see `prepare --folds`"
        raise UserError(what, str(store.folder), remedy)
    suffix = f".{number}"
    fold = copy(store)
    fold.facts = folds[int(number) - 1]
    fold.splits = fold.facts["splits"]
    fold.arrays = {
        name.removesuffix(suffix): array
        for name, array in store.arrays.items()
        if name.endswith(suffix)
    }
    return fold
