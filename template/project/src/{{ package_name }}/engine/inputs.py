"""What the files are that users name, by their first bytes: a name may be wrong."""

from __future__ import annotations

import re
from io import BufferedReader
from pathlib import Path

import yaml

from .errors import UserError

KINDS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))


def kind_of(path: Path, file: BufferedReader, *known: str) -> str:
    """Return what the opened file of a path is, or an empty text for a plain text.

    Raises `UserError` for a kind that is neither `known` nor a way of compression.
    """
    head = file.peek()[:512].decode("latin-1")
    for pattern, (kind, remedy) in KINDS.items():
        if re.match(pattern, head, re.DOTALL):
            if remedy and kind not in known:
                raise UserError(f"cannot read {kind}", str(path), remedy)
            return str(kind)
    return ""
