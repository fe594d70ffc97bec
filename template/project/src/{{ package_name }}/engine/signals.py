"""Signals: training saves after its step and stops; every other command cleans up and ends.

They are SIGTERM, Ctrl-C, SIGHUP (the terminal has closed) and SIGUSR1 (some schedulers send it
before a time limit). A signal that is ignored at the start, as `nohup` does, stays ignored.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
NUMBERS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]  # Windows has two
HANGUP = getattr(signal, "SIGHUP", None)
IMPORTING = "<frozen importlib._bootstrap>"  # the file of Python's own frames in an import


def listen(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let `handler` receive the signals, except for those that are ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def end(number: int, frame: FrameType | None) -> None:
    """End this process by an exception, so that unfinished files are removed.

    While a module is imported, it ends at once, because libraries may swallow an exception there or
    turn it into another one. A file that is unfinished then has a temporary name.
    """
    if number == HANGUP:
        leave_terminal()
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            os._exit(128 + number)
        frame = frame.f_back
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


class Signals:
    """`received` is the signal that this process got, else 0. A second one ends it at once."""

    def __init__(self, is_main: bool):
        self.is_main = is_main
        self.received = 0

    def listen(self) -> None:
        """Receive the signals; call it again after a framework has set its own handlers."""
        listen(self._receive)

    def restore(self) -> None:
        """Let a signal end the process again."""
        listen(end)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == HANGUP:
            return  # a terminal that closes may send it twice, or with SIGTERM
        if self.received not in (0, HANGUP):
            os._exit(128 + number)  # no checkpoint is harmed: it gets its name when it is complete
        self.received = number
        if number == HANGUP:
            leave_terminal()
        if self.is_main:
            name = signal.Signals(number).name
            print(f"{name}: saving after this step; send it again to exit at once", file=sys.stderr)


def leave_terminal() -> None:
    """Discard what is printed from here on: writing to a terminal that has closed is an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
