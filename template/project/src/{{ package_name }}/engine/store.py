"""The store: named arrays, each a `.npy` file, and a manifest that says what they are.

The manifest holds the data's facts (sizes, scaler, vocabulary), the split borders, where each array
lies and checksums of each file. It is written last, so a folder with a manifest is whole. Every loader
reads the same bytes at the same offsets: flipping `loader` needs no new `prepare`. An HDF5 file that
somebody else wrote stays where it is: the manifest names it.
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

FORMAT = 3
"""Of the manifest. In 1 all arrays lay in one HDF5 file, at offsets as well: it is still read. 3 is that of
tokens of 8 bits alone, in which a document ends with byte 255; all else is written as 2."""

RULE = 2
"""Of the fingerprint. What a fingerprint is made of changes under a new number only, and a store keeps
the rule that it was prepared with: else a run would take its own data for other ones."""

MANIFEST, VERIFIED, REMEMBERED = "manifest.json", "verified.json", "data.json"
OURS = re.compile(r"store-(.+-)?[0-9a-f]{12}\.(npy|h5)")
SMALL_BYTES = 64 << 20  # up to here, comparing all checksums takes less than importing torch
AGAIN = "run `prepare` again"
SYNTHETIC = "synthetic"  # the kind of data that a training makes where nothing was prepared, and their folder


@dataclass(frozen=True)
class Array:
    """One named array: `shape[0]` rows in `dtype` (a numpy name, or "bfloat16") at `offset` bytes of `path`.

    offset: None where the bytes in the file are not those in memory: packed, in pieces, or of the other
    byte order; then only HDF5 can read them, from `dataset`.
    """

    name: str
    path: Path
    offset: int | None
    shape: tuple[int, ...]
    dtype: str
    dataset: str = ""

    @property
    def stored(self) -> np.dtype:
        """The numpy dtype that holds the bytes; numpy has no bfloat16, so its bits travel as uint16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.stored.itemsize

    def rows(self) -> np.ndarray:
        """(N, *row) mapped copy-on-write: read when touched, and a read-only folder will do."""
        if 0 in self.shape:
            return np.empty(self.shape, self.stored)
        if self.offset is None:
            what = f"dataset '{self.dataset}' is packed and cannot be mapped"
            remedy = "use the loader chunk, or `prepare --dtype` to store it anew"
            raise UserError(what, str(self.path), remedy)
        try:
            return np.memmap(self.path, self.stored, mode="c", offset=self.offset, shape=self.shape)
        except FileNotFoundError:
            remedy = "this needs the prepared data: name them with --data.path"
            raise UserError(f"the rows of '{self.name}' are not here", str(self.path), remedy) from None

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last)."""
        return self.rows()[first:last]


class Store:
    """A prepared data folder, opened for reading. Picklable: workers map the files by themselves."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Raises `UserError` for a manifest, which stands in `path`, that this project cannot read."""
        if not isinstance(number := manifest.get("format"), int):
            raise UserError("unreadable manifest", str(path), AGAIN)
        rule = manifest.get("rule", 1)
        if number > FORMAT or rule > RULE:
            what = f"the data are of format {number}, rule {rule}; this project knows {FORMAT} and {RULE}"
            raise UserError(what, str(path), "`copier update` the project, or " + AGAIN)
        self.folder, self.manifest = path.parent, manifest
        self.workload: str = manifest["workload"]
        self.facts: dict[str, Any] = manifest["facts"]
        self.splits: dict[str, list[int]] = manifest["splits"]
        self.source: dict[str, Any] = manifest["source"]
        self.files: dict[str, Any] = manifest["files"]
        self.arrays = {name: _array(path.parent, name, **entry) for name, entry in manifest["arrays"].items()}
        # Manifests of format 1 do not name their rule: runs know such data by either.
        rules = [manifest["rule"]] if "rule" in manifest else [2, 1]
        self.fingerprints = [self._fingerprint(rule) for rule in rules]
        self.fingerprint = self.fingerprints[0]

    @property
    def again(self) -> str:
        """What makes these data again."""
        if self.source.get("kind") == SYNTHETIC:
            return f"remove {self.folder}: `train` makes the synthetic data again"
        return AGAIN

    def _fingerprint(self, rule: int) -> str:
        known = [[entry["sha256"] for entry in self.files.values()], self.splits]
        if rule > 1:  # the same bytes under other targets, class names or characters are other data
            known.append(self.facts)
        return hashlib.sha256(json.dumps(known, sort_keys=rule > 1).encode()).hexdigest()[:16]

    @classmethod
    def open(cls, folder: str | Path, workload: str | None = None) -> Store:
        """Reads the manifest, checks that its files are there with their sizes, and small ones bit for bit.

        Raises `UserError` for a missing, half-written, foreign, changed or damaged store.
        """
        folder = Path(folder)
        if not (folder / MANIFEST).exists():
            remedy = "run `prepare --input …` first"
            if folder.name == SYNTHETIC:
                remedy = "`train` without --data.path makes the synthetic data"
            raise UserError("no prepared data", str(folder), remedy)
        store = cls(folder / MANIFEST, read_json(folder / MANIFEST))
        if workload and store.workload != workload:
            what = f"the data were prepared for `{store.workload}`, this project trains `{workload}`"
            raise UserError(what, str(folder), "prepare them here, or point data.path elsewhere")
        for name, entry in store.files.items():
            path = folder / name
            size = path.stat().st_size if path.exists() else "no"
            if size != entry["bytes"]:
                what = f"{size} bytes where the manifest says {entry['bytes']}"
                raise UserError(what, str(path), "the file was cut, changed or removed: " + store.again)
        if sum(entry["bytes"] for entry in store.files.values()) <= SMALL_BYTES:
            verify(store)
        return store

    def remember(self, run: Path) -> None:
        """Keeps in the run's folder what the data are, without their rows; phases may have several."""
        known = read_json(run / REMEMBERED)
        if known.get(self.fingerprint) != self.manifest:
            write_json(run / REMEMBERED, known | {self.fingerprint: self.manifest})

    @classmethod
    def remembered(cls, run: Path, fingerprint: str | None = None) -> Store | None:
        """The data that a run was trained on, without rows; None where the run does not remember them.

        fingerprint: of which, where its phases had several; the last without one.
        """
        path = run / REMEMBERED
        stores = [cls(path, manifest) for manifest in read_json(path).values()]
        fitting = (store for store in reversed(stores) if fingerprint in (None, *store.fingerprints))
        return next(fitting, None)


def _array(folder: Path, name: str, file: str, shape: list[int], **fields: Any) -> Array:
    return Array(name, folder / file, shape=tuple(shape), **fields)


def verify(store: Store, again: bool = False, stop: Callable[[], bool] = lambda: False) -> int:
    """Compares files with the manifest's checksums, for a flipped bit loads silently; returns the bytes read.

    A file that was compared counts as good while its size, time of change and inode stay the same.
    again: compares also those. stop: ends it early. Raises `UserError` that names the file and the
    place of the first damaged block.
    """
    record, total = read_json(store.folder / VERIFIED), 0
    for name, entry in store.files.items():
        path = store.folder / name
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        if record.get(name) == state and not again:
            continue
        try:
            for number, block in enumerate(blocks(path)):
                if stop():
                    return total
                total += len(block)
                if [zlib.crc32(block)] != entry["crc32"][number : number + 1]:
                    where = f"{path}, block {number + 1} of {BLOCK_BYTES >> 20} MB"
                    raise UserError(
                        "the stored data are damaged", where, "copy the file again, or " + store.again
                    )
        except OSError as error:
            raise UserError(f"the disk cannot read ({error.strerror})", str(path), "check it") from error
        record[name] = state
        with contextlib.suppress(OSError):  # a folder that cannot be written: then each time
            write_json(store.folder / VERIFIED, record)
    return total


class StoreWriter:
    """Writes a store; a folder that had one keeps it until the new one is whole.

        with StoreWriter(folder, "tabular") as writer:
            writer.create("features", (rows, columns), "float32")[...] = values
            writer.facts, writer.splits = {...}, {"train": [0, 80], "validation": [80, 90], "test": [90, 100]}

    `append` takes rows as they come, for an array whose length shows at its end; one whose name begins with a
    dot goes at the end of the block. Leaving it by an exception removes what was written.
    """

    def __init__(self, folder: str | Path, workload: str):
        self.folder, self.workload, self.format = Path(folder), workload, 2
        self.facts: dict[str, Any] = {}
        self.splits: dict[str, list[int]] = {}
        self.source: dict[str, Any] = {}
        self.arrays: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self._open: dict[str, BinaryIO] = {}  # of arrays that grow

    def __enter__(self) -> StoreWriter:
        writable_folder(self.folder, "choose another data.path")
        for stale in self.folder.glob(".store-*.partial"):  # of a `prepare` that was killed
            with contextlib.suppress(PermissionError, ValueError):  # another user's process, or no number
                try:
                    os.kill(int(stale.stem.rpartition("-")[2]), 0)
                except ProcessLookupError:
                    shutil.rmtree(stale, ignore_errors=True)
        self._partial = self.folder / f".store-{os.getpid()}.partial"
        self._partial.mkdir(exist_ok=True)
        return self

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """An array to fill, mapped from its file; bfloat16 takes its bits as uint16."""
        array = Array(name, self._partial / f"{name}.npy", None, shape, dtype)
        values = np.lib.format.open_memmap(array.path, "w+", array.stored, shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here; later it would kill the process
            with open(array.path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, array.path.stat().st_size)
        self.arrays[name] = {"offset": values.offset, "shape": list(shape), "dtype": dtype}
        return values

    def append(self, name: str, rows: np.ndarray, dtype: str = "") -> None:
        """Writes rows behind those that the array has. dtype: if not that of `rows`, "bfloat16", whose bits
        are uint16, or "V36" for rows of 36 bytes."""
        if name not in self.arrays:
            shape = [0, *rows.shape[1:]]
            self.arrays[name] = {"offset": 0, "shape": shape, "dtype": dtype or str(rows.dtype)}
            self._open[name] = open(self._partial / f"{name}.npy", "wb")  # noqa: SIM115 - until it is whole
            self._write_header(name)
        self.arrays[name]["shape"][0] += len(rows)
        self._open[name].write(np.ascontiguousarray(rows).data)

    def _write_header(self, name: str) -> None:
        """At the beginning of the file: as long for any number of rows."""
        fields, file = self.arrays[name], self._open[name]
        kind = "uint16" if fields["dtype"] == "bfloat16" else fields["dtype"]
        header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": tuple(fields["shape"])}
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header)
        fields["offset"] = file.tell()

    def appended(self, name: str) -> np.ndarray:
        """The rows of an array so far, mapped."""
        self._open[name].flush()
        fields = self.arrays[name]
        return Array(name, self._partial / f"{name}.npy", **fields | {"shape": tuple(fields["shape"])}).rows()

    def drop(self, name: str) -> None:
        """Forgets an array that grows, if it was begun."""
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
        if isinstance(error, OSError):  # also from the block's own writes
            what = f"the data could not be written ({error})"
            raise UserError(what, str(self.folder), "free some space") from error

    def _commit(self) -> None:
        self.arrays = {name: fields for name, fields in self.arrays.items() if name[0] != "."}
        for name, fields in self.arrays.items():
            if "file" not in fields:
                path = self._partial / f"{name}.npy"
                if name in self._open:
                    self._write_header(name)
                    self._open[name].close()
                entry = checksums(path)
                fields["file"] = f"store-{name}-{entry['sha256'][:12]}.npy"
                self.files[fields["file"]] = entry
                sync(path)
                os.replace(path, self.folder / fields["file"])
        sync(self.folder)
        names = ("workload", "source", "facts", "splits", "arrays", "files")
        manifest = {name: getattr(self, name) for name in names}
        write_json(self.folder / MANIFEST, {"format": self.format, "rule": RULE, **manifest})
        kept = {Path(name).name for name in self.files}
        for old in self.folder.iterdir():  # the manifest no longer names it
            if OURS.fullmatch(old.name) and old.name not in kept:
                old.unlink()
