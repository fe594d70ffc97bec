"""The store: named arrays in contiguous HDF5 files, and a manifest that says what they are.

The manifest holds the data's facts (sizes, scaler, vocabulary), the split borders, the byte offset of
each array and checksums of each file. It is written last, so a folder with a manifest is whole. Every
loader reads the same bytes at the same offsets: flipping `loader` needs no new `prepare`. An HDF5 file
that is there already stays where it is: the manifest names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError
from .files import checksums, sync_file, sync_folder, writable_folder, write_json

FORMAT = 1
MANIFEST = "manifest.json"
ALIGNMENT = 4096  # arrays start on a page, so that a mapped row never straddles one more page than it must


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

    def where(self, row: int, size: int) -> str:
        """The place of `size` bytes from `row` on, for an error."""
        return f"{self.path}, {self.name} rows {row} to {row + max(size // self.row_bytes, 1) - 1}"

    def rows(self) -> np.ndarray:
        """(N, *row) mapped copy-on-write: read when touched, and a read-only folder will do."""
        if 0 in self.shape:
            return np.empty(self.shape, self.stored)
        if self.offset is None:
            remedy = "use the loader chunk, or `prepare --dtype` to store it anew"
            raise UserError(
                f"dataset '{self.dataset}' is packed and cannot be mapped", str(self.path), remedy
            )
        return np.memmap(self.path, self.stored, mode="c", offset=self.offset, shape=self.shape)

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last), wherever they lie."""
        if self.offset is not None:
            return self.rows()[first:last]
        import h5py

        with h5py.File(self.path) as file:
            return file[self.dataset].astype(self.dtype)[first:last]


class Store:
    """A prepared data folder, opened for reading. Picklable: workers map the files by themselves."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.workload: str = manifest["workload"]
        self.facts: dict[str, Any] = manifest["facts"]
        self.splits: dict[str, list[int]] = manifest["splits"]
        self.source: dict[str, Any] = manifest["source"]
        self.files: dict[str, Any] = manifest["files"]
        self.arrays = {
            name: Array(
                name,
                folder / entry["file"],
                entry["offset"],
                tuple(entry["shape"]),
                entry["dtype"],
                entry.get("dataset", ""),
            )
            for name, entry in manifest["arrays"].items()
        }
        # Facts too: the same bytes under other targets, class names or characters are other data.
        known = [[entry["sha256"] for entry in self.files.values()], self.splits, self.facts]
        self.fingerprint = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def remember(self, run: Path) -> None:
        """temporary"""

    @classmethod
    def open(cls, folder: str | Path, workload: str | None = None) -> Store:
        """Reads the manifest and checks that its files are there with their sizes.

        Raises `UserError` for a missing, half-written, foreign or changed store.
        """
        folder, remedy = Path(folder), "run `prepare` again"
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError("no prepared data", str(folder), "run `prepare --input …` first") from None
        except (OSError, ValueError) as error:
            raise UserError(f"unreadable manifest ({error})", str(folder / MANIFEST), remedy) from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise UserError("not a data manifest of this project", str(folder / MANIFEST), remedy)
        if workload and manifest["workload"] != workload:
            what = f"the data were prepared for `{manifest['workload']}`, this project trains `{workload}`"
            raise UserError(what, str(folder), "prepare them here, or point data.path elsewhere")
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.exists():
                raise UserError("a file of the prepared data is missing", str(path), remedy)
            if path.stat().st_size != entry["bytes"]:
                what = f"{path.stat().st_size} bytes where the manifest says {entry['bytes']}"
                raise UserError(what, str(path), "the file was cut or changed: " + remedy)
        return cls(folder, manifest)


class StoreWriter:
    """Writes a store; a folder that had one keeps it until the new one is whole.

        with StoreWriter(folder, "tabular") as writer:
            writer.create("features", (rows, columns), "float32")[...] = values
            writer.facts, writer.splits = {...}, {"train": [0, 80], "validation": [80, 90], "test": [90, 100]}

    Leaving the block by an exception removes what was written.
    """

    def __init__(self, folder: str | Path, workload: str):
        self.folder, self.workload = Path(folder), workload
        self.facts: dict[str, Any] = {}
        self.splits: dict[str, list[int]] = {}
        self.source: dict[str, Any] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._others: dict[str, dict[str, Any]] = {}  # files that stay where they are

    def __enter__(self) -> StoreWriter:
        import h5py

        writable_folder(self.folder, "choose another data.path")
        for stale in self.folder.glob(".store-*.partial"):  # of a `prepare` that was killed
            if not _runs(stale.name[len(".store-") : -len(".partial")]):
                stale.unlink()
        self._partial = self.folder / f".store-{os.getpid()}.partial"
        self._file = h5py.File(self._partial, "w", alignment_threshold=1, alignment_interval=ALIGNMENT)
        return self

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """An h5py dataset to fill, contiguous and allocated at once; bfloat16 takes its bits as uint16."""
        import h5py

        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_obj_track_times(False)  # the same data are the same bytes, whenever they were prepared
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        kind = h5py.h5t.py_create(stored, logical=True)
        dataset = h5py.h5d.create(
            self._file.id, name.encode(), kind, h5py.h5s.create_simple(shape), properties
        )
        self._arrays[name] = {"offset": dataset.get_offset() or 0, "shape": list(shape), "dtype": dtype}
        return h5py.Dataset(dataset)

    def refer(self, name: str, array: Array) -> None:
        """Takes an array as it lies in another file, which is read once for its checksums."""
        path = str(array.path.resolve())
        if path not in self._others:
            self._others[path] = _file_entry(array.path)
        entry = {"file": path, "offset": array.offset, "shape": list(array.shape), "dtype": array.dtype}
        self._arrays[name] = {**entry, "dataset": array.dataset}

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._file.close()
            if error is None:
                self._commit()
        except OSError as failure:
            error = failure
        finally:
            self._partial.unlink(missing_ok=True)
        if isinstance(error, OSError):  # also from the block's own writes
            what = f"the data could not be written ({error})"
            raise UserError(what, str(self.folder), "free some space") from error

    def _commit(self) -> None:
        entry = _file_entry(self._partial)
        name = f"store-{entry['sha256'][:12]}.h5"
        sync_file(self._partial)
        os.replace(self._partial, self.folder / name)
        sync_folder(self.folder)
        manifest = {
            "format": FORMAT,
            "workload": self.workload,
            "source": self.source,
            "facts": self.facts,
            "splits": self.splits,
            "arrays": {array: {"file": name, **fields} for array, fields in self._arrays.items()},
            "files": {name: entry, **self._others},
        }
        write_json(self.folder / MANIFEST, manifest)
        for old in self.folder.glob(f"store-{'[0-9a-f]' * 12}.h5"):  # the manifest no longer names them
            if old.name != name and str(old.resolve()) not in self._others:
                old.unlink()


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # another user's, no number
        pass
    return True


def _file_entry(path: Path) -> dict[str, Any]:
    digest, blocks = checksums(path)
    return {"bytes": path.stat().st_size, "sha256": digest, "crc32": blocks}
