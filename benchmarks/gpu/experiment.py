"""What `experiment` says on a GPU: of an edit without effect, and of another learning rate.

An edit without effect must have equal bits with two seeds. Each training is a process that starts
CUDA, so the table has what a pair of trainings takes, with three rows at a time. Takes about 4
minutes on an H200.

    make bench-gpu PART=experiment
    make bench-gpu PART=experiment ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rows import Book, begin, environment_of, find_project

WORKLOADS = ("llm", "timeseries", "vision")
NOTHING = "an edit without effect"
EDITS: dict[str, tuple[str, ...]] = {
    NOTHING: (),
    "learning rate 0.001 to 0.002": ("--set", "optimizer.learning_rate=0.002"),
}
AT_A_TIME = 3
SECONDS = 600  # a command that takes longer has failed
COMMON = (
    *("--optimizer.learning_rate", "0.001", "--training.precision", "auto"),
    *("--compile.enabled", "false", "--no-confirm", "--json"),
)


def commit(project: Path, folder: Path) -> None:
    """Copies the project into `folder`, as the first commit of a repository."""
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns(".git", "data", "runs"))
    git = ("git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "parent")):
        subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)


def verdict(place: Path, workload: str, edit: str, rehearse: bool) -> dict[str, Any]:
    """The figures of a row: what the command printed."""
    folder = place / f"{workload}-{len(edit)}"
    commit(find_project(workload), folder)
    if edit == NOTHING:
        with open(folder / "src/my_training/optimizer.py", "a") as file:
            file.write("\nUNUSED = 1\n")
    words = ["experiment", *EDITS[edit], "--seeds", "5", "--minutes", "8"]
    if rehearse:
        from sizes import TINY

        words += [*TINY[workload], "--schedule.warmup_steps", "1"]
    words += [*COMMON, "--steps", "3" if rehearse else "60"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "my_training", *words],
        cwd=folder,
        env=environment_of(folder, folder),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    row = json.loads(done.stdout)
    if not row["seeds"]:  # a side failed before its first training
        raise RuntimeError(row["why"])
    names = ("verdict", "why", "seeds", "effect", "interval", "details")
    return {name: row[name] for name in names} | {"seconds": time.perf_counter() - start}


COLUMNS = ["", "verdict", "seeds", "gain", "90 % interval", "seconds a pair", "trainings of a pair"]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    said = row["verdict"]
    if row["why"]:
        said += f": {row['why']}"
    interval = ""
    if row["interval"]:
        low, high = row["interval"]
        interval = f"{low:+.2f} to {high:+.2f} %"
    return [
        said,
        str(row["seeds"]),
        f"{row['effect']:+.2f} %" if row["effect"] is not None else "",
        interval,
        f"{row['seconds'] / row['seeds']:.0f}",
        row["details"][0],
    ]


def main() -> None:
    arguments = begin(__doc__, "llm")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan: dict[str, Any] = {
            f"{workload}, {edit}": partial(verdict, folder, workload, edit, arguments.rehearse)
            for edit in EDITS
            for workload in WORKLOADS
        }
        how = "5 seeds of 60 steps, default projects without compilation, three rows at a time"
        book = Book("experiment", COLUMNS, cells, list(plan), arguments, how)
        book.run(lambda: plan, at_a_time=AT_A_TIME)


if __name__ == "__main__":
    main()
