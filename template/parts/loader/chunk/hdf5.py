"""Arrays in an HDF5 file of the user: where their bytes are, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .store import Array, StoreWriter, size_and_hash

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "uint16")
LOCKED = (11, 35)  # EAGAIN on Linux and macOS


class Hdf5Array(Array):
    """An array that HDF5 reads if its bytes in the file differ from those in memory."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the rows [first, last)."""
        if self.offset is not None:
            return self.rows()[first:last]
        with opened(self.path) as file:
            return file[self.dataset].astype(self.dtype)[first:last]


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
    """Open a file for reading. Raises `UserError` if it is missing, locked, cut or no HDF5."""
    import h5py

    if not path.is_file():
        raise UserError("there is no such file", str(path), "check --input")
    try:
        file = h5py.File(path)
    except OSError as error:
        raise _explain(error, path) from error
    with file:
        yield file


def _explain(error: OSError, path: Path) -> UserError:
    """Return an error with the reason why h5py cannot open the file."""
    import h5py

    if error.errno in LOCKED or "unable to lock" in str(error):
        what = "another process is writing the file"
        return UserError(what, str(path), "wait until it has closed it")
    if "truncated" in str(error):
        what = f"the file is truncated: it has {path.stat().st_size} bytes"
        return UserError(what, str(path), "copy it again")
    if not h5py.is_hdf5(path):
        return UserError("not an HDF5 file", str(path), "for a CSV, use the workload timeseries")
    return UserError(f"cannot open the file ({error})", str(path), "copy it again")


def hdf5_arrays(path: str | Path, *names: str) -> dict[str, Hdf5Array]:
    """Return the datasets `names` as arrays for loaders; print a note for each slow one.

    Raises `UserError` if the file or a dataset cannot be used for training.
    """
    path = Path(path)
    with opened(path) as file:
        arrays = {name: _array(path, file, name) for name in names}
    if len({array.shape[0] for array in arrays.values()}) > 1:
        counts = [f"'{name}' {array.shape[0]}" for name, array in arrays.items()]
        what = "unequal numbers of rows: " + ", ".join(counts)
        raise UserError(what, str(path), "write one row per sample into each dataset")
    return arrays


def _array(path: Path, file: Any, name: str) -> Hdf5Array:
    where = f"{path}, dataset '{name}'"
    dataset = _dataset(path, file, name)
    if dataset.file != file or dataset.external:
        what = "its values are in another file"
        raise UserError(what, where, "name that file, or copy the values into this one")
    if dataset.dtype.name not in DTYPES:
        what = f"cannot train on dtype {dataset.dtype}"
        raise UserError(what, where, f"convert it to one of {', '.join(DTYPES)}")
    if dataset.ndim < 1 or 0 in dataset.shape:
        what = f"no rows: its shape is {dataset.shape}"
        raise UserError(what, where, "write the samples as rows, along the first axis")
    if not dataset.id.get_storage_size():
        remedy = "write it first: it would be read as fill values only"
        raise UserError("nothing was ever written into the dataset", where, remedy)

    offset = _offset(dataset)
    if offset is None:
        _check_filters(dataset, where)
        if not _whole_rows(dataset):
            remedy = "`prepare --dtype` stores a copy that is read several times faster"
            print(f"note: {where}: {_slow(dataset)}; {remedy}")
    elif offset + dataset.nbytes > path.stat().st_size:
        raise UserError("the file is truncated", where, "copy it again")
    return Hdf5Array(name, path, offset, dataset.shape, dataset.dtype.name, name)


def _dataset(path: Path, file: Any, name: str) -> Any:
    import h5py

    dataset = file.get(name)
    if isinstance(dataset, h5py.Dataset):
        return dataset
    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(name)

    file.visititems(visit)
    remedy = f"it has {', '.join(names) or 'none'}: name two with --datasets"
    raise UserError(f"no dataset '{name}'", str(path), remedy)


def _offset(dataset: Any) -> int | None:
    """Return the first byte of a dataset whose bytes in the file are those in memory."""
    if dataset.chunks or dataset.is_virtual or dataset.external or not _native(dataset):
        return None
    return dataset.id.get_offset()


def _native(dataset: Any) -> bool:
    return dataset.dtype == dataset.dtype.newbyteorder("=")


def _whole_rows(dataset: Any) -> bool:
    """Whether chunks hold complete rows as in memory; a table of the chunks then replaces HDF5."""
    if not dataset.chunks or not _native(dataset):
        return False
    if dataset.id.get_create_plist().get_nfilters():
        return False
    return dataset.chunks[1:] == dataset.shape[1:]


def chunk_table(array: Array) -> tuple[int, np.ndarray] | None:
    """Return the rows of a chunk and the byte where each chunk begins, or None.

    None if only HDF5 can read the array: it is compressed or converted, its rows are cut into
    pieces, or a chunk was never written.
    """
    with opened(array.path) as file:
        dataset = file.get(array.dataset)
        if dataset is None or not _whole_rows(dataset):
            return None
        rows = dataset.chunks[0]
        places = np.zeros(ceil(len(dataset) / rows), np.int64)

        def note(chunk: Any) -> None:
            places[chunk.chunk_offset[0] // rows] = chunk.byte_offset

        dataset.id.chunk_iter(note)
    if not places.all():
        return None
    return rows, places


def _check_filters(dataset: Any, where: str) -> None:
    import h5py

    properties = dataset.id.get_create_plist()
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            packed = f"it is compressed with filter {code} ({name.decode(errors='replace')})"
            what = f"{packed}, which is not installed"
            raise UserError(what, where, "run `pip install hdf5plugin`")


def _slow(dataset: Any) -> str:
    """Return why a dataset is slow to read, and what one row costs."""
    chunk = dataset.chunks
    if not chunk:
        return "its bytes are converted while reading"
    touched = 1
    for length, size in zip(dataset.shape[1:], chunk[1:], strict=True):
        touched *= ceil(length / size)
    megabytes = touched * prod(chunk) * np.dtype(dataset.dtype).itemsize / 1e6
    layout = f"chunks of {chunk}"
    if dataset.compression:
        layout += f", compressed with {dataset.compression}"
    return f"{layout}, so that one row needs {touched:,} of them, {megabytes:,.1f} MB"
