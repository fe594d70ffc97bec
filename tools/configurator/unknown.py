"""Stand-ins for answers that are not known while a template is rendered."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

OPEN = "\ue000"  # private characters around the name of a typed text, which the page replaces
CLOSE = "\ue001"
MARK = re.compile(f"{OPEN}(\\w+){CLOSE}")
IMPOSSIBLE = f"{OPEN}impossible{CLOSE}"  # a text for answers that exclude each other


class Asked(Exception):
    """Jinja read an answer that is not known."""

    def __init__(self, atom: str):
        super().__init__(atom)
        self.atom = atom


class NotComputable(Exception):
    """A template does more with an answer than the page can."""


class Mark(str):
    """Stands for a text that a person types. It can be printed, and nothing else."""

    name: str
    is_filled: bool

    def __new__(cls, name: str, is_filled: bool = False) -> Mark:
        mark = super().__new__(cls, f"{OPEN}{name}{CLOSE}")
        mark.name = name
        mark.is_filled = is_filled
        return mark

    def __bool__(self) -> bool:
        if self.is_filled:
            return True
        raise NotComputable(f"a condition reads the text {self.name}")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotComputable(
            f"a template computes with the text {self.name}: add a line to COMPUTED"
        )

    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __contains__ = __len__ = __getitem__ = __iter__ = __mod__ = __mul__ = _refuse
    format = replace = lower = upper = strip = lstrip = rstrip = split = _refuse
    title = capitalize = startswith = endswith = join = find = count = isprintable = _refuse
    __hash__ = str.__hash__


class Several(list[str]):
    """The answer to a question with several choices: tells which of them a template asks for."""

    def __init__(self, question: str, choices: list[str], ask: Callable[[str], Any]):
        super().__init__()
        self.question = question
        self.choices = choices
        self.ask = ask

    def __contains__(self, choice: object) -> bool:
        return bool(self.ask(f"{self.question}.{choice}"))

    def __bool__(self) -> bool:
        return any(choice in self for choice in self.choices)

    def __eq__(self, other: object) -> bool:
        return not self if other == [] else self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_: Any) -> Any:
        raise NotComputable(f"a template goes through all {self.question}: add a line to COMPUTED")

    __iter__ = __len__ = __getitem__ = __reversed__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = copy = count = index = _refuse


class Number(float):
    """A typed number: it is printed, and nothing decides by it."""

    def _refuse(self, *_: Any) -> Any:
        raise NotComputable("a template computes with gpu_memory_gb: add a line to COMPUTED")

    __lt__ = __gt__ = __le__ = __ge__ = __add__ = __mul__ = __truediv__ = _refuse
