"""No experiment tracker: the run folder has `metrics.jsonl`, `metrics.csv` and `curves.png` anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import Section


class Sections(Section):
    """The section of config.yaml that belongs to a tracker; none here."""


class Tracker:
    """Gets every row that the run folder gets."""

    def __init__(self, folder: Path, settings: Any):
        """For the run of this folder; opens nothing yet."""

    def open(self, step: int | None = None) -> str:
        """Begins, or goes on at `step`; returns where to look, if anywhere. None is beside training."""
        return ""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Numbers of a logged step: `train/loss`, `validation/loss`."""

    def show(self, step: int, files: Mapping[str, Path]) -> None:
        """Pictures (.png) and texts (.md) of an evaluation, by their names."""

    def close(self) -> None:
        """Sends what is pending."""
