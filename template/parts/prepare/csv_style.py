"""How a CSV file is written: its delimiter and decimal mark, guessed from its first rows."""

from __future__ import annotations

import csv
import io
import re
from codecs import getincrementaldecoder
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

SAMPLE_BYTES = 64 << 10  # from the beginning of a file
SAMPLE_ROWS = 100
DELIMITERS = ",;\t|"
NAMES = {"\t": "tab"}  # of delimiters, as `--delimiter` takes them
GZIP = b"\x1f\x8b"
CONTROL = re.compile("[\0-\x08\x0e-\x1f]")
BINARY = 1 / 20  # a text has a smaller fraction of control characters

COMMA_NUMBER = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def open_file(path: Path) -> Any:
    """Open a file for reading; it may be gzipped, whatever its name is."""
    file = pa.OSFile(str(path))
    beginning = file.read(len(GZIP))
    file.seek(0)
    if beginning == GZIP:
        return pa.CompressedInputStream(file, "gzip")
    return file


def read_sample(path: Path, encoding: str) -> str:
    """The first complete lines. Raises LookupError for an unknown encoding.

    Characters that are not in the encoding are replaced: reading the table reports them.
    """
    with open_file(path) as file:
        content = file.read(SAMPLE_BYTES)
    text = getincrementaldecoder(encoding)("replace").decode(content)
    if len(content) == SAMPLE_BYTES:
        text = text.rpartition("\n")[0]
    return text.removeprefix("\ufeff")


def is_binary(text: str) -> bool:
    """Whether this is a plot, a workbook or another file that is not text."""
    return len(CONTROL.findall(text)) > BINARY * len(text)


def rows_of(text: str, delimiter: str) -> list[list[str]]:
    """The first rows that are not blank, header included."""
    lines = io.StringIO(text.replace("\0", ""), "")
    reader = csv.reader(lines, delimiter=delimiter)
    return [row for row in islice(reader, SAMPLE_ROWS) if row]


def guess_delimiter(text: str, expected: str) -> str:
    """`expected` if it separates cells, else what gives most rows the header's length."""
    for mark in (expected, *DELIMITERS):
        lengths = [len(row) for row in rows_of(text, mark)]
        if lengths and lengths[0] > 1 and 2 * lengths.count(lengths[0]) > len(lengths):
            return mark
    return expected


def guess_decimal(text: str, delimiter: str) -> str:
    """A comma if a column has numbers with one and nothing else, and none has a point.

    `1,234` alone does not decide: the comma may separate thousands.
    """
    mark = "."
    for column in zip(*rows_of(text, delimiter)[1:], strict=False):
        cells = [cell.strip() for cell in column if cell.strip()]
        if any(POINT_NUMBER.fullmatch(cell) for cell in cells):
            return "."
        has_commas = any("," in cell and not THOUSANDS.fullmatch(cell) for cell in cells)
        if has_commas and all(COMMA_NUMBER.fullmatch(cell) for cell in cells):
            mark = ","
    return mark
