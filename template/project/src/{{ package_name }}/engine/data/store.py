"""The prepared dataset: named arrays, each a file of its bytes, and a manifest of them.

The manifest holds the metadata of the data (sizes, scaler, vocabulary), the borders of the splits,
the place of each array, and the size and sha256 of each file. A hash of the manifest itself seals
it. It is written last, so a folder with a manifest is complete. Every loader reads the same bytes
at the same offsets, so another `loader` needs no new `prepare`. An HDF5 file of the user is not
copied: the manifest has its path.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import UserError
from ..files import digest, exists, lock, read_json, sha256, sync, write_json
from ..runs import version_of

FORMAT = 5  # goes up when the manifest, an array or the fingerprint means something else
MANIFEST = "manifest.json"
REMEMBERED = "data.json"
OURS = "store-*-" + 12 * "[0-9a-f]" + ".bin"  # the files of arrays, as a pattern of `glob`
SMALL_BYTES = 64 << 20  # up to here, comparing all checksums takes less time than importing torch
SYNTHETIC = "synthetic"  # the kind, and the folder, of data that `train` makes where there are none
AGAIN = "run `prepare` again; for synthetic data, remove the folder and run `train`"


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
    shape: Sequence[int]
    dtype: str
    dataset: str = ""

    @property
    def stored(self) -> np.dtype:
        """The numpy dtype of the bytes; numpy has no bfloat16, so its bits are uint16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.stored.itemsize

    def rows(self) -> np.ndarray:
        """Map (N, *row) copy-on-write: read when touched, also from a read-only folder."""
        if 0 in self.shape:
            return np.empty(self.shape, self.stored)
        if self.offset is None:
            what = f"dataset '{self.dataset}' is packed and cannot be mapped"
            remedy = "use the loader chunk, or `prepare --dtype` to store it again"
            raise UserError(what, str(self.path), remedy)
        try:
            return np.memmap(
                self.path, self.stored, mode="c", offset=self.offset, shape=tuple(self.shape)
            )
        except (FileNotFoundError, ValueError):  # there is no file, or it is too short
            what = f"the rows of '{self.name}' are not here"
            remedy = "this needs the prepared data: name them with --data.path"
            raise UserError(what, str(self.path), remedy) from None


class Damaged(UserError):
    """A manifest is not what `prepare` wrote, or there is none."""


class Store:
    """A prepared data folder, opened for reading. Picklable: each worker maps the files itself."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """Raises `UserError` if this project cannot read the manifest, whose file is `path`."""
        number = manifest.get("format", FORMAT)
        if number != FORMAT:
            what = f"the data are of format {number}, this project reads {FORMAT}"
            remedy = f"to continue a run, go back to {version_of(path.parent)}; else {AGAIN}"
            raise UserError(what, str(path), remedy)
        # A flipped bit in JSON would be another number or name.
        damaged = Damaged("the manifest is damaged", str(path), AGAIN)
        if manifest.get("seal") != digest({**manifest, "seal": ""}):
            raise damaged
        self.folder = path.parent
        self.resident: dict[str, Any] = {}  # rows that a loader keeps on the device, by array
        self.manifest = manifest
        self.arrays: dict[str, Array] = {}
        places = {}
        try:
            self.workload = manifest["workload"]
            self.facts = dict(manifest["facts"])
            self.splits = manifest["splits"]
            self.source = dict(manifest["source"])
            self.files = manifest["files"]
            for name, entry in manifest["arrays"].items():
                fields = dict(entry)
                file = fields.pop("file")
                array = Array(name, self.folder / file, **fields)
                self.arrays[name] = array
                # Anybody can seal a manifest. An HDF5 file may be elsewhere, and checks itself.
                end = (array.offset or 0) + array.shape[0] * array.row_bytes
                is_own = Path(file).name == file and 0 <= end <= self.files[file]["bytes"]
                if not is_own and not array.dataset:
                    raise damaged
                # The path of an HDF5 file may change.
                places[name] = {**entry, "file": self.files[file]["sha256"]}
            for borders in self.splits.values():
                range(*borders)  # raises TypeError for what is no number of a row
        except Exception:  # from any value of another type
            raise damaged from None

        # The same bytes with other targets, class names or characters are other data.
        self.fingerprint = digest([places, self.splits, self.facts])[:16]

    @classmethod
    def open(cls, folder: str | Path, workload: str | None = None) -> Store:
        """Read the manifest; check that its files exist with their sizes, small ones bit for bit.

        Raises `UserError` for missing, incomplete, foreign, changed or damaged data.
        """
        folder = Path(folder)
        path = folder / MANIFEST
        if not exists(path):
            raise UserError("no prepared data", str(folder), "run `prepare --input …` first")
        store = cls(path, read_json(path))
        if workload and store.workload != workload:
            prepared = f"the data were prepared for `{store.workload}`"
            what = f"{prepared}, this project trains `{workload}`"
            raise UserError(what, str(folder), "prepare them here, or point data.path elsewhere")

        num_bytes = sum(entry["bytes"] for entry in store.files.values())
        for name in store.files:
            store.verify(name, compare=num_bytes <= SMALL_BYTES)
        return store

    def verify(self, name: str, compare: bool = True) -> None:
        """Check the size of a file, and its checksum: a flipped bit would load silently.

        Raises `UserError` if the file is damaged or missing.
        """
        entry = self.files[name]
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            what = "the file was cut, changed or removed"
        elif compare and sha256(path) != entry["sha256"]:
            what = "the stored data are damaged"
        else:
            return
        raise UserError(what, str(path), f"copy it again, or {AGAIN}")

    def remember(self, run: Path) -> None:
        """Keep the manifest in the run's folder."""
        write_json(run / REMEMBERED, self.manifest)

    @classmethod
    def was_synthetic(cls, run: Path) -> bool:
        """Whether a run was trained on synthetic data, or has no record of its data.

        Raises `UserError` if another version of the project made the run.
        """
        try:
            return bool(cls.remembered(run).source.get("kind") == SYNTHETIC)
        except Damaged:
            return True

    @classmethod
    def remembered(cls, run: Path) -> Store:
        """Return the data that a run was trained on, without rows."""
        path = run / REMEMBERED
        return cls(path, read_json(path))


class StoreWriter:
    """Writes a store; a folder that had one keeps it until the new one is complete.

        with StoreWriter(folder, "tabular") as writer:
            writer.append("features", values)  # (rows, columns), again for further rows
            writer.facts = {...}
            writer.splits = {"train": [0, 80], "validation": [80, 90], "test": [90, 100]}

    An array whose name begins with a dot is deleted at the end of the block. An exception in the
    block removes what was written.
    """

    def __init__(self, folder: str | Path, workload: str):
        self.folder = Path(folder)
        self.workload = workload
        self.facts: dict[str, Any] = {}
        self.splits: dict[str, list[int]] = {}
        self.source: dict[str, Any] = {}
        self.arrays: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self._partial = self.folder / ".store.partial"
        self._open: dict[str, BinaryIO] = {}  # files of arrays that grow
        self._closing = ExitStack()

    def __enter__(self) -> StoreWriter:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._closing.enter_context(lock(self.folder, "the data folder"))
        shutil.rmtree(self._partial, ignore_errors=True)  # a `prepare` that was killed has left it
        self._partial.mkdir()
        self._closing.callback(shutil.rmtree, self._partial)
        self._closing.callback(self._remove_unnamed)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._closing:
            if error is None:
                self._commit()

    def path(self, name: str) -> Path:
        """The file of an array until the end of the block."""
        return self._partial / f"{name}.bin"

    def append(self, name: str, rows: np.ndarray, dtype: str = "") -> None:
        """Write rows behind those that the array has.

        dtype: if not that of `rows`: "bfloat16", whose bits are uint16, or "V36" for rows of 36
        bytes.
        """
        if name not in self.arrays:
            shape = [0, *rows.shape[1:]]
            dtype = dtype or str(rows.dtype)
            self.arrays[name] = {"offset": 0, "shape": shape, "dtype": dtype}
            file = open(self.path(name), "wb")  # noqa: SIM115 - closed at the end
            self._open[name] = self._closing.enter_context(file)
        self.arrays[name]["shape"][0] += len(rows)
        self._open[name].write(np.ascontiguousarray(rows).data)

    def appended(self, name: str) -> np.ndarray:
        """Map the rows that an array has so far."""
        self._open[name].flush()
        return Array(name, self.path(name), **self.arrays[name]).rows()

    def _commit(self) -> None:
        """Give the files their names, then write the manifest."""
        for file in self._open.values():
            file.close()
        self.arrays = {name: entry for name, entry in self.arrays.items() if name[0] != "."}
        for name, entry in self.arrays.items():
            if "file" in entry:
                continue  # it stays where it is
            path = self.path(name)
            described = size_and_hash(path)
            entry["file"] = f"store-{name}-{described['sha256'][:12]}.bin"
            self.files[entry["file"]] = described
            sync(path)
            os.replace(path, self.folder / entry["file"])
        sync(self.folder)

        manifest: dict[str, Any] = {"format": FORMAT, "seal": ""}
        for field in ("workload", "source", "facts", "splits", "arrays", "files"):
            manifest[field] = getattr(self, field)
        manifest["seal"] = digest(manifest)
        write_json(self.folder / MANIFEST, manifest)

    def _remove_unnamed(self) -> None:
        """Delete arrays that the manifest does not name: the previous ones, or unfinished ones."""
        named = read_json(self.folder / MANIFEST).get("files", {})
        for path in self.folder.glob(OURS):
            if path.name not in named:
                path.unlink()


def check_folder(folder: str, *sources: str | None) -> Path:
    """Return the folder that `prepare` writes.

    sources: the input, which may be in it. Raises `UserError` if there is anything else but
    prepared data, among which new data would be, or which they would replace.
    """
    path = Path(folder)
    manifest = read_json(path / MANIFEST)
    inputs = [name for source in sources for name in Path(source or "").parts]
    if not manifest:
        inputs.append(MANIFEST)  # a damaged one may be replaced, too
    for other in sorted(path.glob("[!.]*")):
        is_data = other.match(OURS) or exists(other / MANIFEST)
        if "seal" not in manifest and not is_data and other.name not in inputs:
            what = f"the folder has other files, such as {other.name}"
            raise UserError(what, f"--data.path {folder}", "name a new or an empty folder")
    return path


def size_and_hash(path: Path) -> dict[str, Any]:
    """Return what a manifest knows of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
