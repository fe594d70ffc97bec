"""What a run prints and writes: lines, `metrics.jsonl`, `events.jsonl`, and the tracker's copy.

Only rank 0 prints and writes. A full disk does not end a training: records wait in memory.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from ..files import read_rows, write_text
from ..plugins import discover
from .report import Row, duration

if TYPE_CHECKING:
    from ..run.progress import Progress


class RunLog:
    """The lines, records and events of a run. trial: without a tracker."""

    def __init__(self, folder: Path, settings: Any, is_main: bool, trial: bool):
        self.folder = folder
        self.show_bar = settings.monitor.progress
        self.is_main = is_main
        modules = [] if trial else discover("engine.log", "Tracker")
        self.trackers = [module.Tracker(folder, settings) for module in modules]
        self.num_steps = 0
        self._file: TextIO = io.StringIO()  # metrics.jsonl, from `start` on
        self._bar = tqdm(disable=True)
        self._alerted: set[str] = set()

    def start(self, progress: Progress, num_steps: int) -> None:
        """Open the files and the tracker for a run of `num_steps`.

        Later records than `progress` are dropped, because a resumed run writes them again: those
        after its step, and those of evaluations after the one that it knows.
        """
        step = progress.step
        self.num_steps = num_steps
        if not self.is_main:
            return
        path = self.folder / "metrics.jsonl"
        records = []
        for record in read_rows(path):
            last_step = progress.evaluated if "split" in record else step
            if record["step"] <= last_step:
                records.append(record)
        write_text(path, "".join(json.dumps(record) + "\n" for record in records))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        for tracker in self.trackers:
            tracker.open(step)
        disable = None if self.show_bar == "auto" else not self.show_bar  # None: on a terminal
        self._bar = tqdm(
            total=num_steps, initial=step, unit="step", dynamic_ncols=True, disable=disable
        )

    # --- lines

    def line(self, text: str) -> None:
        """Print one line on rank 0, above the progress bar if there is one."""
        if self.is_main:
            tqdm.write(text)
            sys.stdout.flush()

    # --- records

    def training(self, record: Row, metrics: Iterable[str]) -> None:
        """Write and print a record of training. metrics: names of the model's metrics."""
        text = training_line(record, metrics)
        if "eta_s" in record:
            text += f"  ETA {duration(record['eta_s'])}"
        self._write(record)
        if self._bar.disable:
            self.line(f"step {record['step']}/{self.num_steps}  epoch {record['epoch']}  {text}")
        else:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(record["step"] - self._bar.n)

    def evaluation(self, record: Row, metrics: Row, mark: str) -> None:
        """Write and print the record of an evaluation. mark: printed at the end of the line."""
        self._write(record)
        values = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        where = f"step {record['step']}  {record['split']}"
        self.line(f"{where}  {values}  ({record['seconds']:.1f} s){mark}")

    def _write(self, record: Row) -> None:
        """Append a record to the file and send it to the tracker."""
        if not self.is_main:
            return
        step = record["step"]
        record = {name: finite_or_none(value) for name, value in record.items()}
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()  # a killed run loses no record
        except OSError as error:  # the next record that fits is written with this one
            what = f"{self.folder}: {error.strerror}"
            text = f"{what}: metrics wait in memory, training continues: free some space"
            self.alert(step, "disk", text)
        for tracker in self.trackers:
            tracker.log(record)

    # --- events

    def alert(self, step: int, kind: str, text: str) -> None:
        """Print an alert, once for each kind, and keep it for the report."""
        if kind in self._alerted:
            return
        self._alerted.add(kind)
        self.line(f"alert: {text}")
        self.event(step, "alert", text=text)

    def event(self, step: int, kind: str, **details: object) -> None:
        """Append an event to `events.jsonl`, such as a checkpoint or an alert."""
        if not self.is_main:
            return
        event = {"step": step, "event": kind, **details, "time": time.time()}
        path = self.folder / "events.jsonl"
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        """Write what is left. Every rank calls it, also after an error."""
        with suppress(OSError):
            self._file.close()
        self._bar.close()
        for tracker in self.trackers:
            tracker.close()


def training_line(record: Row, metrics: Iterable[str]) -> str:
    """Return the text of a record of training, for a line or the progress bar."""
    rate = f"{record['samples_per_second']:,.0f} samples/s"
    if "tokens_per_second" in record:
        rate = f"{record['tokens_per_second']:,.0f} tokens/s"
    if "mfu" in record:
        rate += f"  MFU {record['mfu']:.1%}"
    memory = ""
    if "memory_mb" in record:
        memory = f"  {record['memory_mb']:,.0f} MB"
    text = f"loss {record['loss']:.5f}"
    for name in metrics:
        if name != "loss":
            text += f"  {name} {record[name]:.4g}"
    return (
        f"{text}  lr {record['learning_rate']:.3g}  norm {record['gradient_norm']:.3g}  {rate}"
        f"  {record['step_ms']:.2f} ms/step"
        f"  data wait {record['data_wait_fraction']:.0%}{memory}"
    )


def finite_or_none(value: Any) -> Any:
    """Return None for nan and inf, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
