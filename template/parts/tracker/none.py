"""No experiment tracker: the run folder has `metrics.jsonl` and `curves.png`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Receives every record that is written to the run folder, and does nothing with it."""

    def __init__(self, folder: Path, settings: Any):
        """Prepare; nothing is opened yet."""

    def open(self, step: int | None = None) -> str:
        """Begin or resume at `step` (None: an evaluation alone); return where to look."""
        return ""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the numbers of a step: `train/loss`, `validation/loss`."""

    def show(self, step: int, files: Mapping[str, Path]) -> None:
        """Send plots (.png) and texts (.md) of an evaluation, by their names."""

    def close(self) -> None:
        """Send what is pending."""
