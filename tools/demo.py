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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# Threads would wait for each other longer than they work on matrices as small as these.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": "src"}
STEPS = 1000  # at most, of which the schedule knows
VERBS = (
    ("doctor",),
    ("train", "--training.max_steps", str(STEPS), "--evaluation.every_steps", "250"),
    ("evaluate",),
    ("report",),
)


def main(folder: Path) -> None:
    """Renders into `folder`, emptying it first."""
    from rendering import render_into

    shutil.rmtree(folder, ignore_errors=True)
    seconds = {}
    begun = title(f"render the default project into {folder}")
    render_into(folder)
    seconds["render"] = time.perf_counter() - begun
    for words in VERBS:
        begun = title("python -m my_training " + " ".join(words))
        command = [sys.executable, "-m", "my_training", *words]
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True)
        seconds[words[0]] = time.perf_counter() - begun

    title("what took how long")
    for name, taken in seconds.items():
        print(f"{name:14}{taken:6.1f} s")
    title("look at")
    (run,) = (folder / "runs").iterdir()
    for name in ("report.md", "curves.png", "metrics.csv"):
        print(run / name)


def title(text: str) -> float:
    print(f"\n--- {text}", flush=True)
    return time.perf_counter()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
