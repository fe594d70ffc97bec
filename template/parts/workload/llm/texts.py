"""Texts from the files that people have: whole files, and rows of JSONL and Parquet; also gzipped."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .engine.errors import UserError

PIECE = 64 << 10  # bytes of a text that a core tokenizes at a time
ROWS = (".jsonl", ".parquet")
Document = tuple[str, int, bytes, bool]
"""A piece of one: where, offset, text, and whether the document ends with it."""


def has_rows(path: Path) -> str:
    """`.jsonl` or `.parquet` where the file has a text in each row, else nothing."""
    return next((ending for ending in ROWS if ending in path.suffixes[-2:]), "")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A file, gzipped or not, and what moves its progress bar. Raises `UserError` where none is readable."""
    try:
        size = path.stat().st_size
        bar = tqdm(None, path.name, size, unit="B", unit_scale=True, disable=None, leave=False)
        with open(path, "rb") as raw, bar:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            yield (
                gzip.GzipFile(fileobj=raw) if packed else raw,
                lambda: bar.update(raw.tell() - bar.n),
            )
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error


def pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, text) of a file in pieces that a tokenizer takes one by one as it would take all at once."""
    with opened(path) as (file, tick):
        offset, rest = 0, b""
        while block := file.read(PIECE):
            text = rest + block
            cut = boundary(text)
            yield offset, text[:cut]
            offset, rest = offset + cut, text[cut:]
            tick()
        if rest:
            yield offset, rest


def decoded(document: Document) -> str:
    """The text of a piece. Raises `UserError` with the byte that is not UTF-8."""
    where, offset, text, _ = document
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{where}, byte {offset + error.start}"
        raise UserError("not UTF-8 text", where, "mend it, or use --tokenizer byte") from error


def documents(path: Path, column: str) -> Iterator[Document]:
    """The pieces of a file; a row that came before is left out."""
    if not has_rows(path):
        for offset, text in pieces(path):
            yield str(path), offset, text, False
        yield str(path), 0, b"", True
        return
    seen: set[bytes] = set()
    for where, texts in rows(path, (column,), "name it by --column"):
        content = texts[0].encode()
        if (digest := hashlib.blake2b(content, digest_size=8).digest()) not in seen:
            yield where, 0, content, True
        seen.add(digest)


def boundary(text: bytes) -> int:
    """Where to cut: before a line's end that follows a visible character, which no token crosses, as a token
    of GPT-2's begins there whatever comes; without one at least between two characters of UTF-8."""
    end = text.rfind(b"\n")
    while end > 0 and not 32 < text[end - 1] < 127:
        end = text.rfind(b"\n", 0, end)
    return end if end > 0 else len(text) - _unfinished(text)


def _unfinished(text: bytes) -> int:
    """Bytes at the end of `text` that begin a UTF-8 character and do not end it."""
    for length in range(1, min(len(text), 3) + 1):
        if (byte := text[-length]) >= 0xC0:
            return length if length < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            break
    return 0


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not blank, of a UTF-8 file."""
    number = 0
    try:
        with opened(path) as (file, tick):
            for number, line in enumerate(file, 1):
                if number % 1000 == 0:
                    tick()
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text:
                    yield number, text
    except UnicodeDecodeError as error:
        where = f"{path}, line {number}, byte {error.start}"
        raise UserError("not UTF-8 text", where, "convert the file to UTF-8") from error


def rows(path: Path, keys: tuple[str, ...], remedy: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(where, texts under `keys`) of each row of a file of `ROWS`. Raises `UserError` for what is no text."""
    read = _parquet(path, keys, remedy) if has_rows(path) == ".parquet" else _json(path, remedy)
    for where, row in read:
        texts = tuple(row.get(key) for key in keys) if isinstance(row, dict) else ()
        if not texts or not all(isinstance(text, str) for text in texts):
            kind = "JSON object" if has_rows(path) == ".jsonl" else "row"
            what = f"no {kind} with texts under {' and '.join(map(repr, keys))}"
            raise UserError(what, where, remedy)
        yield where, texts


def _json(path: Path, remedy: str) -> Iterator[tuple[str, object]]:
    for number, line in lines(path):
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except ValueError as error:
            raise UserError(f"no JSON object with texts ({error})", where, remedy) from error


def _parquet(path: Path, keys: tuple[str, ...], remedy: str) -> Iterator[tuple[str, object]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(path)
        if absent := [key for key in keys if key not in file.schema_arrow.names]:
            has = f"it has {', '.join(file.schema_arrow.names[:20])}"
            raise UserError(f"no column '{absent[0]}'", str(path), f"{has}; {remedy}")
        for batch in file.iter_batches(1024, columns=list(keys)):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error
