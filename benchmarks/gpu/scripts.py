"""`python train.py --benchmark` of the scripts on a GPU: all optimizations on against all off.

Both take turns in one process, on the script's own synthetic data; the rounds give the range. The
models are large enough that a GPU is not only waiting for Python. Takes about 4 minutes on an H200.

    make bench-gpu PART=scripts
    make bench-gpu PART=scripts ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rows import PROJECTS, Book, begin

ROUNDS, STEPS = 5, 10
SIZES = {
    "timeseries": "--history 336 --horizon 96 --width 512 --depth 2 --batch_size 256",
    "tabular": "--width 1024 --batch_size 4096",
    "llm": "--layers 12 --heads 12 --width 768 --block_size 1024 --batch_size 16",
    "windows": "--width 512 --depth 2 --batch_size 256",
    "seq2seq": "--layers 12 --heads 12 --width 768 --head_width 64 --hidden 3072 --batch_size 32",
    "graph": "--width 64 --batch_size 32",
    "forecast": "--history 168 --horizon 48 --width 1024 --batch_size 1024",
    "vision": "--width 64 --batch_size 512",
}
NUMBER = r"([\d.e+-]+)"
RANGE = rf"{NUMBER} \({NUMBER} to {NUMBER}\)"
TIMES = re.compile(rf"{RANGE} ms a step against {RANGE}: {RANGE}× as fast")
MEMORY = re.compile(rf"a step adds {NUMBER} against {NUMBER} GB")
COLUMNS = [
    "script",
    "all on, ms/step",
    "all off, ms/step",
    "× as fast",
    "range",
    "memory of a step, on",
    "off",
]


def find_script(workload: str) -> Path:
    if PROJECTS in os.environ:
        return Path(os.environ[PROJECTS]).resolve() / f"script-{workload}"
    from rendering import render

    return render(workload=workload, layout="script")


def measure(workload: str, rehearse: bool) -> dict[str, Any]:
    """Run `--benchmark` in a process and a folder of its own, and read what it prints."""
    words = ["--benchmark", "--rounds", str(ROUNDS), "--log_every", str(STEPS)]
    words += SIZES[workload].split()
    if rehearse:
        words = ["--benchmark", "--rounds", "1", "--log_every", "1"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(find_script(workload) / "train.py"), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    times = TIMES.search(done.stdout)
    assert times, done.stdout
    numbers = [float(text) for text in times.groups()]
    row: dict[str, Any] = {"on_ms": numbers[0], "off_ms": numbers[3], "ratio": numbers[6]}
    row["range"] = numbers[7:9]
    memory = MEMORY.search(done.stdout)
    row["memory_gb"], row["memory_off_gb"] = map(float, memory.groups()) if memory else (0.0, 0.0)
    return row | {"printed": done.stdout}


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    low, high = row["range"]
    return [
        f"{row['on_ms']:.3g}",
        f"{row['off_ms']:.3g}",
        f"{row['ratio']:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{row['memory_gb']:.2f} GB",
        f"{row['memory_off_gb']:.2f} GB",
    ]


def main() -> None:
    arguments = begin(__doc__, "llm")
    how = f"{ROUNDS} rounds of {STEPS} steps in turns, median and range"
    plan: dict[str, Any] = {
        name: lambda name=name: measure(name, arguments.rehearse) for name in SIZES
    }
    Book("script", COLUMNS, cells, list(plan), arguments, how).run(lambda: plan)


if __name__ == "__main__":
    main()
