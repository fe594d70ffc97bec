"""The content of a file, decompressed."""

from __future__ import annotations

import io
from pathlib import Path

from ..engine.inputs import kind_of


def content_of(path: Path, file: io.BufferedReader, *known: str) -> tuple[str, io.BufferedReader]:
    """Return what the content of an opened file is, and the content, decompressed.

    Raises `UserError` for a file that is neither a plain text nor of a kind in `known`.
    """
    kind = kind_of(path, file, *known)
    if kind not in ("gzip", "bz2", "zstd", "lz4"):
        return kind, file
    import pyarrow as pa

    content = io.BufferedReader(pa.input_stream(file, compression=kind))
    # Columns are read from several places of a file.
    return kind_of(path, content, "JSON lines"), content
