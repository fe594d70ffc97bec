"""The delimiter of a table of texts."""

from __future__ import annotations

import re

ENOUGH = 2 << 20  # characters; of a longer header, the beginning decides
DELIMITERS = ";\t|,"  # a comma is also in names and numbers, so it is the last choice


def find_delimiter(table: str) -> str:
    """Return the sign that is most often in the header and in the row below it.

    If none is in both, the header decides.
    """
    lines = re.sub('"[^"]*"', "", table[:ENOUGH]).splitlines()  # without quoted cells
    header, row, *_ = [*filter(None, lines), "", ""]

    def often(sign: str) -> tuple[int, int]:
        in_header = header.count(sign)
        return min(in_header, row.count(sign)), in_header

    found = max(DELIMITERS, key=often)
    return found if found in header else ","
