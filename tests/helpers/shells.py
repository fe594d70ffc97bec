"""Commands as a user's shell runs them, in the environment of the tests."""

import os
import subprocess
import sys
from pathlib import Path

# The environment of the tests, found by name as a user's active one is.
SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
for inherited in ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    SHELL.pop(inherited, None)  # of the `make test` around it


def shell(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=SHELL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
