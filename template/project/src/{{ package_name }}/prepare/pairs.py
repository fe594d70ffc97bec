"""How `prepare` and `predict` read files with pairs of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..engine.errors import UserError, note
from ..texts import lines, row_format, rows

AROUND_NAMES = "\"' \u00a0\u200b\u2060\ufeff"  # quotes, spaces, and characters without width
QUOTED = re.compile(r'"([^"]|"")*"')  # a whole cell, as a CSV file has it


def read_texts(file: str, *keys: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, texts) of each row or line; the first text is the source.

    keys: the fields of .jsonl and .parquet. A .tsv file may have them as a header.
    """
    path = Path(file)
    if row_format(path):
        remedy = "fix it, or name the fields with --source-key and --target-key"
        read = rows(path, keys, remedy)
    else:
        read = cells(path, keys)
    for where, texts in read:
        if not texts[0].strip():
            raise UserError("the source is empty", where, "fill it in, or remove the line")
        yield where, texts


def cells(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, cells) of each line of a .tsv file, without a header.

    Quotes are part of a text. Raises `UserError` for a cell with the quotes of a CSV file.
    """
    header = [key.lower() for key in keys]
    for number, line in lines(path):
        where = f"{path}, line {number}"
        texts = line.split("\t")
        names = [text.strip(AROUND_NAMES).lower() for text in texts[: len(keys)]]
        if number == 1 and names == header:
            print(f"note: the first line of {path} is a header: {line!r}")
            continue
        if number == 1 and sorted(names) == sorted(header):
            what = f"the header has the columns in another order than {' and '.join(keys)}"
            raise UserError(what, where, "exchange the columns, or write .jsonl")
        quoted = [text for text in texts if QUOTED.fullmatch(text)]
        if any('""' in text[1:-1] for text in quoted):
            what = "a text in the quotes of a CSV file, which would become part of it"
            raise UserError(what, where, "write the texts without them, or as .jsonl")
        if len(quoted) == len(texts):
            note(f"{path} has texts in quotes, which stay part of them")
        yield where, tuple(texts)
