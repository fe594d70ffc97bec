"""Synthetic data of each workload, written once for all tests of a process, and folders that have them."""

import functools
import itertools
from pathlib import Path

import pytest
from rendering import render
from running import run
from sizes import TINY

EVERY_STEP = ("--monitor.every_steps", "1")
SHORT = (
    *EVERY_STEP,
    *("--training.max_steps", "6"),
    *("--evaluation.every_steps", "4", "--checkpoint.every_steps", "2"),
)


@functools.cache
def synthetic(workload: str, base: Path) -> Path:
    """Synthetic data of a workload, written once; runs link to them."""
    folder = base / workload
    run(render(workload=workload), "train", "--max-steps", "1", *TINY[workload], cwd=folder)
    return folder / "data"


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """place(workload) is a new working folder with the workload's synthetic data in it."""
    base = tmp_path_factory.mktemp("synthetic")
    count = itertools.count()

    def make(workload):
        folder = tmp_path_factory.mktemp(f"run{next(count)}")
        (folder / "data").symlink_to(synthetic(workload, base))
        return folder

    return make
