"""Commands of rendered projects in an interpreter of its own, whose environment is there before
torch loads.

What torch and oneDNN read once, such as the instructions that they may use, cannot be changed in a
fork. One interpreter runs all commands of an environment, each in a fork, because loading torch
takes seconds.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = "FASTTRAIN_EXAMPLES"  # in the environment: figures are drawn, as of running.py
PATIENCE = 600.0  # seconds for all commands of an interpreter


class Command(NamedTuple):
    """A module's `main(words)`, in the folder `cwd`."""

    source: Path  # the folder that the module is imported from
    module: str
    words: Sequence[str]
    cwd: Path


class Result(NamedTuple):
    """As of running.py, which loads more than an interpreter for a few commands needs."""

    code: int
    out: str
    err: str

    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def run_in(environment: Mapping[str, str | None], commands: Sequence[Command]) -> list[Result]:
    """Runs the commands one after the other. environment: added to this one; None removes a
    name."""
    names = {**os.environ, **environment}
    kept = {name: value for name, value in names.items() if value is not None}
    listed = [
        [str(source), module, list(words), str(cwd)] for source, module, words, cwd in commands
    ]
    process = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(
        process, input=json.dumps(listed).encode(), env=kept, capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    codes = json.loads(done.stdout)
    return [
        Result(code, _text(command.cwd / f".out{number}"), _text(command.cwd / f".err{number}"))
        for number, (code, command) in enumerate(zip(codes, commands, strict=True))
    ]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "backslashreplace")


def _main() -> None:
    # What every fork would load for itself.
    import matplotlib.pyplot
    import torch._dynamo  # noqa: F401

    if EXAMPLES not in os.environ:  # drawing takes most of the time of a short run
        matplotlib.figure.Figure.savefig = unpainted  # type: ignore[assignment,method-assign]

    codes = []
    for number, (source, module, words, cwd) in enumerate(json.loads(sys.stdin.buffer.read())):
        source, cwd = (
            os.fsdecode(path.encode()) for path in (source, cwd)
        )  # where a name is not ASCII
        os.makedirs(cwd, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            os._exit(_child(source, module, words, cwd, number))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps(codes))


def unpainted(figure: Any, file: Any, **options: Any) -> None:
    """For `Figure.savefig`: an empty file."""
    if not hasattr(file, "write"):
        Path(file).touch()


def _child(source: str, module: str, words: list[str], cwd: str, number: int) -> int:
    os.chdir(cwd)
    for name, handle in ((".out", 1), (".err", 2)):
        os.dup2(os.open(f"{name}{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    sys.path.insert(0, source)
    try:
        return int(importlib.import_module(module).main(words) or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    _main()
