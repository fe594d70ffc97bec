"""Fills build/gpu for a machine with a GPU that has PyTorch but neither Copier nor a network:
rendered projects, and wheels of what they need. There, `sh build/gpu/check.sh` runs the GPU tier."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
PACKAGES = ("pydantic", "pyyaml", "safetensors", "tqdm", "pytest", "matplotlib")
CHECK = """#!/bin/sh
# Runs in the repository's root. The Python is the machine's own, with its PyTorch.
set -e
python3 -m pip install --quiet --no-index --find-links build/gpu/wheels {packages}
FASTTRAIN_PROJECTS=build/gpu/projects python3 -m pytest -m gpu tests/gpu -p no:cacheprovider "$@"
"""


def main(python: str = "3.12") -> None:
    """python: version of the other machine's Python."""
    from rendering import render_into
    from variants import choices

    folder = ROOT / "build/gpu"
    shutil.rmtree(folder, ignore_errors=True)
    for loader, framework in itertools.product(choices("loader"), choices("framework")):
        render_into(
            folder / "projects" / f"{loader}-{framework}",
            workload="tabular",
            loader=loader,
            framework=framework,
        )
    render_into(folder / "projects" / "llm", workload="llm", loader="memmap", precision="fp8")
    render_into(folder / "projects" / "timeseries", workload="timeseries", loader="chunk")
    wheels = ("--python-version", python, "--only-binary=:all:", "--quiet", "--dest", str(folder / "wheels"))
    subprocess.run([sys.executable, "-m", "pip", "download", *wheels, *PACKAGES], check=True)
    (folder / "check.sh").write_text(CHECK.format(packages=" ".join(PACKAGES)))
    print(f"ready: carry the repository with {folder.relative_to(ROOT)}, there run sh build/gpu/check.sh")


if __name__ == "__main__":
    main(*sys.argv[1:])
