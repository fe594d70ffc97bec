"""Fills build/gpu for a machine with a GPU that has PyTorch, matplotlib and h5py, but neither Copier nor a
network: rendered projects, and wheels of what they need. There, `sh build/gpu/check.sh` runs the GPU tier,
and `sh build/gpu/session.sh` that and every benchmark, by tools/gpu_session.py."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
PACKAGES = ("pydantic", "pyyaml", "safetensors", "tqdm", "pytest", "pytest-timeout", "pytest-xdist")
BARE = ("torchao", "transformers>=5.23")  # without what they depend on, which is large and there
INSTALL = """#!/bin/sh
# Runs in the repository's root. The Python is the machine's own, with its PyTorch.
set -e
python3 -m pip install --quiet --no-index --find-links build/gpu/wheels {packages}
python3 -m pip install --quiet --no-index --find-links build/gpu/wheels --no-deps {bare}
"""
SCRIPTS = {
    "check": "FASTTRAIN_PROJECTS=build/gpu/projects"
    ' python3 -m pytest -n 8 -m gpu tests/gpu -p no:cacheprovider "$@"\n',
    "session": 'exec python3 tools/gpu_session.py "$@"\n',
}


def main(python: str = "3.12") -> None:
    """python: version of the other machine's Python."""
    import jinja2
    from rendering import questions, render_into
    from variants import LARGE_PRODUCTS, choices

    folder = ROOT / "build/gpu"
    shutil.rmtree(folder, ignore_errors=True)
    cells = [
        ("tabular", *cell) for cell in itertools.product(choices("loader"), choices("framework"))
    ]
    usual = jinja2.Template(questions()["loader"]["default"])
    cells += [
        (workload, usual.render(workload=workload), "pytorch")
        for workload in choices("workload")
        if workload != "tabular"
    ]
    for workload, loader, framework in cells:
        answers = {"workload": workload, "loader": loader, "framework": framework}
        if workload in LARGE_PRODUCTS:
            answers["precision"] = "fp8"
        if workload == "llm":  # a row of its benchmark is what watching costs
            answers["extras"] = ["watch"]
        render_into(folder / "projects" / f"{workload}-{loader}-{framework}", **answers)
    wheels = (
        "--python-version",
        python,
        "--only-binary=:all:",
        "--quiet",
        "--dest",
        str(folder / "wheels"),
    )
    for packages in (PACKAGES, ("--no-deps", *BARE)):
        subprocess.run([sys.executable, "-m", "pip", "download", *wheels, *packages], check=True)
    install = INSTALL.format(packages=" ".join(PACKAGES), bare=shlex.join(BARE))
    for name, script in SCRIPTS.items():
        (folder / f"{name}.sh").write_text(install + script)
    print(
        f"ready: carry the repository with {folder.relative_to(ROOT)}, there run sh build/gpu/session.sh"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
