"""Reads the files in the folder of a run, without torch.

A run that crashed, was killed or is still training can be read, too: missing and truncated entries
are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_json, read_rows

Row = dict[str, Any]
Series = list[tuple[int, float]]
"""(step, value) of the rows that have a finite number."""

NO_METRICS = ("step", "split", "loss", "seconds", "time")  # in the record of an evaluation


@dataclass
class Record:
    """The files of a run; empty where they are missing or damaged."""

    folder: Path
    history: list[Row]
    evaluations: list[Row]
    events: list[Row]
    environment: Row
    status: Row
    result: Row  # of the last `evaluate`

    @property
    def state(self) -> str:
        """How the run ended, in a word or two."""
        state = str(self.status.get("state", "running"))
        return "running or killed" if state == "running" else state

    @property
    def step(self) -> int:
        """The last known step. The status of a killed run is old, so the log counts, too."""
        logged = [row["step"] for row in self.history]
        return int(max([self.status.get("step", 0), *logged]))

    @property
    def seconds(self) -> float | None:
        """Seconds from the start to the last log entry, including pauses before a resume."""
        started = self.environment.get("started")
        times = [row.get("time", 0) for row in self.history + self.evaluations + self.events]
        if started is None or not times:
            return None
        return float(max(max(times) - started, 0))

    @property
    def best(self) -> Row:
        """The evaluation with the lowest loss; empty if no loss is finite."""
        finite = [row for row in self.evaluations if numbers([row], "loss")]
        return min(finite, key=lambda row: row["loss"], default={})

    @property
    def baseline(self) -> float | None:
        """The loss without a model, if the run measured it."""
        events = self.of_kind("baseline_loss")
        return events[0]["loss"] if events else None

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that evaluations measured, without the loss."""
        names = dict.fromkeys(name for row in self.evaluations for name in row)
        return [name for name in names if name not in NO_METRICS]

    def of_kind(self, kind: str) -> list[Row]:
        """Return the events of one kind: alert, baseline_loss, checkpoint, examples."""
        return [row for row in self.events if row.get("event") == kind]


def read_run(folder: Path) -> Record:
    """Read the folder of a run."""
    history, evaluations = read_metrics(folder / "metrics.jsonl")
    return Record(
        folder,
        history,
        evaluations,
        events=read_rows(folder / "events.jsonl"),
        environment=read_json(folder / "env.json"),
        status=read_json(folder / "status.json"),
        result=read_json(folder / "evaluation.json"),
    )


def read_metrics(path: Path) -> tuple[list[Row], list[Row]]:
    """Return (training steps, evaluations)."""
    rows = read_rows(path)
    steps = [row for row in rows if "split" not in row]
    evaluations = [row for row in rows if "split" in row]
    return steps, evaluations


def numbers(rows: Iterable[Row], name: str) -> Series:
    """Return (step, value) of the rows in which `name` is a finite number."""
    series = []
    for row in rows:
        value = row.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            series.append((row["step"], value))
    return series
