"""Arrays in an HDF5 file of the user: where their bytes are, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from ..errors import UserError
from ..inputs import kind_of
from ..runs import check_input
from .store import Array, StoreWriter, size_and_hash

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "uint16")
# Attributes of netCDF that change what a stored number means, and their values that change nothing.
PACKING = {"scale_factor": 1, "add_offset": 0, "_Unsigned": "false"}
# What h5py raises for a file that is cut, damaged or links to itself.
UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


class Hdf5Array(Array):
    """An array that HDF5 reads if its bytes in the file differ from those in memory."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the rows [first, last)."""
        if self.offset is not None:
            return self.rows()[first:last]
        with opened(self.path) as file:
            return file[self.dataset].astype(self.dtype)[first:last]


class ReversedArray(Hdf5Array):
    """An array whose axes are reversed in the file, as MATLAB writes them; loaders need a copy."""

    def read(self, first: int, last: int) -> np.ndarray:
        with opened(self.path) as file:
            return file[self.dataset].astype(self.dtype)[..., first:last].T


def place_in(array: Array, row: int, size: int = 0) -> str:
    """Name the rows of `size` bytes from `row` on, for an error."""
    num_rows = max(size // array.row_bytes, 1)
    return f"{array.path}, {array.name} rows {row} to {row + num_rows - 1}"


def refer(writer: StoreWriter, **arrays: Array) -> None:
    """Let a store refer to arrays in their file, which is read once for its checksums."""
    for name, array in arrays.items():
        path = str(array.path.resolve())
        if path not in writer.files:
            writer.files[path] = size_and_hash(array.path)
        writer.arrays[name] = {
            "file": path,
            "offset": array.offset,
            "shape": list(array.shape),
            "dtype": array.dtype,
            "dataset": array.dataset,
        }


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file for reading. Raises `UserError` if HDF5 cannot open or read it."""
    import h5py

    check_input(path, is_file=True)
    try:
        with h5py.File(path) as file:
            yield file
    except UNREADABLE as error:
        what = f"HDF5 cannot read the file ({error})"
        remedy = "give a complete HDF5 file that no other process is writing; if only a filter is "
        remedy += "missing, run `pip install hdf5plugin`"
        with open(path, "rb") as raw:
            kind_of(path, raw, "an HDF5 file")  # raises if it is another kind
        raise UserError(what, str(path), remedy) from error


def hdf5_arrays(
    path: str | Path, *names: str, transpose: bool | None = None
) -> dict[str, Hdf5Array]:
    """Return the datasets `names` as arrays for loaders; print a note for each slow one.

    transpose: whether the axes are reversed in the file; None refuses a file where they seem to be.
    Raises `UserError` if the file or a dataset cannot be used for training.
    """
    path = Path(path)
    with opened(path) as file:
        arrays = {name: _array(path, file, name, transpose) for name in names}
    shapes = [array.shape for array in arrays.values()]
    if transpose is None and _seem_reversed(path, shapes):
        what = f"samples seem to be the last axis of {shapes}, as MATLAB writes them"
        remedy = "run prepare with --transpose, or with --no-transpose if they are the first axis"
        raise UserError(what, str(path), remedy)
    if len({shape[0] for shape in shapes}) > 1:
        counts = [f"'{name}' {array.shape[0]}" for name, array in arrays.items()]
        what = "unequal numbers of rows: " + ", ".join(counts)
        remedy = "write one row per sample into each dataset, or see prepare --transpose"
        raise UserError(what, str(path), remedy)
    return arrays


def _seem_reversed(path: Path, shapes: list[Sequence[int]]) -> bool:
    """Whether samples seem to be the last axis: MATLAB, Julia and Fortran reverse all axes."""
    if len({shape[-1] for shape in shapes}) > 1 or any(shape[0] >= shape[-1] for shape in shapes):
        return False
    if len({shape[0] for shape in shapes}) > 1:
        return True
    # Both the first and the last axis may be the samples.
    with open(path, "rb") as file:
        is_matlab = file.read(6) == b"MATLAB"
    is_shortest = all(shape[0] == min(shape) for shape in shapes)
    return is_matlab or (is_shortest and len(shapes) > 1)


def _array(path: Path, file: Any, name: str, transpose: bool | None) -> Hdf5Array:
    import h5py

    where = f"{path}, dataset '{name}'"
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        names: list[str] = []
        file.visit(names.append)  # with those in groups
        has = shorten(", ".join(names), 600) or "none"
        remedy = f"it has {has}: name two with --datasets"
        raise UserError(f"no dataset '{name}'", str(path), remedy)
    if dataset.file != file or dataset.external or dataset.is_virtual:
        what = "its values are in another file or dataset"
        raise UserError(
            what, where, "name that one, or copy the values into a dataset of this file"
        )
    if dataset.dtype.name not in DTYPES:
        what = f"cannot train on dtype {dataset.dtype}"
        raise UserError(what, where, f"convert it to one of {', '.join(DTYPES)}")
    if dataset.ndim < 1 or 0 in dataset.shape:
        what = f"no rows: its shape is {dataset.shape}"
        raise UserError(what, where, "write the samples as rows, along the first axis")
    if dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
        what = "some of its rows were never written, and would be read as a constant"
        raise UserError(what, where, "write them, or make the dataset smaller")
    for attribute, plain in PACKING.items():
        if np.any(dataset.attrs.get(attribute, plain) != plain):
            what = f"its values are packed, by the attribute {attribute}"
            raise UserError(what, where, "store the unpacked values, without the attribute")
    if transpose:
        return ReversedArray(name, path, None, dataset.shape[::-1], dataset.dtype.name, name)
    # None for a dataset in chunks, or one that is made of others.
    offset = dataset.id.get_offset() if _is_native(dataset) else None
    if offset is None and not _has_whole_rows(dataset):
        remedy = "`prepare --dtype` stores a copy that is read several times faster"
        print(f"note: {where}: HDF5 decompresses or converts each row; {remedy}")
    return Hdf5Array(name, path, offset, dataset.shape, dataset.dtype.name, name)


def _is_native(dataset: Any) -> bool:
    return dataset.dtype == dataset.dtype.newbyteorder("=")


def missing_values(array: Array) -> np.ndarray:
    """Return the numbers that mark missing values: those of netCDF, and the fill value of HDF5."""
    with opened(array.path) as file:
        dataset = file[array.dataset]
        marks = [dataset.attrs.get(name, []) for name in ("_FillValue", "missing_value")]
        if dataset.fillvalue != 0:  # 0 is HDF5's own choice
            marks.append(dataset.fillvalue)
        # As floating-point numbers, since a mark may be too large for the integers of the dataset.
        dtype = np.result_type(dataset.dtype, np.float16)
        return np.concatenate([np.ravel(mark).astype(dtype) for mark in marks])


def _has_whole_rows(dataset: Any) -> bool:
    """Whether chunks hold complete rows as in memory; a table of the chunks then replaces HDF5."""
    if not dataset.chunks or not _is_native(dataset):
        return False
    if dataset.id.get_create_plist().get_nfilters():
        return False
    return dataset.chunks[1:] == dataset.shape[1:]


def chunk_table(array: Array) -> tuple[int, list[int]] | None:
    """Return the rows of a chunk and the byte where each chunk begins, or None.

    None if only HDF5 can read the array: it is compressed or converted, its rows are cut into
    pieces, or a chunk was never written.
    """
    with opened(array.path) as file:
        dataset = file[array.dataset]
        if not _has_whole_rows(dataset):
            return None
        rows = dataset.chunks[0]
        places = [0] * ceil(len(dataset) / rows)

        def note(chunk: Any) -> None:
            places[chunk.chunk_offset[0] // rows] = chunk.byte_offset

        dataset.id.chunk_iter(note)
    return (rows, places) if all(places) else None
