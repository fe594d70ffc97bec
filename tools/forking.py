"""Trials of `benchmark` and `tune`, and files, as forks of the test's own process, where torch is
loaded."""

import importlib
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import PACKAGE, PATIENCE, Before, Result, Running, _child


def forked_trials(
    project: Path, before: Callable[[dict[str, Any]], Any] | None = None
) -> Callable[[], None]:
    """For `run(..., before=forked_trials(project))`. before: called with a trial's settings, in
    it."""

    def put() -> None:
        trials: Any = importlib.import_module(f"{PACKAGE}.measure.trials")

        def launch(loader: str, folder: Path) -> tuple[int, int]:
            pid = os.fork()
            if pid == 0:
                given = yaml.safe_load((folder / trials.SETTINGS).read_text())
                fault = (lambda: before(given)) if before else None
                files = (folder / "out", folder / "log")
                os._exit(_child(project, (loader,), folder, *files, fault, "measure.trials"))
            _, status, usage = os.wait4(pid, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024

        trials.launch = launch

    return put


def forked_trainings(project: Path, before: Before = None) -> Callable[[], None]:
    """The same for the trainings of a search; before: called in each of them first, and in the
    command."""

    def put() -> None:
        search: Any = importlib.import_module(f"{PACKAGE}.measure.search")

        def launch(folder: Path, number: int) -> int:
            reads, writes = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(writes)
                os.dup2(reads, 0)
                words = (str(folder), str(number))
                files = (folder / "out", folder / "log")
                os._exit(
                    _child(project, words, Path.cwd(), *files, before, "measure.search_training")
                )
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


def run_pytest(project: Path, *words: str, before: Before = None) -> Result:
    """Runs the own tests of a project in a fork; before: called in it first."""

    def child() -> None:
        os.environ.pop("PYTEST_ADDOPTS", None)
        for name in ("conftest", "train"):
            sys.modules.pop(name, None)
        if before is not None:
            before()
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={project}"]
        sys.exit(pytest.main([*options, f"--basetemp={project}/temporary", *words]))

    return Running(project, (), project, child).wait(2 * PATIENCE)


def forget(file: Path) -> None:
    """Drops loaded modules with the names of those next to a file, or in the folder above it."""
    folders = (file.parent, file.parent.parent)
    names = {path.stem for folder in folders for path in folder.glob("*.py")}
    for name in names & set(sys.modules):
        del sys.modules[name]


def run_file(file: Path, *words: str, cwd: Path, before: Before = None) -> Result:
    """Runs `python FILE WORDS` in the folder `cwd`; before: called in the fork first."""

    def child() -> None:
        sys.argv = [str(file), *words]
        sys.path.insert(0, str(file.parent))
        forget(file)
        if before is not None:
            before()
        runpy.run_path(str(file), run_name="__main__")
        sys.exit()

    return Running(file.parent, (), cwd, child).wait(2 * PATIENCE)


class ForkedSide:
    """A side of `experiment`, for `subprocess.Popen`: no interpreter that imports torch first."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        *_, script, package, folder = command
        requests = os.pipe()
        answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(requests[0], 0)
            os.dup2(answers[1], 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for number in (*requests, *answers):
                os.close(number)
            os.environ.update(env)
            for name in [name for name in sys.modules if name.split(".")[0] == package]:
                del sys.modules[name]
            sys.path[0] = f"{folder}/src"
            sys.stdin = os.fdopen(0)
            runpy.run_path(script)["main"](package, folder)
            os._exit(0)
        os.close(requests[0])
        os.close(answers[1])
        self.stdin = os.fdopen(requests[1], "w")
        self.stdout = os.fdopen(answers[0])

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def forked_sides() -> None:
    """For `run(..., before=forked_sides)`: both sides of `experiment` are forks."""
    popen = subprocess.Popen

    def begin(command: list[str], **options: Any) -> Any:
        if any(str(word).endswith("side.py") for word in command):
            return ForkedSide(command, options["env"])
        return popen(command, **options)

    subprocess.Popen = begin  # type: ignore[assignment,misc]
