"""The whole way of a user, in a few minutes: render the default project, train, evaluate, look at the report.

python tools/demo.py build/demo
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from budget import DEFAULT, measure
from copier import run_copy

ROOT = Path(__file__).resolve().parent.parent
TRAIN = [
    "--model.width",
    "256",
    "--model.depth",
    "4",
    "--training.epochs",
    "80",
]  # about a minute on two cores


def main(folder: Path) -> None:
    """Renders into `folder`, emptying it first."""
    shutil.rmtree(folder, ignore_errors=True)
    step(f"rendering the default project into {folder}")
    begun = time.perf_counter()
    source = folder.with_name(folder.name + ".template")  # a plain copy: what is not committed counts too
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "template", source / "template", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "copier.yml", source)
    run_copy(str(source), folder, data={"project_name": "demo"}, defaults=True, quiet=True)
    print(f"{time.perf_counter() - begun:.1f} s")

    project = folder.resolve()
    size = measure(project)
    verb(project, "doctor")
    verb(project, "train", *TRAIN)
    verb(project, "evaluate")
    verb(project, "report")
    (run,) = (project / "runs").iterdir()

    step("size of the project, and what it may be")
    for what, used, allowed in zip(("files", "lines of code", "dependencies"), size, DEFAULT, strict=True):
        print(f"{what:14}{used:6,} of {allowed:,}{'' if used <= allowed else '  TOO MANY'}")
    step("look at")
    for name in ("report.md", "curves.png", "metrics.csv"):
        print(folder / "runs" / run.name / name)


def verb(project: Path, name: str, *arguments: str) -> None:
    """Runs `python -m demo_training NAME` in the project, as `make NAME` there does."""
    (package,) = (path.name for path in (project / "src").iterdir())
    step(f"{package} {name} {' '.join(arguments)}")
    begun = time.perf_counter()
    command = [sys.executable, "-m", package, name, *arguments]
    subprocess.run(command, cwd=project, env={**os.environ, "PYTHONPATH": "src"}, check=True)
    print(f"{time.perf_counter() - begun:.1f} s")


def step(text: str) -> None:
    print(f"\n--- {text}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
