"""Verify the checksums of large datasets during the first steps of a run.

Small data are compared when they are opened. Larger data are read here, in a thread of rank 0. It
uses the disk and a part of a core until it has read all, or the run ends. Later runs skip a file
that was compared in the last 30 days and has not changed. A damaged file ends the run with an error
that names it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..engine.data.store import Store, verify
from ..engine.errors import UserError

if TYPE_CHECKING:
    from ..engine.run.run import Run


class Hook:
    """Reads in a thread; the loop only checks a flag between two steps."""

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
            verify(store)
        except UserError as error:
            self._error = error

    def after_step(self, run: Run) -> None:
        """End the run if a file is damaged."""
        if self._error is not None:
            run.fail(self._error)
