"""A program at a terminal of its own: what a person would see on the screen, and keys to press."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

COLUMNS = 80
ROWS = 30
DEADLINE = 60  # seconds until a screen that does not come is a failure
SETTLED = 0.02  # seconds without output after which a screen is drawn
DOWN = "\x1b[B"
ENTER = "\r"
CLEAR = "\x15"
# The sequences that prompt_toolkit writes to an xterm; all but the cursor's and the erasing ones
# are of no consequence for the text.
SEQUENCE = re.compile(
    r"\x1b\[([?>]?)([\d;]*)([A-Za-z])|\x1b[=>78]|\x1b\].*?(?:\x07|\x1b\\)|\x1b[()]B", re.DOTALL
)


class Screen:
    """The cells of a terminal after what was written to it; what is wider than it is lost."""

    def __init__(self) -> None:
        self.cells = [[" "] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0

    def write(self, text: str) -> str:
        """Shows `text`; returns an unfinished sequence at its end, for the next time."""
        while text:
            if text[0] == "\x1b":
                sequence = SEQUENCE.match(text)
                if sequence is None:
                    return text
                private, arguments, command = sequence.groups("")
                self.obey(command, arguments, private)
                text = text[sequence.end() :]
                continue
            self.put(text[0])
            text = text[1:]
        return ""

    def put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            if self.row == ROWS:
                self.cells = [*self.cells[1:], [" "] * COLUMNS]
                self.row = ROWS - 1
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " " and not unicodedata.combining(character):
            if self.column < COLUMNS:
                self.cells[self.row][self.column] = character
            wide = unicodedata.east_asian_width(character) in "WF"
            if wide and self.column + 1 < COLUMNS:
                self.cells[self.row][self.column + 1] = ""
            self.column += 1 + wide

    def obey(self, command: str, arguments: str, private: str) -> None:
        if private or not command:
            return
        numbers = [int(number or 0) for number in arguments.split(";")]
        count = numbers[0] or 1
        if command in "AB":
            self.row = min(max(self.row + (count if command == "B" else -count), 0), ROWS - 1)
        elif command in "CD":
            step = count if command == "C" else -count
            self.column = min(max(self.column + step, 0), COLUMNS - 1)
        elif command == "H":
            self.row = count - 1
            self.column = (numbers[1] or 1) - 1 if len(numbers) > 1 else 0
        elif command in "JK":
            everything = numbers[0] == 2
            first = 0 if everything else self.column
            self.cells[self.row][first:] = [" "] * (COLUMNS - first)
            if command == "J":
                for row in range(0 if everything else self.row + 1, ROWS):
                    self.cells[row] = [" "] * COLUMNS

    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]


class Terminal:
    """`command` in `folder`, at a screen of 80 by 30; close it by leaving the `with` block."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.screen = Screen()
        self.unread = ""
        self.folder = folder
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            # Without it prompt_toolkit asks where the cursor is, which no one here answers.
            environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
            os.execve(command[0], command, environment)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.descriptor)

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def until(
        self, what: str, there: Callable[[list[str]], bool], seconds: float = DEADLINE
    ) -> list[str]:
        """The lines of the screen as soon as `there` is true and nothing more is coming; fails,
        with the screen, where it never is."""
        end = time.monotonic() + seconds
        while True:
            lines = self.screen.lines()
            found = there(lines)
            if select.select([self.descriptor], [], [], SETTLED if found else 1)[0]:
                try:
                    data = os.read(self.descriptor, 65536)
                except OSError:  # the program ended
                    data = b""
                if data:
                    self.unread = self.screen.write(self.unread + data.decode(errors="replace"))
                    continue
                assert found, f"ended without {what}:\n" + "\n".join(lines)
            if found:
                return lines
            assert time.monotonic() < end, f"no {what} on the screen:\n" + "\n".join(lines)

    def shows(self, text: str, seconds: float = DEADLINE) -> list[str]:
        return self.until(repr(text), lambda lines: any(text in line for line in lines), seconds)
