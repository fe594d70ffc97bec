"""The way of a user in two minutes: render the default project, train, evaluate, look at the report.

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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# Threads would wait for each other longer than they work on matrices as small as these.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": "src"}
TRAIN = ("--data.batch_size", "256", "--model.width", "256", "--model.depth", "4", "--training.epochs", "100")


def main(folder: Path) -> None:
    """Renders into `folder`, emptying it first."""
    from rendering import render_into

    shutil.rmtree(folder, ignore_errors=True)
    begun = title(f"render the default project into {folder}")
    render_into(folder)
    done(begun)
    for words in (("doctor",), ("train", *TRAIN), ("evaluate",), ("report",)):
        begun = title("python -m my_training " + " ".join(words))
        command = [sys.executable, "-m", "my_training", *words]
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True)
        done(begun)

    title("size of the project, and what it may be")
    for name, used, allowed in zip(DEFAULT._fields, measure(folder), DEFAULT, strict=True):
        print(f"{name:14}{used:6,} of {allowed:,}{'' if used <= allowed else '  too many'}")
    title("look at")
    (run,) = (folder / "runs").iterdir()
    for name in ("report.md", "curves.png", "metrics.csv"):
        print(run / name)


def title(text: str) -> float:
    print(f"\n--- {text}", flush=True)
    return time.perf_counter()


def done(begun: float) -> None:
    print(f"{time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
