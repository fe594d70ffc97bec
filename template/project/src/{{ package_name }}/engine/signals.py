"""SIGTERM and Ctrl-C: the loop saves after its step and stops."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """`received` is the signal that this process got, else 0. A second one ends it at once."""

    def __init__(self, is_main: bool):
        self.is_main = is_main
        self.received = 0
        self.previous = {number: signal.getsignal(number) for number in NUMBERS}

    def listen(self) -> None:
        """Receive the signals; call it again after a framework has set its own handlers."""
        for number in NUMBERS:
            signal.signal(number, self._receive)

    def restore(self) -> None:
        """Put the previous handlers back."""
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # No checkpoint is harmed: each one gets its name after it is complete.
        if self.received:
            os._exit(128 + number)
        self.received = number
        if self.is_main:
            name = signal.Signals(number).name
            print(f"{name}: saving after this step; once more to leave at once", file=sys.stderr)
