"""How `prepare` and `predict` read files with pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..engine.errors import UserError
from ..texts import has_rows, lines, rows


def read_texts(file: str, *keys: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, texts) of each row or line; the first text is the source.

    keys: the fields of .jsonl and .parquet. A .tsv file may have them as a header.
    """
    path = Path(file)
    if has_rows(path):
        remedy = "fix it, or name the fields with --source-key and --target-key"
        read = rows(path, keys, remedy)
    else:
        read = cells(path, keys)
    for where, texts in read:
        if not texts[0].strip():
            raise UserError("the source is empty", where, "fill it in, or remove the line")
        yield where, texts


def cells(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, cells) of each line of a .tsv file, without a header."""
    header = [key.lower() for key in keys]
    for number, line in lines(path):
        texts = line.split("\t")
        names = [text.strip().lower() for text in texts[: len(keys)]]
        if number == 1 and names == header:
            print(f"note: the first line of {path} is a header: {line!r}")
        else:
            yield f"{path}, line {number}", tuple(texts)
