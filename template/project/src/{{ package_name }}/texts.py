"""Read texts from the lines of files, also compressed, and from rows of JSON lines and Parquet."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from tqdm import tqdm

from .engine.errors import UserError
from .engine.inputs import KINDS, kind_of
from .engine.runs import check_input
from .prepare.content import content_of
from .prepare.encodings import guess

TOGETHER = 1024  # rows of a Parquet file that are read at a time
ROWS = ("JSON lines", "a Parquet file")
ALL_KINDS = [kind for kind, _ in KINDS.values()]
JSONL = re.compile(r"\.(jsonl|ndjson)(\.|$)", re.IGNORECASE)
TABLE = (
    "write a table as JSON lines, as pandas.read_csv(OLD).to_json(NEW, orient='records', "
    "lines=True) does"
)
Found = Iterator[tuple[str, tuple[str, ...]]]
"""Where texts are, such as in which line, and these texts."""

CONVERT = (
    "give the --encoding of all files, or convert them, as `iconv -f cp1252 -t UTF-8 OLD > NEW` "
    "does for Western Europe. Extract the text of binary files"
)


def row_format(path: Path, encoding: str) -> str:
    """Return which of ROWS the file has, or an empty text for plain text.

    Raises `UserError` for a file that has no text, and `UnicodeError` for another encoding.
    """
    check_input(path)
    with open_text(path, encoding, *ROWS) as (kind, file, _):
        if not kind and b"\0" in file.peek():
            raise UnicodeError
    # The bytes of UTF-8 may be those of other letters in another encoding.
    if encoding and encoding[:3].lower() != "utf" and encoding_of(path) == "utf-8":
        raise UnicodeError
    is_named = JSONL.search(path.name)
    return "JSON lines" if is_named and not kind else kind


@contextmanager
def open_text(
    path: Path, encoding: str, *known: str
) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """Open a file, compressed or not.

    Yield what it is, its content (text in UTF-8, if it has this encoding), and a function that
    updates its progress bar. Raises `UserError` if it cannot be read.
    """
    try:
        size = path.stat().st_size
        bar = tqdm(None, path.name, size, unit="B", unit_scale=True, disable=None, leave=False)
        with open(path, "rb") as raw, bar:
            kind, content = content_of(path, raw, *known)
            if encoding and kind != ROWS[1]:
                import pyarrow as pa

                "".encode(encoding)  # raises an error if it is none
                stream = pa.PythonFile(content)
                content = io.BufferedReader(pa.transcoding_input_stream(stream, encoding, "utf-8"))
                kind = kind_of(path, content, *known)
            if content.peek().startswith(codecs.BOM_UTF8):
                content.read(3)
            yield kind, content, lambda: bar.update(raw.tell() - bar.n)
    except (OSError, LookupError) as error:
        remedy = "check --input and --encoding, or copy the file again"
        raise UserError(f"cannot read the file ({error})", str(path), remedy) from error


@contextmanager
def decoding(encoding: str, files: Sequence[Path]) -> Iterator[None]:
    """Raise `UserError`, with what each file seems to have, if a text has another encoding."""
    try:
        yield
    except UnicodeError as error:
        found = [(encoding_of(path), str(path)) for path in files]
        # There may be many files: those that are not UTF-8 are first.
        found.sort(key=lambda pair: pair[0] in ("ascii", "utf-8"))
        where = "; ".join(f"{path} ({name})" for name, path in found)
        what = f"not {encoding or 'UTF-8'} text"
        raise UserError(what, shorten(where, 600), CONVERT) from error


def encoding_of(path: Path) -> str:
    """Return the encoding that a text seems to have, by its first block beyond plain ASCII."""
    with open_text(path, "", *ALL_KINDS) as (_, file, _):
        for block in iter(partial(file.read, 1 << 20), b""):
            if not block.isascii() or b"\0" in block:
                return guess(block)
    return "ascii"


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


def rows(path: Path, encoding: str, keys: tuple[str, ...], remedy: str) -> Found:
    """Yield (where, texts under `keys`) for each row of a JSONL or Parquet file.

    Raises `UserError` for a value that is not a text.
    """
    is_parquet = row_format(path, encoding) == ROWS[1]
    read = parquet_rows(path, keys) if is_parquet else _json(path, encoding, remedy)
    for where, row in read:
        fields = row if isinstance(row, dict) else {}
        texts: list[Any] = [fields.get(key) for key in keys]
        if not all(isinstance(text, str) for text in texts):
            what = f"no texts under {' and '.join(map(repr, keys))}"
            if fields:
                what += f", but {', '.join(fields)}"
            raise UserError(what, where, remedy)
        check_text("".join(texts), where)
        yield where, tuple(text.removeprefix("\ufeff") for text in texts)


def check_text(text: str, where: str) -> None:
    """Raise `UserError` if UTF-8 cannot encode the text, since it has half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"not UTF-8 text ({text[error.start]!r} is no character)"
        raise UserError(what, where, "replace it") from error


def _json(path: Path, encoding: str, remedy: str) -> Iterator[tuple[str, object]]:
    with open_text(path, encoding, ROWS[0]) as (_, file, tick):
        for number, line in enumerate(file, 1):
            tick()
            text = line.decode().strip()
            if not text:
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                what = f"no JSON object, but {text[:40]!r} ({error})"
                raise UserError(what, where, f"{remedy}, or {TABLE}") from error
            yield where, row


def parquet_rows(path: Path, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(path)
        # If a field is missing, the error names those that the rows have.
        has_all = {*keys} <= {*file.schema_arrow.names}
        for batch in file.iter_batches(TOGETHER, columns=list(keys) if has_all and keys else None):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        what = f"a Parquet file that is cut off or damaged ({error})"
        raise UserError(what, str(path), "copy or download it again") from error
