"""What encoding the bytes of a text may have."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import yaml

ENCODINGS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))


def guess(text: bytes) -> str:
    """Return the encoding that a text seems to have, or `unknown`."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, (letters, share) in ENCODINGS.items():
        try:
            # The text may be cut within a character.
            decoded = codecs.getincrementaldecoder(encoding)().decode(text)
        except UnicodeError:
            continue
        if len(re.findall(letters, decoded)) > share * len(re.findall("[^\0-\x7f]", decoded)):
            return str(encoding)
    return "unknown"
