"""Compares all stored data with their checksums, beside the first steps of a run.

Data that are small are compared whenever they are opened. These are read once more, in a thread of the
main rank: it takes disk and a part of a core until it is through, and nothing in a run on the same data
afterwards. A damaged block ends the run with the file and the rows that it holds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..engine.errors import UserError
from ..engine.store import Store, verify

if TYPE_CHECKING:
    from ..engine.run import Run


class Hook:
    """A watcher of the loop: it only asks a flag between two steps."""

    trials = False

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._error: UserError | None = None
        self._thread: threading.Thread | None = None

    def start(self, run: Run) -> None:
        """Begins to read, on the main rank alone."""
        if run.project.distributed.is_main:
            work = (run.project.store,)
            self._thread = threading.Thread(target=self._compare, args=work, name="guard", daemon=True)
            self._thread.start()

    def _compare(self, store: Store) -> None:
        try:
            verify(store, stop=self._closed.is_set)
        except UserError as error:
            self._error = error

    def after_step(self, run: Run) -> None:
        """Ends the run where damage was found."""
        if self._error is not None:
            run.fail(self._error)

    def close(self, run: Run) -> None:
        """Ends the thread; what it has not read is read in the next run."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
