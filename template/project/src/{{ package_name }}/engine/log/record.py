"""Reads the files in the folder of a run, without torch.

A run that crashed, was killed or is still training can be read, too: missing and truncated entries
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import read_json, read_rows

Row = dict[str, Any]
Series = list[tuple[int, float]]
"""(step, value) of the rows that have a value."""


class Record:
    """The files of a run; empty where they are missing or damaged."""

    def __init__(self, folder: Path):
        self.folder = folder
        rows = read_rows(folder / "metrics.jsonl")
        self.training = [row for row in rows if "split" not in row]
        self.evaluations = [row for row in rows if "split" in row]
        self.events = read_rows(folder / "events.jsonl")
        self.environment = read_json(folder / "env.json")
        self.status = read_json(folder / "status.json")

    @property
    def state(self) -> str:
        """How the run ended, in a word or two."""
        state = str(self.status.get("state", "running"))
        return "running or killed" if state == "running" else state

    @property
    def step(self) -> int:
        """The last known step. The status of a killed run is old, so the log counts, too."""
        logged = [row["step"] for row in self.training]
        return int(max([self.status.get("step", 0), *logged]))

    @property
    def best(self) -> Row:
        """The evaluation with the lowest loss; empty if no loss is finite."""
        finite = [row for row in self.evaluations if row.get("loss") is not None]
        return min(finite, key=lambda row: row["loss"], default={})

    @property
    def baseline(self) -> float | None:
        """The loss without a model, if the run measured it."""
        events = [row for row in self.events if row.get("event") == "baseline_loss"]
        return events[0]["loss"] if events else None


def numbers(rows: Iterable[Row], name: str) -> Series:
    """Return (step, value) of the rows that have `name`; None stands for nan and infinity."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]
