"""How new data for `predict` become a prepared dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..engine.loading.hdf5 import Hdf5Array
    from ..engine.loading.store import Store


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write new windows, without targets, as a dataset into `folder`.

    It has the metadata of the training data.
    """
    from ..dataset import add_arrays, check_values
    from ..engine.loading.store import StoreWriter

    facts = trained.facts
    names = trained.source.get("datasets", ["features"])
    transpose = flags["transpose"]
    if transpose is None:
        transpose = trained.source.get("transpose", False)
    (features,) = arrays_of(path, names[:1], transpose)
    expected = (facts["history"], facts["columns"])
    if features.shape[1:] != expected:
        what = f"windows of {features.shape[1:]}, but {expected} in the training data"
        remedy = "provide windows of the same shape, or see --transpose and --no-transpose"
        raise UserError(what, str(path), remedy)
    check_values(features, border=0)
    with StoreWriter(folder, trained.workload) as writer:
        add_arrays(writer, features)
        writer.facts = facts
        writer.splits = {"input": [0, features.shape[0]]}


def arrays_of(path: Path, names: list[str], transpose: bool | None) -> list[Hdf5Array]:
    """Return the named datasets of the file: `features`, and `targets` if there are two names.

    transpose: as in `hdf5_arrays`.
    """
    from ..engine.loading.hdf5 import hdf5_arrays

    datasets = hdf5_arrays(path, *names, transpose=transpose)
    expected = (("features", "(N, T, F)"), ("targets", "(N, H)"))
    arrays = []
    for name, (role, axes) in zip(names, expected, strict=False):
        shape = datasets[name].shape
        if len(shape) != axes.count(",") + 1:
            where = f"{path}, dataset '{name}'"
            remedy = f"write the {role} as {axes}, or check --datasets"
            raise UserError(f"shape {shape} where {axes} is expected", where, remedy)
        arrays.append(replace(datasets[name], name=role))
    return arrays
