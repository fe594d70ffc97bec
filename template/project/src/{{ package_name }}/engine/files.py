"""Files that are written completely or not at all, and the hashes of files.

A write has a temporary name, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 256 << 10  # read at a time for a hash: it stays in the processor's cache


def sync(path: Path) -> None:
    """Make a closed file, or the names in a folder, survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` if the block ends without an exception."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically (UTF-8)."""
    with replacing(path) as file:
        file.write(text.encode())


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file; return none if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return []


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read records with an integer `step`, one a line; skip lines that a crash has damaged."""
    rows = []
    for line in read_lines(path):
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a file; return an empty one if it is missing or damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's content block by block."""
    with open(path, "rb") as file:
        yield from iter(partial(file.read, BLOCK_BYTES), b"")


def sha256(path: Path) -> str:
    """Hash a file's content, with about 1.3-2 GB/s on a core."""
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()
