"""Verify the checksums of large datasets during the first steps of a run.

Small data are compared when they are opened. Larger data are read here, in a thread of rank 0. It
uses the disk and a part of a core until it has read all, or the run ends. Later runs skip a file
that was compared in the last 30 days and has not changed. A damaged file ends the run with an error
that names it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import digest, read_json, write_json
from ..engine.loading.store import Store

if TYPE_CHECKING:
    from ..engine.training.run import Run

VERIFIED = "verified.json"  # in the data folder: which files were compared, and when
VERIFY_DAYS = 30  # after so many days, a file is compared with its checksum again


class Hook:
    """Reads in a thread; the loop only checks a flag at each record."""

    trials = False

    def __init__(self) -> None:
        self._error: UserError | None = None

    def start(self, run: Run) -> None:
        """Start the thread, on rank 0 only."""
        if run.project.distributed.is_main:
            store = run.project.store
            thread = threading.Thread(
                target=self._compare, args=(store,), name="guard", daemon=True
            )
            thread.start()

    def _compare(self, store: Store) -> None:
        try:
            compare_files(store)
        except UserError as error:
            self._error = error
        except OSError as error:
            what = f"the disk cannot read ({error.strerror})"
            self._error = UserError(what, str(error.filename or store.folder), "check it")

    def before_record(self, run: Run, record: dict[str, Any]) -> None:
        """End the run on all ranks if a file is damaged."""
        run.project.distributed.on_all_ranks(self._check)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def compare_files(store: Store) -> None:
    """Compare files with the manifest's checksums; skip those that the record knows as unchanged.

    A file is unchanged while its size, modification time and inode stay the same. Raises
    `UserError` that names the damaged file.
    """
    record: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        record = read_json(store.folder / VERIFIED)
    if record.pop("seal", "") != digest(record):
        record = {}
    now = time.time()
    oldest = now - VERIFY_DAYS * 24 * 3600
    for name in store.files:
        status = (store.folder / name).stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        known_state, compared = record.get(name, (None, 0))
        if known_state == state and oldest < compared <= now:
            continue
        store.verify(name)
        record[name] = (state, now)
        # If the folder cannot be written, the file is compared each time.
        with contextlib.suppress(OSError):
            write_json(store.folder / VERIFIED, {**record, "seal": digest(record)})
