"""The files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def list_files(folder: Path, is_wanted: Any) -> list[Path]:
    """Return the files of a folder for which `is_wanted(path)`; print how many are, or are not."""
    wanted = []
    others = []
    for path in walk(folder, set()):
        (wanted if path.is_file() and is_wanted(path) else others).append(path)
    print(f"note: {len(wanted):,} files read in {folder}, {len(others):,} ignored", *others[:3])
    return wanted


def walk(path: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the visible files at any depth, sorted. Links are followed, but to each file once.

    seen: the paths that came before, without links.
    """
    place = os.path.realpath(path)
    if place in seen:
        return
    seen.add(place)
    if not path.is_dir():
        yield path
        return
    for inside in sorted(path.iterdir()):
        if inside.name[0] != ".":
            yield from walk(inside, seen)
