"""Fill build/gpu for a machine with a GPU that has PyTorch, but neither Copier nor a network.

    python tools/gpu.py 3.12    # the version of Python there

It holds rendered projects and wheels of what they need. Copy the repository with that folder, and
run `sh build/gpu/run_all.sh` there: `make bench-gpu` without its environment. The machine's own
Python needs PyTorch, matplotlib and h5py.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pydantic", "pyyaml", "safetensors", "tqdm", "pytest", "pytest-timeout", "pytest-xdist")
# Without what they depend on, which is large and on the machine.
BARE = ("tokenizers", "torchao", "transformers>=5.23")
SCRIPT = f"""#!/bin/sh
# Runs in the repository's root.
set -e
install="python3 -m pip install --quiet --no-index --find-links build/gpu/wheels"
$install {" ".join(PACKAGES)}
$install --no-deps {" ".join(BARE).replace(">=", "'>='")}
export FASTTRAIN_PROJECTS=build/gpu/projects
exec python3 benchmarks/gpu/run_all.py "$@"
"""


def projects() -> list[dict[str, Any]]:
    """Answers of the projects that tests/gpu and benchmarks/gpu ask for."""
    from variants import LARGE_PRODUCTS, choices

    answers: list[dict[str, Any]] = []
    for loader, framework in itertools.product(choices("loader"), choices("framework")):
        answers.append({"workload": "tabular", "loader": loader, "framework": framework})
    loaders = {"windows": "chunk", "timeseries": "memmap"}
    loaders |= dict.fromkeys(("forecast", "llm", "vision"), "memmap")
    for workload in choices("workload"):
        if workload == "tabular":
            continue
        loader = loaders.get(workload, "dataloader")
        answer = {"workload": workload, "loader": loader, "framework": "pytorch"}
        if workload in LARGE_PRODUCTS:
            answer["precision"] = "fp8"
        if workload == "llm":  # rows of its benchmark are the cost of watching and a profile
            answer["extras"] = ["watch", "profile"]
        answers.append(answer)
    return answers


def main(python: str) -> None:
    from rendering import render_into
    from variants import SCRIPTS

    folder = ROOT / "build/gpu"
    shutil.rmtree(folder, ignore_errors=True)
    for answer in projects():
        name = f"{answer['workload']}-{answer['loader']}-{answer['framework']}"
        render_into(folder / "projects" / name, **answer)
    for workload in SCRIPTS:
        answer = {"workload": workload, "layout": "script"}
        render_into(folder / "projects" / f"script-{workload}", **answer)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    download += ["--python-version", python, "--dest", str(folder / "wheels")]
    subprocess.run([*download, *PACKAGES], check=True)
    subprocess.run([*download, "--no-deps", *BARE], check=True)
    (folder / "run_all.sh").write_text(SCRIPT)
    print("ready: copy the repository there, and run sh build/gpu/run_all.sh")


if __name__ == "__main__":
    main(sys.argv[1])
