"""The prepared dataset: named arrays, each a `.npy` file, and a manifest that describes them.

The manifest holds the metadata of the data (sizes, scaler, vocabulary), the borders of the splits,
the place of each array and checksums of each file. It is written last, so a folder with a manifest
is complete. Every loader reads the same bytes at the same offsets: another `loader` needs no new
`prepare`. An HDF5 file that is not ours stays where it is: the manifest names it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import UserError
from .files import BLOCK_BYTES, blocks, checksums, read_json, sync, writable_folder, write_json

FORMAT = 3  # goes up when the manifest, an array or the fingerprint means something else
MANIFEST = "manifest.json"
VERIFIED = "verified.json"
REMEMBERED = "data.json"
OURS = re.compile(r"store-.+-[0-9a-f]{12}\.npy")
SMALL_BYTES = 64 << 20  # up to here, comparing all checksums takes less time than importing torch
AGAIN = "run `prepare` again"
SYNTHETIC = "synthetic"  # the kind, and the folder, of data that `train` makes where there are none


def _numpy_dtype(name: str) -> np.dtype:
    """Return the dtype that holds the bytes: numpy has no bfloat16, so its bits are uint16."""
    if name == "bfloat16":
        name = "uint16"
    return np.dtype(name)


@dataclass(frozen=True)
class Array:
    """One named array: `shape[0]` rows of `dtype` at `offset` bytes of the file `path`.

    offset: None if the bytes in the file are not those in memory (packed, in pieces, or of the
    other byte order); then only HDF5 can read them, from `dataset`. dtype: a numpy name, or
    "bfloat16".
    """

    name: str
    path: Path
    offset: int | None
    shape: tuple[int, ...]
    dtype: str
    dataset: str = ""

    @property
    def stored(self) -> np.dtype:
        """The numpy dtype of the bytes."""
        return _numpy_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.stored.itemsize

    def rows(self) -> np.ndarray:
        """Map (N, *row) copy-on-write: read when touched, also from a read-only folder."""
        if 0 in self.shape:
            return np.empty(self.shape, self.stored)
        if self.offset is None:
            what = f"dataset '{self.dataset}' is packed and cannot be mapped"
            remedy = "use the loader chunk, or `prepare --dtype` to store it anew"
            raise UserError(what, str(self.path), remedy)
        try:
            return np.memmap(self.path, self.stored, mode="c", offset=self.offset, shape=self.shape)
        except FileNotFoundError:
            what = f"the rows of '{self.name}' are not here"
            remedy = "this needs the prepared data: name them with --data.path"
            raise UserError(what, str(self.path), remedy) from None

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last)."""
        return self.rows()[first:last]


class Store:
    """A prepared data folder, opened for reading. Picklable: each worker maps the files itself."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Raises `UserError` if this project cannot read the manifest, whose file is `path`."""
        if not manifest:
            raise UserError("unreadable manifest", str(path), AGAIN)
        number = manifest.get("format")
        if number != FORMAT:
            what = f"the data are of format {number}, this project reads {FORMAT}"
            raise UserError(what, str(path), AGAIN)

        self.folder = path.parent
        self.manifest = manifest
        self.workload = manifest["workload"]
        self.facts = manifest["facts"]
        self.splits = manifest["splits"]
        self.source = manifest["source"]
        self.files = manifest["files"]
        arrays = manifest["arrays"].items()
        self.arrays = {name: _array(self.folder, name, **entry) for name, entry in arrays}

        # The same bytes with other targets, class names or characters are other data.
        hashes = [entry["sha256"] for entry in self.files.values()]
        content = json.dumps([hashes, self.splits, self.facts], sort_keys=True)
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def again(self) -> str:
        """What makes these data again."""
        if self.source.get("kind") == SYNTHETIC:
            return f"remove {self.folder}: `train` makes the synthetic data again"
        return AGAIN

    @classmethod
    def open(cls, folder: str | Path, workload: str | None = None) -> Store:
        """Read the manifest; check that its files exist with their sizes, small ones bit for bit.

        Raises `UserError` for missing, incomplete, foreign, changed or damaged data.
        """
        folder = Path(folder)
        path = folder / MANIFEST
        if not path.exists():
            remedy = "run `prepare --input …` first"
            if folder.name == SYNTHETIC:
                remedy = "`train` without --data.path makes the synthetic data"
            raise UserError("no prepared data", str(folder), remedy)
        store = cls(path, read_json(path))
        if workload and store.workload != workload:
            prepared = f"the data were prepared for `{store.workload}`"
            what = f"{prepared}, this project trains `{workload}`"
            raise UserError(what, str(folder), "prepare them here, or point data.path elsewhere")

        store._check_sizes()
        if sum(entry["bytes"] for entry in store.files.values()) <= SMALL_BYTES:
            verify(store)
        return store

    def _check_sizes(self) -> None:
        for name, entry in self.files.items():
            path = self.folder / name
            size: int | str = "no"
            if path.exists():
                size = path.stat().st_size
            if size != entry["bytes"]:
                what = f"{size} bytes where the manifest says {entry['bytes']}"
                remedy = "the file was cut, changed or removed: " + self.again
                raise UserError(what, str(path), remedy)

    def remember(self, run: Path) -> None:
        """Keep the manifest in the run's folder; phases may have several datasets."""
        manifests = read_json(run / REMEMBERED)
        if manifests.get(self.fingerprint) != self.manifest:
            manifests[self.fingerprint] = self.manifest
            write_json(run / REMEMBERED, manifests)

    @classmethod
    def remembered(cls, run: Path, fingerprint: str | None = None) -> Store | None:
        """Return the data that a run was trained on, without rows; None if it has no record.

        fingerprint: which of them, if its phases had several; without one, the last.
        """
        path = run / REMEMBERED
        stores = [cls(path, manifest) for manifest in read_json(path).values()]
        for store in reversed(stores):
            if fingerprint is None or fingerprint == store.fingerprint:
                return store
        return None


def _array(folder: Path, name: str, file: str, shape: list[int], **fields: Any) -> Array:
    return Array(name, folder / file, shape=tuple(shape), **fields)


def verify(store: Store, again: bool = False, stop: Callable[[], bool] = lambda: False) -> int:
    """Compare files with the manifest's checksums; return the number of bytes read.

    A flipped bit would load silently. A file that was compared counts as good while its size,
    modification time and inode stay the same. again: compare also those. stop: end early. Raises
    `UserError` that names the file and the first damaged block.
    """
    record = read_json(store.folder / VERIFIED)
    num_bytes = 0
    for name in store.files:
        path = store.folder / name
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        if record.get(name) == state and not again:
            continue

        try:
            for number, block in enumerate(blocks(path)):
                if stop():
                    return num_bytes
                num_bytes += len(block)
                _check_block(store, name, number, block)
        except OSError as error:
            what = f"the disk cannot read ({error.strerror})"
            raise UserError(what, str(path), "check it") from error

        record[name] = state
        # If the folder cannot be written, the file is compared each time.
        with contextlib.suppress(OSError):
            write_json(store.folder / VERIFIED, record)
    return num_bytes


def _check_block(store: Store, name: str, number: int, block: memoryview) -> None:
    crcs = store.files[name]["crc32"]
    if number < len(crcs) and zlib.crc32(block) == crcs[number]:
        return
    where = f"{store.folder / name}, block {number + 1} of {BLOCK_BYTES >> 20} MB"
    raise UserError("the stored data are damaged", where, "copy the file again, or " + store.again)


class StoreWriter:
    """Writes a store; a folder that had one keeps it until the new one is complete.

        with StoreWriter(folder, "tabular") as writer:
            writer.create("features", (rows, columns), "float32")[...] = values
            writer.facts = {...}
            writer.splits = {"train": [0, 80], "validation": [80, 90], "test": [90, 100]}

    `append` takes rows as they come, for an array whose length is not known before the end. An
    array whose name begins with a dot is deleted at the end of the block. An exception in the block
    removes what was written.
    """

    def __init__(self, folder: str | Path, workload: str):
        self.folder = Path(folder)
        self.workload = workload
        self.facts: dict[str, Any] = {}
        self.splits: dict[str, list[int]] = {}
        self.source: dict[str, Any] = {}
        self.arrays: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self._open: dict[str, BinaryIO] = {}  # files of arrays that grow

    def __enter__(self) -> StoreWriter:
        writable_folder(self.folder, "choose another data.path")
        for stale in self.folder.glob(".store-*.partial"):
            _remove_if_dead(stale)
        self._partial = self.folder / f".store-{os.getpid()}.partial"
        self._partial.mkdir(exist_ok=True)
        return self

    def _path(self, name: str) -> Path:
        return self._partial / f"{name}.npy"

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Return an array to fill, mapped from its file; bfloat16 takes its bits as uint16."""
        path = self._path(name)
        values = np.lib.format.open_memmap(path, "w+", _numpy_dtype(dtype), shape)
        # So a full disk is an error here; later it would kill the process.
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        self.arrays[name] = {"offset": values.offset, "shape": list(shape), "dtype": dtype}
        return values

    def append(self, name: str, rows: np.ndarray, dtype: str = "") -> None:
        """Write rows behind those that the array has.

        dtype: if not that of `rows`: "bfloat16", whose bits are uint16, or "V36" for rows of 36
        bytes.
        """
        if name not in self.arrays:
            shape = [0, *rows.shape[1:]]
            dtype = dtype or str(rows.dtype)
            self.arrays[name] = {"offset": 0, "shape": shape, "dtype": dtype}
            self._open[name] = open(self._path(name), "wb")  # noqa: SIM115 - closed at the end
            self._write_header(name)
        self.arrays[name]["shape"][0] += len(rows)
        self._open[name].write(np.ascontiguousarray(rows).data)

    def _write_header(self, name: str) -> None:
        """Write the beginning of the file, which has the same length for any number of rows."""
        entry = self.arrays[name]
        file = self._open[name]
        header = {
            "descr": _numpy_dtype(entry["dtype"]).str,
            "fortran_order": False,
            "shape": tuple(entry["shape"]),
        }
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header)
        entry["offset"] = file.tell()

    def appended(self, name: str) -> np.ndarray:
        """Map the rows that an array has so far."""
        self._open[name].flush()
        return _array(self._partial, name, f"{name}.npy", **self.arrays[name]).rows()

    def drop(self, name: str) -> None:
        """Forget an array that grows, if it was begun."""
        if name in self._open:
            self._open.pop(name).close()
            del self.arrays[name]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self._commit()
        except OSError as failure:
            error = failure
        finally:
            for file in self._open.values():
                with contextlib.suppress(OSError):  # what a full disk did not take
                    file.close()
            shutil.rmtree(self._partial, ignore_errors=True)

        # Also an error of the block's own writes.
        if isinstance(error, OSError):
            what = f"the data could not be written ({error})"
            raise UserError(what, str(self.folder), "free some space") from error

    def _commit(self) -> None:
        """Give the files their names, then write the manifest, then delete the previous store."""
        self.arrays = {name: entry for name, entry in self.arrays.items() if name[0] != "."}
        for name, entry in self.arrays.items():
            if "file" not in entry:
                self._commit_array(name, entry)
        sync(self.folder)

        manifest: dict[str, Any] = {"format": FORMAT}
        for field in ("workload", "source", "facts", "splits", "arrays", "files"):
            manifest[field] = getattr(self, field)
        write_json(self.folder / MANIFEST, manifest)

        current = {Path(name).name for name in self.files}
        for old in self.folder.iterdir():
            if OURS.fullmatch(old.name) and old.name not in current:
                old.unlink()

    def _commit_array(self, name: str, entry: dict[str, Any]) -> None:
        path = self._path(name)
        if name in self._open:
            self._write_header(name)
            self._open[name].close()
        file = checksums(path)
        entry["file"] = f"store-{name}-{file['sha256'][:12]}.npy"
        self.files[entry["file"]] = file
        sync(path)
        os.replace(path, self.folder / entry["file"])


def _remove_if_dead(folder: Path) -> None:
    """Remove what a `prepare` left that was killed; its process number is in the folder's name."""
    # Another user's process, or no number.
    with contextlib.suppress(PermissionError, ValueError):
        try:
            os.kill(int(folder.stem.rpartition("-")[2]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
