"""Fill build/gpu for a machine with a GPU that has PyTorch, but neither Copier nor a network.

    python tools/gpu.py 3.12    # the version of Python there
    python tools/gpu.py 3.12 --nanogpt FOLDER    # with a checkout of karpathy/nanoGPT to compare with

It holds rendered projects and wheels of what they need. Copy the repository with that folder, and
run `sh build/gpu/run_all.sh` there: `make bench-gpu` without its environment. The machine's own
Python needs PyTorch, matplotlib and h5py, and `experiment` needs git.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from sizes import LARGE_PRODUCTS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("pydantic", "pyyaml", "safetensors", "tqdm", "pytest", "pytest-timeout", "pytest-xdist"),
    *("huggingface_hub", "regex", "typer"),  # of transformers
)
# Without numpy and torch, which are large and on the machine.
BARE = ("tokenizers", "torchao", "transformers>=5.23")
LOADERS = {"windows": "chunk"}  # of the projects; of any other workload: dataloader
LOADERS |= dict.fromkeys(("tabular", "timeseries", "forecast", "llm", "vision"), "memmap")
EXTRAS = ["experiment", "replay"]
MORE_EXTRAS = {"llm": ["watch", "profile"], "chat": ["lora"]}
SCRIPT = f"""#!/bin/sh
# Runs in the repository's root.
set -e
install="python3 -m pip install --quiet --upgrade --no-index --find-links build/gpu/wheels"
$install {" ".join(PACKAGES)}
$install --no-deps {" ".join(BARE).replace(">=", "'>='")}
export FASTTRAIN_PROJECTS=build/gpu/projects
if [ -d build/gpu/nanogpt ]; then export FASTTRAIN_NANOGPT=build/gpu/nanogpt; fi
exec python3 benchmarks/gpu/run_all.py "$@"
"""


def answers_of(workload: str) -> dict[str, Any]:
    """Answers of the project of a workload that benchmarks/gpu measures."""
    answers: dict[str, Any] = {"workload": workload, "framework": "pytorch"}
    answers["loader"] = LOADERS.get(workload, "dataloader")
    if workload in LARGE_PRODUCTS:
        answers["precision"] = "fp8"
    return answers | {"extras": EXTRAS + MORE_EXTRAS.get(workload, [])}


def name_of(answers: dict[str, Any]) -> str:
    """The folder of a project."""
    return f"{answers['workload']}-{answers['loader']}-{answers['framework']}"


def projects() -> list[dict[str, Any]]:
    """Answers of the projects that tests/gpu and benchmarks/gpu ask for."""
    from variants import choices

    answers = [answers_of(workload) for workload in choices("workload")]
    for loader, framework in itertools.product(choices("loader"), choices("framework")):
        other = {**answers_of("tabular"), "loader": loader, "framework": framework}
        if other not in answers:
            answers.append(other)
    return answers


def main() -> None:
    from rendering import render_into
    from variants import SCRIPTS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python", help="version of Python there, such as 3.12")
    parser.add_argument("--nanogpt", type=Path, help="checkout of karpathy/nanoGPT")
    arguments = parser.parse_args()
    folder = ROOT / "build/gpu"
    for part in ("projects", "wheels", "nanogpt"):  # and no results
        shutil.rmtree(folder / part, ignore_errors=True)
    for answers in projects():
        render_into(folder / "projects" / name_of(answers), **answers)
    for workload in SCRIPTS:
        script: dict[str, Any] = {"workload": workload, "layout": "script"}
        render_into(folder / "projects" / f"script-{workload}", **script)
    if arguments.nanogpt:
        (folder / "nanogpt").mkdir()
        for name in ("train.py", "model.py", "configurator.py"):
            shutil.copy(arguments.nanogpt / name, folder / "nanogpt")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    download += ["--python-version", arguments.python, "--dest", str(folder / "wheels")]
    subprocess.run([*download, *PACKAGES], check=True)
    subprocess.run([*download, "--no-deps", *BARE], check=True)
    (folder / "run_all.sh").write_text(SCRIPT)
    print("ready: copy the repository there, and run sh build/gpu/run_all.sh")


if __name__ == "__main__":
    main()
