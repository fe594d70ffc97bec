"""How `prepare` and `predict` read files with pairs of texts."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from ..engine.errors import UserError
from ..texts import ROWS, Found, open_text, row_format, rows
from .delimiters import find_delimiter

AROUND_NAMES = "\"' \u00a0\u200b\u2060\ufeff"  # quotes, spaces, and characters without width
ESCAPED = re.compile(r'".*(""|\\").*"')  # a cell with quotes inside, as tables have it
CSV = re.compile(r"\.csv(\.|$)", re.IGNORECASE)
csv.field_size_limit(1 << 30)


def read_texts(file: str, encoding: str, *keys: str) -> Found:
    """Yield (where, texts) of each row or line; the first text is the source.

    keys: the names of the fields, or of the columns in a header.
    """
    path = Path(file)
    if row_format(path, encoding):
        remedy = "fix it, or name the fields with --source-key and --target-key"
        read = rows(path, encoding, keys, remedy)
    else:
        read = columns(path, encoding, keys)
    for where, texts in read:
        if not texts[0].strip():
            raise UserError("the source is empty", where, "fill it in, or remove the line")
        yield where, texts


def columns(path: Path, encoding: str, keys: tuple[str, ...]) -> Found:
    """Yield (where, texts) of each row of a table, without its header.

    Without a header, the columns are those of `keys`, and a source may have others behind it.
    """
    has_quotes = is_csv(path, encoding)
    wanted = [key.lower() for key in keys]
    names = wanted
    for number, (where, row) in enumerate(cells(path, encoding, has_quotes)):
        header = [cell.strip(AROUND_NAMES).lower() for cell in row]
        if number == 0 and {*wanted} <= {*header}:
            print(f"note: the first line of {path} is a header: {row}")
            if any(header.count(name) > 1 for name in wanted):
                raise UserError("two columns have one name", where, "name each column once")
            names = header
            continue
        if number == 0 and len(row) > 1 and not {*wanted} <= {"source", "target"}:
            what = f"no columns {' and '.join(map(repr, keys))}, but {', '.join(row)[:80]}"
            raise UserError(what, where, "check --source-key and --target-key")
        if len(row) != len(names) > 1:
            remedy = "write one pair per line: source, one tab, target, as `paste OLD OTHER > NEW` "
            remedy += "does; in a .csv file, quote texts that have its delimiter"
            raise UserError(f"{len(row)} instead of {len(names)} cells", where, remedy)
        for cell in row:
            breaks = cell.count("\n")
            is_unclear = breaks and cell.count("\t") == breaks * (len(row) - 1)
            if is_unclear or (not has_quotes and ESCAPED.fullmatch(cell)):
                what = "quotes that may be those of a CSV file, or part of the texts"
                raise UserError(what, where, "write the texts as .jsonl")
        yield where, tuple(row[names.index(name)] for name in wanted)


def is_csv(path: Path, encoding: str) -> bool:
    """Whether all of a file is a table in which quotes are around texts, not part of them."""
    is_named = CSV.search(path.name) is not None
    try:
        widths = {len(row) for _, row in cells(path, encoding, has_quotes=True)}
    except csv.Error as error:
        if is_named:
            raise UserError(f"no CSV file ({error})", str(path), "fix its quotes") from error
        return False
    return is_named or len(widths) == 1


def cells(path: Path, encoding: str, has_quotes: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a .tsv or .csv file that are not blank."""
    with open_text(path, encoding, ROWS[0]) as (_, file, tick):
        delimiter = "\t"
        if CSV.search(path.name):
            first = file.peek().decode(errors="replace")
            delimiter = find_delimiter(first)
        quoting = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
        text = io.TextIOWrapper(file, "utf-8", newline="")
        reader = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore
        for row in reader:
            tick()
            if row:
                yield f"{path}, line {reader.line_num}", row
