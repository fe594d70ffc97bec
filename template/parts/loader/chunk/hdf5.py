"""Arrays of an HDF5 file that somebody else wrote: where they lie, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError
from .files import checksums
from .store import Array, StoreWriter

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "uint16")
LOCKED = (11, 35)  # EAGAIN on Linux and macOS


class Hdf5Array(Array):
    """An array that also HDF5 itself can read, where its bytes are not those in memory."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last), wherever they lie."""
        if self.offset is not None:
            return super().read(first, last)
        with opened(self.path) as file:
            return file[self.dataset].astype(self.dtype)[first:last]


def place_in(array: Array, row: int, size: int = 0) -> str:
    """Of `size` bytes from `row` on, for an error."""
    return f"{array.path}, {array.name} rows {row} to {row + max(size // array.row_bytes, 1) - 1}"


def refer(writer: StoreWriter, **arrays: Array) -> None:
    """Takes arrays into a store as they lie in their file, which is read once for its checksums."""
    for name, array in arrays.items():
        path = str(array.path.resolve())
        if path not in writer.files:
            writer.files[path] = checksums(array.path)
        entry = {"file": path, "offset": array.offset, "shape": list(array.shape), "dtype": array.dtype}
        writer.arrays[name] = {**entry, "dataset": array.dataset}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, open for reading. Raises `UserError` where it is missing, locked, cut short or no HDF5."""
    import h5py

    if not path.is_file():
        raise UserError("there is no such file", str(path), "check --input")
    try:
        file = h5py.File(path)
    except OSError as error:
        what, remedy = f"cannot open the file ({error})", "copy it again"
        if error.errno in LOCKED or "unable to lock" in str(error):
            what, remedy = "another process is writing the file", "wait until it has closed it"
        elif "truncated" in str(error):
            what = f"the file is cut short, it has {path.stat().st_size} bytes"
        elif not h5py.is_hdf5(path):
            what, remedy = "not an HDF5 file", "a CSV is for the workload timeseries"
        raise UserError(what, str(path), remedy) from error
    with file:
        yield file


def hdf5_arrays(path: str | Path, *names: str) -> dict[str, Array]:
    """The datasets `names` as arrays that loaders can read, with a note for each that is slow to read.

    Raises `UserError` for a file or a dataset that cannot be trained on.
    """
    path = Path(path)
    with opened(path) as file:
        arrays = {name: _array(path, file, name) for name in names}
    rows = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        what = "unequal numbers of rows: " + ", ".join(f"'{name}' {count}" for name, count in rows.items())
        raise UserError(what, str(path), "write one row of each for a sample")
    return arrays


def _array(path: Path, file: Any, name: str) -> Array:
    import h5py

    where, dataset = f"{path}, dataset '{name}'", file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        found: list[str] = []
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
        raise UserError(f"no dataset '{name}'", str(path), f"it has {', '.join(found) or 'none'}")
    if dataset.dtype.name not in DTYPES:
        raise UserError(f"cannot train on dtype {dataset.dtype}", where, f"it takes {', '.join(DTYPES)}")
    if dataset.ndim < 1 or 0 in dataset.shape:
        raise UserError(f"no rows: its shape is {dataset.shape}", where, "rows are the first axis")
    if not dataset.id.get_storage_size():
        remedy = "it would be all fill values; write it first"
        raise UserError("nothing was ever written into it", where, remedy)
    offset = _offset(dataset)
    if offset is None:
        _check_filters(dataset, where)
        if not _whole_rows(dataset):
            remedy = "`prepare --dtype` stores it anew, for several times the speed"
            print(f"note: {where}: {_slow(dataset)}; {remedy}")
    elif offset + dataset.nbytes > path.stat().st_size:
        raise UserError("the file is cut short", where, "copy it again")
    return Hdf5Array(name, path, offset, dataset.shape, dataset.dtype.name, name)


def _offset(dataset: Any) -> int | None:
    """First byte of a dataset whose bytes lie in the file as in memory."""
    if dataset.chunks or dataset.is_virtual or dataset.external or not _native(dataset):
        return None
    return dataset.id.get_offset()


def _native(dataset: Any) -> bool:
    return dataset.dtype == dataset.dtype.newbyteorder("=")


def _whole_rows(dataset: Any) -> bool:
    """Whether its chunks hold whole rows as they are in memory, so that a table of them replaces HDF5."""
    plain = not dataset.id.get_create_plist().get_nfilters() and _native(dataset)
    return bool(dataset.chunks) and plain and dataset.chunks[1:] == dataset.shape[1:]


def chunk_table(array: Array) -> tuple[int, np.ndarray] | None:
    """Rows of a chunk and the byte where each chunk begins; None where only HDF5 can read the array.

    That is so for packed or converted data, rows cut into pieces, and chunks that were never written.
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
    return (rows, places) if places.all() else None


def _check_filters(dataset: Any, where: str) -> None:
    import h5py

    properties = dataset.id.get_create_plist()
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            what = f"it is packed by filter {code} ({name.decode(errors='replace')}), which is not installed"
            raise UserError(what, where, "pip install hdf5plugin")


def _slow(dataset: Any) -> str:
    """Why it is slow to read, and what one row costs."""
    if not dataset.chunks:
        return "its bytes are converted while reading"
    row, chunk = dataset.shape[1:], dataset.chunks
    touched = prod(ceil(length / size) for length, size in zip(row, chunk[1:], strict=True))
    megabytes = touched * prod(chunk) * np.dtype(dataset.dtype).itemsize / 1e6
    packed = f", packed by {dataset.compression}" if dataset.compression else ""
    return f"chunks of {chunk}{packed}, so that one row touches {touched:,} of them, {megabytes:,.1f} MB"
