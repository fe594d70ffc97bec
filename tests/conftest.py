"""One folder of rendered projects for all processes of a test session."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

# As in rendering.py, which is not imported here: it needs Copier, and tests/gpu does without.
RENDERS = "FASTTRAIN_RENDERS"


def pytest_configure(config: pytest.Config) -> None:
    if RENDERS not in os.environ:  # workers find it there
        config.stash[FOLDER] = os.environ[RENDERS] = tempfile.mkdtemp(prefix="fasttrain-renders-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(RENDERS, None)


FOLDER = pytest.StashKey[str]()
