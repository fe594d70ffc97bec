"""Finds the package in `src/`, and runs each test in an empty folder, without the GPU."""

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
    """Keep data and runs in pytest's folder, without settings and servers of this shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    for name in (*module("config").ENVIRONMENT, "WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def module(name: str) -> ModuleType:
    """Import a module of the package: `module("engine.order")`."""
    return import_module(f"{PACKAGE}.{name}")


@pytest.fixture
def run() -> Callable[..., str]:
    """Run a command in the current folder and return its output: `run("train", "--resume")`.

    If the command fails, the test fails and shows the output.
    """

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", PACKAGE, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
