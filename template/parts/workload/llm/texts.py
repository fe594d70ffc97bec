"""Read texts from whole files and from rows of JSONL and Parquet, also gzipped."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .engine.errors import UserError
from .engine.runs import check_input

PIECE = 64 << 10  # bytes of a text that a core tokenizes at a time
TOGETHER = 1024  # rows in a batch of texts, unless 2^20 characters come first
LINE_BYTES = 64 << 20  # a longer line is an error, before it fills the memory
SAMPLE = 4096  # bytes of a file that tell its encoding
ROWS = (".jsonl", ".parquet")
Document = tuple[str, int, bytes, bool]
"""A piece of a document: where, offset, text, and whether it is the last piece."""


class NotUtf8(UserError):
    """A text in another encoding."""


def has_rows(path: Path) -> str:
    """Return `.jsonl` or `.parquet` if the file has a text in each row, else an empty text."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return next((ending for ending in ROWS if ending in suffixes), "")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Open a file, gzipped or not; yield it and a function that updates its progress bar.

    Raises `UserError` if it cannot be read.
    """
    try:
        size = path.stat().st_size
        bar = tqdm(None, path.name, size, unit="B", unit_scale=True, disable=None, leave=False)
        with open(path, "rb") as raw, bar:
            file: Any = raw
            if raw.peek(2)[:2] == b"\x1f\x8b":
                file = gzip.GzipFile(fileobj=raw)
            if is_utf16(file.peek(SAMPLE)[:SAMPLE]):
                raise NotUtf8("UTF-16 text", str(path), "convert it to UTF-8")
            yield file, lambda: bar.update(raw.tell() - bar.n)
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error


def is_utf16(text: bytes) -> bool:
    """Whether a text begins with the mark of UTF-16 or -32, or has a NUL at every second place."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    few, many = sorted((text[::2].count(0), text[1::2].count(0)))
    return 4 * many > len(text) > 100 * few


def is_utf8(path: Path, any_bytes: bool) -> bool:
    """Whether a file can be read. any_bytes: if so, only UTF-16 is wrong."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for _, text in blocks(path):
            if not any_bytes:
                decoder.decode(text)
        decoder.decode(b"", final=True)
    except (UnicodeDecodeError, NotUtf8):
        return False
    return True


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in blocks of (offset, text), cut anywhere."""
    with opened(path) as (file, tick):
        offset = 0
        block = file.read(PIECE)
        while block:
            yield offset, block
            offset += len(block)
            tick()
            block = file.read(PIECE)


def pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in pieces of (offset, text), cut so that tokens are those of the whole text."""
    offset = 0
    unfinished = b""
    for _, block in blocks(path):
        text = unfinished + block
        cut = boundary(text)
        yield offset, text[:cut]
        offset += cut
        unfinished = text[cut:]
    if unfinished:
        yield offset, unfinished


def decoded(document: Document) -> str:
    """Decode the text of a piece. Raises `UserError` with the byte that is not UTF-8."""
    where, offset, text, _ = document
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{where}, byte {offset + error.start}"
        remedy = "convert the file to UTF-8, or use --tokenizer byte"
        raise NotUtf8("not UTF-8 text", where, remedy) from error


def documents(path: Path, column: str, seen: Seen, cut: bool = True) -> Iterator[Document]:
    """Yield the pieces of a file, or its blocks if not `cut`; rows in `seen` are left out."""
    if has_rows(path):
        yield from _new_rows(path, column, seen)
        return
    read = pieces if cut else blocks
    for offset, text in read(path):
        yield str(path), offset, text, False
    yield str(path), 0, b"", True


def _new_rows(path: Path, column: str, seen: Seen) -> Iterator[Document]:
    read = rows(path, (column,), "name the field with --column")
    for batch in together((where, texts[0]) for where, texts in read):
        contents = [text.encode() for _, text in batch]
        is_new = seen.add(contents)
        for (where, _), content, is_document in zip(batch, contents, is_new, strict=True):
            if is_document:
                yield where, 0, content, True


def together(texts: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    """Yield rows of texts in batches."""
    batch = []
    size = 0
    for row in texts:
        batch.append(row)
        size += sum(map(len, row))
        if len(batch) == TOGETHER or size >= 1 << 20:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


class Seen:
    """Remembers which texts came before, with 8 bytes of hash per text."""

    def __init__(self) -> None:
        # Arrays of sorted hashes, each more than twice as long as the next.
        self._known: list[np.ndarray] = []
        self.num_copies = 0

    def add(self, texts: Sequence[bytes]) -> list[bool]:
        """Add texts; return for each whether it is new, also compared with the ones before it."""
        digests = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
        hashes = np.frombuffer(b"".join(digests), np.uint64)
        fresh, first = np.unique(hashes, return_index=True)
        for known in self._known:
            nearest = np.searchsorted(known, fresh).clip(max=len(known) - 1)
            is_new = known[nearest] != fresh
            fresh = fresh[is_new]
            first = first[is_new]
        self._remember(fresh)
        self.num_copies += len(texts) - len(fresh)

        new_places = set(first.tolist())
        return [place in new_places for place in range(len(texts))]

    def _remember(self, hashes: np.ndarray) -> None:
        """Add sorted hashes, merged with earlier arrays that are at most twice as long."""
        while self._known and len(self._known[-1]) <= 2 * len(hashes):
            hashes = np.concatenate([self._known.pop(), hashes])
        if len(hashes):
            hashes.sort()
            self._known.append(hashes)


def boundary(text: bytes) -> int:
    """Return where to cut a text without cutting a token.

    The cut is before a newline that follows a visible ASCII character: no token crosses it, because
    GPT-2's pattern always begins a new token there. If there is none, the cut is between two
    characters of UTF-8.
    """
    end = text.rfind(b"\n")
    while end > 0 and not 32 < text[end - 1] < 127:
        end = text.rfind(b"\n", 0, end)
    return end if end > 0 else len(text) - _unfinished(text)


def _unfinished(text: bytes) -> int:
    """Return the number of bytes of an incomplete UTF-8 character at the end of `text`."""
    for length in range(1, min(len(text), 3) + 1):
        byte = text[-length]
        if byte >= 0xC0:  # the first byte of a character
            return length if length < _utf8_length(byte) else 0
        if byte < 0x80:
            return 0
    return 0


def _utf8_length(byte: int) -> int:
    """Return the length of the UTF-8 character that begins with this byte, which is not ASCII."""
    if byte < 0xE0:
        return 2
    return 3 if byte < 0xF0 else 4


def lines(path: Path, keep_blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line of a UTF-8 file; blank lines only with `keep_blank`."""
    check_input(path)
    number = 0
    try:
        with opened(path) as (file, tick):
            for number, line in enumerate(iter(partial(file.readline, LINE_BYTES), b""), 1):
                if len(line) == LINE_BYTES:
                    what = f"a line of more than {LINE_BYTES >> 20} MB"
                    where = f"{path}, line {number}"
                    raise UserError(what, where, "give each text a line of its own")
                if number % 1000 == 0:
                    tick()
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                text = line.decode(encoding).rstrip("\r\n")
                if text or keep_blank:
                    yield number, text
    except UnicodeDecodeError as error:
        where = f"{path}, line {number}, byte {error.start}"
        raise NotUtf8("not UTF-8 text", where, "convert the file to UTF-8") from error


def rows(
    path: Path, keys: tuple[str, ...], remedy: str, may_lack: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield (where, texts under `keys`) for each row of a JSONL or Parquet file.

    may_lack: the keys whose text may be missing or null, which counts as empty. Raises `UserError`
    for a value that is not a text.
    """
    check_input(path)
    is_parquet = has_rows(path) == ".parquet"
    read = _parquet(path, keys, remedy) if is_parquet else _json(path, remedy)
    for where, row in read:
        texts: list[Any] = []
        if isinstance(row, dict):
            for key in keys:
                text = row.get(key)
                texts.append("" if text is None and key in may_lack else text)
        if not texts or not all(isinstance(text, str) for text in texts):
            kind = "row" if is_parquet else "JSON object"
            what = f"no {kind} with texts under {' and '.join(map(repr, keys))}"
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
            raise UserError(f"no JSON object with texts ({error})", where, remedy) from error


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
        if number != file.metadata.num_rows:
            what = f"it has {number:,} rows and claims {file.metadata.num_rows:,}"
            raise UserError(what, str(path), "get the file again")
    except UnicodeDecodeError as error:
        where = f"{path}, row {number + 1} or one of the {TOGETHER} after it"
        raise UserError("not UTF-8 text", where, "fix it, or write the file again") from error
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read the file ({error})", str(path), "check --input") from error
