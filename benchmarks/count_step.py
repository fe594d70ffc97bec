"""What one step of a training loop makes PyTorch and Python do: operators and calls, for `loop.py`.

Counts, unlike times, do not depend on what else the machine does. A step's counts are those of a
long training minus those of a short one, divided by the steps between: the start cancels out. They
cannot show an operator that is slow on both sides.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode


class Counts(NamedTuple):
    """What one step has."""

    operators: float  # that PyTorch dispatches, without those inside of another
    python_calls: float  # of functions in Python
    c_calls: float  # of functions in C, from Python


class Operators(TorchDispatchMode):
    """Counts the operators of forward, backward and update."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


class Calls:
    """Counts the calls that Python makes; a context manager."""

    def __init__(self) -> None:
        self.python = 0
        self.c = 0

    def __enter__(self) -> Calls:
        gc.disable()  # it would call Python when it likes
        sys.setprofile(self._notice)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _notice(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.c += 1


def count_step(train: Callable[[int], object], few: int, many: int) -> Counts:
    """Return the counts of one step. train: makes a new training of so many steps."""
    train(few)  # fills caches
    short = count_training(train, few)
    long = count_training(train, many)
    return Counts(*((b - a) / (many - few) for a, b in zip(short, long, strict=True)))


def count_training(train: Callable[[int], object], steps: int) -> Counts:
    """Count a whole training, twice: a count of operators would itself call Python."""
    with Operators() as operators:
        train(steps)
    with Calls() as calls:
        train(steps)
    return Counts(operators.count, calls.python, calls.c)
