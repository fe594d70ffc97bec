"""What `prepare` and `predict` know of files with pairs of texts."""

from __future__ import annotations

# Frequent names of the two columns.
SOURCE_NAMES = {"source", "src", "input", "text", "document", "article", "question", "prompt"}
TARGET_NAMES = {"target", "tgt", "output", "summary", "answer", "response", "translation", "label"}


def is_header(cells: list[str], *keys: str) -> bool:
    """Whether the first line of a .tsv file names its columns: `keys`, or frequent names."""
    names = [cell.strip().lower() for cell in cells]
    if names[: len(keys)] == [key.lower() for key in keys]:
        return True
    return len(names) == 2 and names[0] in SOURCE_NAMES and names[1] in TARGET_NAMES
