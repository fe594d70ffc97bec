"""Finds the one package under `src/`, and trains it in a folder of its own; the GPU stays out of
it."""

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
    """Data and runs go where pytest keeps them; no setting and no server comes from this shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINING_ROOT", str(tmp_path))
    for name in (*module("config").ENVIRONMENT, "WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def module(name: str) -> ModuleType:
    """A module of the package: `module("engine.order")`."""
    return import_module(f"{PACKAGE}.{name}")


@pytest.fixture
def run() -> Callable[..., str]:
    """`run("train", "--resume")`: a command in the current folder; fails with its output, or
    returns it."""

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", PACKAGE, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
