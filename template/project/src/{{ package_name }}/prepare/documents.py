"""How files of text become documents: in pieces, so that files may be larger than memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..engine.errors import UserError, note
from ..texts import ALL_KINDS, TABLE, Seen, open_text, row_format, rows

PIECE = 64 << 10  # bytes of a text that a core tokenizes at a time
Piece = tuple[bytes, bool]
"""A piece of a document, and whether it is the end of the document."""


def documents(path: Path, column: str | None, seen: Seen, encoding: str = "") -> Iterator[Piece]:
    """Yield the pieces of a file. The texts of rows are left out if they are in `seen`.

    column: the field with the text; `none` to read rows as one text. encoding: UTF-8 by default.
    """
    if column != "none" and row_format(path, encoding):
        remedy = "name the field with --column, or read the file as one text with --column none"
        for _, (text,) in rows(path, encoding, (column or "text",), remedy):
            if seen.add(text):
                yield text.encode(), True
        return
    if column not in (None, "none"):
        raise UserError("a text without fields", str(path), f"leave out --column, or {TABLE}")
    if path.suffix in (".csv", ".tsv"):
        note(f"a table such as {path.name} is one text: if its rows are documents, {TABLE}")
    for piece in pieces(path, encoding):
        yield piece, False
    yield b"", True


def pieces(path: Path, encoding: str = "") -> Iterator[bytes]:
    """Yield a file in pieces, cut so that tokens are those of the whole text."""
    unfinished = b""
    with open_text(path, encoding, *ALL_KINDS) as (_, file, tick):
        for block in iter(partial(file.read, PIECE), b""):
            text = unfinished + block
            cut = boundary(text)
            yield text[:cut]
            unfinished = text[cut:]
            tick()
    yield unfinished


def boundary(text: bytes) -> int:
    """Return where to cut a text without cutting a token.

    The cut is before a newline that follows a visible ASCII character: no token crosses it, because
    GPT-2's pattern always begins a new token there. If there is none, the cut is between two
    characters of UTF-8.
    """
    end = text.rfind(b"\n")
    while end > 0 and not 32 < text[end - 1] < 127:
        end = text.rfind(b"\n", 0, end)
    if end > 0:
        return end
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(text[-4:])
    unfinished, _ = decoder.getstate()  # the beginning of a character at the end of the text
    return len(text) - len(unfinished)
