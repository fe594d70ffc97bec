"""The files of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def list_files(folder: Path, is_wanted: Callable[[Path], object]) -> list[Path]:
    """Return the files of a folder for which `is_wanted(path)`; print how many are, or are not."""
    files = list(walk(folder, set()))
    wanted = [path for path in files if path.is_file() and is_wanted(path)]
    ignored = len(files) - len(wanted)
    print(f"note: {len(wanted):,} files read in {folder}, {ignored:,} ignored")
    return wanted


def walk(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the visible files at any depth, sorted. Links are followed, but to each file once.

    seen: the files and folders that came before, without links.
    """
    for path in sorted(folder.iterdir()):
        place = os.path.realpath(path)
        if path.name[0] == "." or place in seen:
            continue
        seen.add(place)
        if path.is_dir():
            yield from walk(path, seen)
        else:
            yield path
