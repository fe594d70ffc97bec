"""Read texts from the lines of files, also compressed, and from rows of JSON lines and Parquet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .engine.errors import UserError
from .engine.runs import check_input
from .prepare.content import content_of

TOGETHER = 1024  # rows of a Parquet file that are read at a time
ROWS = ("JSON lines", "a Parquet file")
JSONL = re.compile(r"\.(jsonl|ndjson)(\.|$)", re.IGNORECASE)


def row_format(path: Path) -> str:
    """Return which of ROWS the file has, or an empty text for plain text.

    Raises `UserError` for a file that has no text.
    """
    check_input(path)
    with open_text(path, *ROWS) as (kind, file, _):
        if not kind and b"\0" in file.peek():
            remedy = "extract its text, or convert it to UTF-8"
            raise UserError("this is a binary file, or text in UTF-16", str(path), remedy)
    is_named = JSONL.search(path.name)
    return "JSON lines" if is_named and not kind else kind


@contextmanager
def open_text(path: Path, *known: str) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """Open a file, compressed or not.

    Yield what it is, its content, and a function that updates its progress bar. Raises `UserError`
    if it cannot be read.
    """
    try:
        size = path.stat().st_size
        bar = tqdm(None, path.name, size, unit="B", unit_scale=True, disable=None, leave=False)
        with open(path, "rb") as raw, bar:
            kind, content = content_of(path, raw, *known)
            yield kind, content, lambda: bar.update(raw.tell() - bar.n)
    except OSError as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error


@contextmanager
def utf8(path: Path) -> Iterator[None]:
    """Raise `UserError` if a text of the file turns out not to be UTF-8."""
    try:
        yield
    except UnicodeError as error:
        raise UserError("not UTF-8 text", str(path), "convert it to UTF-8") from error


class Seen:
    """Remembers which texts came before, by their hashes."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()
        self.num_copies = 0

    def add(self, text: str) -> bool:
        """Add a text; return whether it is new."""
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        is_new = digest not in self._hashes
        self._hashes.add(digest)
        self.num_copies += not is_new
        return is_new


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line of a UTF-8 file that is not blank."""
    check_input(path)
    with utf8(path), open_text(path, "JSON lines") as (_, file, tick):
        for number, line in enumerate(file, 1):
            if number % 1000 == 0:
                tick()
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            text = line.decode(encoding).rstrip("\r\n")
            if text:
                yield number, text


def rows(path: Path, keys: tuple[str, ...], remedy: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, texts under `keys`) for each row of a JSONL or Parquet file.

    Raises `UserError` for a value that is not a text.
    """
    is_parquet = row_format(path) == "a Parquet file"
    read = _parquet(path, keys, remedy) if is_parquet else _json(path, remedy)
    for where, row in read:
        texts: list[Any] = [row.get(key) for key in keys] if isinstance(row, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            what = f"no texts under {' and '.join(map(repr, keys))}"
            raise UserError(what, where, remedy)
        check_text("".join(texts), where)
        yield where, tuple(texts)


def check_text(text: str, where: str) -> None:
    """Raise `UserError` if UTF-8 cannot encode the text, since it has half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"not UTF-8 text ({text[error.start]!r} is no character)"
        raise UserError(what, where, "replace it") from error


def _json(path: Path, remedy: str) -> Iterator[tuple[str, object]]:
    for number, line in lines(path):
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"no JSON object ({error})", where, remedy) from error


def _parquet(path: Path, keys: tuple[str, ...], remedy: str) -> Iterator[tuple[str, object]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        absent = [key for key in keys if key not in names]
        if absent:
            has = f"it has {', '.join(names[:20])}"
            raise UserError(f"no column '{absent[0]}'", str(path), f"{remedy}; {has}")
        for batch in file.iter_batches(TOGETHER, columns=list(keys)):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error
