"""Fixtures of all tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], ModuleType]]:
    """`loaded(project, "engine.gpus")` imports a module of a rendered project, and forgets it after the test."""
    before = set(sys.modules)

    def load(project: Path, module: str) -> ModuleType:
        (package,) = (path.name for path in (project / "src").iterdir())
        monkeypatch.syspath_prepend(project / "src")
        return importlib.import_module(f"{package}.{module}")

    yield load
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "my_training":
            del sys.modules[name]
