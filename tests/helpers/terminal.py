"""A program at a terminal of its own: what a person would see on the screen, and keys to press."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
from rendering import questions

COLUMNS = 80
ROWS = 30
DEADLINE = 300  # seconds until a screen that does not come is a failure
SETTLED = 0.02  # seconds without output after which a screen is drawn
DOWN = "\x1b[B"
ENTER = "\r"
CLEAR = "\x15"


class Terminal:
    """`command` in `folder`, at a screen of 80 by 30; close it by leaving the `with` block."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.folder = folder
        # Without the last one, prompt_toolkit asks where the cursor is, which no one here answers.
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = pexpect.spawn(
            command[0], command[1:], cwd=str(folder), env=environment, dimensions=(ROWS, COLUMNS)
        )
        self.process.delaybeforesend = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close(force=True)

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def press(self, keys: str) -> None:
        self.process.send(keys)

    def until(
        self, what: str, there: Callable[[list[str]], bool], seconds: float = DEADLINE
    ) -> list[str]:
        """The lines of the screen as soon as `there` is true and nothing more is coming; fails,
        with the screen, where it never is."""
        end = time.monotonic() + seconds
        while True:
            lines = self.lines()
            found = there(lines)
            try:
                output = self.process.read_nonblocking(65536, SETTLED if found else 1)
                self.stream.feed(output)
                continue
            except pexpect.TIMEOUT:
                pass
            except pexpect.EOF:
                assert found, f"ended without {what}:\n" + "\n".join(lines)
            if found:
                return lines
            assert time.monotonic() < end, f"no {what} on the screen:\n" + "\n".join(lines)

    def shows(self, text: str, seconds: float = DEADLINE) -> list[str]:
        return self.until(repr(text), lambda lines: any(text in line for line in lines), seconds)


def asked(interview: Terminal, question: str) -> None:
    """Holds that the whole help of `question` is on the screen, each line of its own."""
    first, *others = questions()[question]["help"].strip().splitlines()

    def whole(lines: list[str]) -> bool:
        starts = [number + 1 for number, line in enumerate(lines) if line.endswith(first)]
        return any(lines[start : start + len(others)] == others for start in starts)

    interview.until("\n".join([first, *others]), whole)
