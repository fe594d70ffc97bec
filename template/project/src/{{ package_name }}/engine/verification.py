"""Checksums of the stored data: one flipped bit loads silently, so each block is checked once by its crc32.

Training does it in the background of its first epoch, `doctor --verify` when asked. A file counts as
verified as long as its size, time of change and inode stay the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import UserError
from .files import BLOCK_BYTES, write_json
from .store import Store

RECORD = "verified.json"


def verify(store: Store, stop: Callable[[], bool] = bool, again: bool = False) -> int:
    """Compares all files with the manifest's checksums; returns the bytes that were read.

    stop: ends it early. again: also files that are known to be good. Raises `UserError` that names the
    file and the rows of the first damaged block.
    """
    record, total = _read_record(store.folder), 0
    for name, entry in store.files.items():
        path = store.folder / name
        state = _state(path)
        if record.get(name) == state and not again:
            continue
        for number, crc in enumerate(_crcs(path)):
            if stop():
                return total
            total += BLOCK_BYTES
            if number >= len(entry["crc32"]) or crc != entry["crc32"][number]:
                remedy = "copy the file again, or run `prepare` again"
                raise UserError("the stored data are damaged", _rows(store, path, number), remedy)
        record[name] = state
        with contextlib.suppress(
            UserError, OSError
        ):  # a folder that cannot be written: then once for each run
            write_json(store.folder / RECORD, record)
    return total


def _crcs(path: Path) -> Iterator[int]:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield zlib.crc32(buffer[:count])


def _state(path: Path) -> list[int]:
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _rows(store: Store, path: Path, block: int) -> str:
    """What lies in a block of a file: the rows of each array, or the file's own tables."""
    first, last, found = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES, []
    for array in store.arrays.values():
        if array.path != path:
            continue
        if array.offset is None:
            found.append(f"perhaps {array.name}")
            continue
        begin = max((first - array.offset) // array.row_bytes, 0)
        end = min(-(-(last - array.offset) // array.row_bytes), array.shape[0])
        if begin < end:
            found.append(f"{array.name} rows {begin} to {end - 1}")
    return f"{path}, {' or '.join(found) or 'its header'}"


class Verification:
    """`verify` in a thread beside the first epoch, in one of the run's processes."""

    def __init__(self, store: Store, main: bool = True):
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(store,), name="verification", daemon=True)
        if main:
            self._thread.start()

    def _run(self, store: Store) -> None:
        try:
            verify(store, self._stopped.is_set)
        except (UserError, OSError) as error:
            self._error = error

    @property
    def failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raises what was found so far."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
