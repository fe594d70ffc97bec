"""Trials of `benchmark` and `tune` as forks of the test's own process, where torch is loaded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from running import PACKAGE, _child

Before = Callable[[dict[str, Any]], Any]


def forked_trials(project: Path, before: Before | None = None) -> Callable[[], None]:
    """For `run(..., before=forked_trials(project))`. before: called with a trial's settings, in it."""

    def put() -> None:
        kept: list[Any] = []
        trials = importlib.import_module(f"{PACKAGE}.measure.trials")

        def launch(loader: str, folder: Path) -> tuple[int, int]:
            if (pid := os.fork()) == 0:
                given = yaml.safe_load((folder / trials.SETTINGS).read_text())
                fault = (lambda: before(given)) if before else None
                kept.extend((sys.stdout, sys.stderr))  # they own the numbers that the fork gives to its log
                words, files = (loader,), (folder / "out", folder / "log")
                os._exit(_child(project, words, folder, *files, fault, "measure.trials"))
            _, status, usage = os.wait4(pid, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024

        trials.launch = launch

    return put


def forked_trainings(project: Path, before: Callable[[], Any] | None = None) -> Callable[[], None]:
    """The same for the trainings of a search; before: called in each of them first, and in the command."""

    def put() -> None:
        kept: list[Any] = []
        search = importlib.import_module(f"{PACKAGE}.measure.search")

        def launch(folder: Path, number: int) -> int:
            reads, writes = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(writes)
                os.dup2(reads, 0)
                kept.extend((sys.stdout, sys.stderr))
                words, files = (str(folder), str(number)), (folder / "out", folder / "log")
                os._exit(_child(project, words, Path.cwd(), *files, before, "measure.search_training"))
            os.close(reads)
            try:
                _, status = os.waitpid(pid, 0)
            finally:
                os.close(writes)
            return os.waitstatus_to_exitcode(status)

        search.launch = launch
        if before is not None:
            before()

    return put
