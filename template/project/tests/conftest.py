"""Fixtures that run the package under `src/` in an empty folder, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
(PACKAGE,) = (path.parent.name for path in ROOT.glob("src/*/__main__.py"))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write data and runs to pytest's folder, and hide settings and servers of this shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    for name in (*module("engine.sources").ENVIRONMENT, "WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def module(name: str) -> ModuleType:
    """Import a module of the package, such as `module("engine.loading.order")`."""
    return import_module(f"{PACKAGE}.{name}")


@pytest.fixture
def run() -> Callable[..., str]:
    """Return a function that runs a command, such as `run("train", "--resume")`.

    It returns the output of the command, and fails with the output if the command fails.
    """

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", PACKAGE, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
