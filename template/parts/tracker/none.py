"""No experiment tracker: the run folder has `metrics.jsonl`, `metrics.csv` and `curves.png` anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Gets every row that the run folder gets."""

    def __init__(self, run: Path, settings: Any):
        """Opens the run named as its folder."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Numbers of a logged step."""

    def close(self) -> None:
        """Sends what is pending."""
