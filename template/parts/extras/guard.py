"""Verify the checksums of large datasets during the first steps of a run.

Small datasets are verified whenever they are opened. This hook reads larger ones in a thread of
rank 0. It uses the disk and part of a core until all files are read. Later runs skip a file that
has not changed, for 30 days. A damaged file ends the run with an error that names it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..engine.errors import UserError
from ..engine.store import Store, verify

if TYPE_CHECKING:
    from ..engine.run import Run


class Hook:
    """Reads in a thread; the loop only checks a flag between two steps."""

    trials = False

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._error: UserError | None = None
        self._thread: threading.Thread | None = None

    def start(self, run: Run) -> None:
        """Start the thread, on rank 0 only."""
        if run.project.distributed.is_main:
            store = run.project.store
            self._thread = threading.Thread(
                target=self._compare, args=(store,), name="guard", daemon=True
            )
            self._thread.start()

    def _compare(self, store: Store) -> None:
        try:
            verify(store, stop=self._closed.is_set)
        except UserError as error:
            self._error = error

    def after_step(self, run: Run) -> None:
        """End the run if a file is damaged."""
        if self._error is not None:
            run.fail(self._error)

    def close(self, run: Run) -> None:
        """Stop the thread; the next run reads the remaining files."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
