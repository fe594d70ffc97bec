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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 600.0  # seconds for all commands of an interpreter


class Command(NamedTuple):
    """A module's `main(words)`, in the folder `cwd`."""

    source: Path  # the folder that the module is imported from
    module: str
    words: Sequence[str]
    cwd: Path


def run_in(environment: Mapping[str, str | None], commands: Sequence[Command]) -> list[Any]:
    """Run the commands one after the other, and return their results. environment: added to this
    one; None removes a name."""
    from running import Result

    names = {**os.environ, **environment}
    kept = {name: value for name, value in names.items() if value is not None}
    listed = json.dumps(commands, default=str).encode()
    process = [sys.executable, __file__]
    done = subprocess.run(process, input=listed, env=kept, stdout=subprocess.PIPE, timeout=PATIENCE)
    results = []
    for number, code in enumerate(json.loads(done.stdout)):
        files = [commands[number].cwd / f"{name}{number}" for name in (".out", ".err")]
        results.append(
            Result(code, *(path.read_bytes().decode(errors="replace") for path in files))
        )
    return results


def _main() -> None:
    import torch  # noqa: F401 - which every fork would load for itself

    codes = []
    for number, (source, module, words, cwd) in enumerate(json.loads(sys.stdin.buffer.read())):
        folder = os.fsdecode(cwd.encode())  # where a name is not ASCII
        os.makedirs(folder, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            os.chdir(folder)
            for name, handle in ((".out", 1), (".err", 2)):
                os.dup2(os.open(f"{name}{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
            sys.path.insert(0, os.fsdecode(source.encode()))
            sys.exit(importlib.import_module(module).main(words))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    _main()
