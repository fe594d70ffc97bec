"""Files that are written completely or not at all; hashes and seals of files; locks of folders.

A write has a temporary name, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UserError

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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a failed write does not say which file it was
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically (UTF-8)."""
    with replacing(path) as file:
        # A path that is not UTF-8 has half characters: JSON reads them back from their codes.
        file.write(text.encode(errors="backslashreplace"))


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
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file atomically; `is_sealed` tells later whether it is still the same."""
    content = json.loads(json.dumps(content))  # a number as a key is read back as a text
    write_json(path, {**content, "seal": seal(content)})


def is_sealed(content: object) -> bool:
    """Whether this is an object that `write_sealed` wrote and nothing has changed."""
    return isinstance(content, dict) and content.get("seal") == seal(content)


def seal(content: dict[str, Any]) -> str:
    """Hash an object without its seal: a flipped bit in JSON would be another number or name."""
    entries = {name: value for name, value in content.items() if name != "seal"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


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


@contextmanager
def lock(folder: Path, what: str = "the run") -> Iterator[None]:
    """Lock a folder for this process. Raises `UserError` if another process has locked it.

    A POSIX record lock ends with its process, however that ends. It works over NFS, and child
    processes do not inherit it. what: the content of the folder, for the error.
    """
    with open(folder / ".lock", "a+b", buffering=0) as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            holder = file.read().decode(errors="replace") or "another process"
            remedy = "wait until it ends, or stop it"
            raise UserError(f"{what} is in use by {holder}", str(folder), remedy) from error
        except (ImportError, OSError):
            pass  # Windows, or a file system without locks
        with suppress(OSError):  # on a full disk the lock holds without the name
            file.truncate(0)
            file.write(f"process {os.getpid()} on host {platform.node()}".encode())
        yield
