"""Trials of `benchmark` and `tune` as forks of the test's own process, where torch is loaded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import PACKAGE, _child

Before = Callable[[list[str]], Any]


def forked_trials(project: Path, before: Before | None = None) -> Callable[[], None]:
    """For `run(..., before=forked_trials(project))`. before: called with a trial's words, in its process."""

    def put() -> None:
        kept: list[Any] = []
        trials = importlib.import_module(f"{PACKAGE}.engine.trials")

        def launch(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, int]:
            if (pid := os.fork()) == 0:
                os.environ.clear()
                os.environ.update(environment)
                fault = (lambda: before(words)) if before else None
                kept.extend((sys.stdout, sys.stderr))  # they own the numbers that the fork gives to its log
                os._exit(_child(project, tuple(words), folder, folder / "out", folder / "log", fault))
            _, status, usage = os.wait4(pid, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024

        trials.launch = launch

    return put
