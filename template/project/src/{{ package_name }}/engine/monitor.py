"""What a run says of itself: lines, `metrics.jsonl`, `metrics.csv`, alerts, and whether losses are sound.

Device values are read at logging steps only. In between the loop leaves references here, and nothing waits.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from .errors import NonFinite
from .files import read_rows, write_text
from .system import Leaks, System, judge
from .throughput import Work

T = TypeVar("T")


def held_up(loader: Any) -> float:
    """Seconds so far in which the loader waited for the GPU: the loop does so anyway, sooner or later."""
    return getattr(loader, "held_up", 0.0)


class Monitor:
    """Logs every `monitor.every_steps`-th step of a run.

    `start` says where: total steps of the run.
    """

    def __init__(self, run: Path, project: Any, tracker: Any, loader: Any):
        self.run, self.path, self.csv = run, run / "metrics.jsonl", run / "metrics.csv"
        self.settings, self.device, self.precision = project.settings, project.device, project.precision
        self.tracker, self.loader = tracker, loader
        self.distributed, self.main = project.distributed, project.distributed.is_main
        options, self.devices = project.settings.monitor, project.distributed.world
        self.every = options.every_steps
        shown = sys.stderr.isatty() if options.progress == "auto" else options.progress
        self.show_bar = shown and self.main
        self.bar: tqdm | None = None
        self.waited = 0.0
        self._file: io.TextIOBase | Any = io.StringIO()  # until `start`
        self._pending: list[tuple[int, int, tuple[int, int], list]] = []
        self._judged: tuple[float, float] | None = None  # seconds waited and in all, since the last judgement
        self._alerted: set[str] = set()
        self._full = False  # the disk
        self._leaks = Leaks(self.device)
        self.system: System | None = None

    def start(self, step: int, total: int, work: Work) -> None:
        """Begins (or goes on) at `step`; rows behind it, of a run that died later, are dropped."""
        self.total, self.work, order = total, work, self.loader.order
        # Samples of a batch over all ranks, on the average of an epoch: its last one is filled up.
        self.samples = min(len(order.samples) / len(self.loader), order.slots)
        self.system = System(self.run, self.device, self.settings.monitor.system_every_seconds, self.main)
        self._trim(step)
        if self.main:
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        where = self.distributed.together(lambda: self.tracker.open(step) if self.main else "")
        if where:
            self.line(f"tracked in {where}")
        if self.show_bar:
            self.bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True)
        self._restart(step)

    def _trim(self, step: int) -> None:
        if self.main and self.path.exists():
            kept = [row for row in read_rows(self.path) if row["step"] <= step]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def _restart(self, step: int) -> None:
        self._since, self._from, self._batches, self.waited = time.perf_counter(), step, 0, 0.0

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Passes batches on and adds up the time that the loop waits for them."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter() - held_up(self.loader)
            batch = next(iterator, None)
            self.waited += time.perf_counter() - held_up(self.loader) - start
            if batch is None:
                return
            yield batch

    def note(self, number: int, epoch: int, batches: tuple[int, int], losses: list) -> None:
        """After optimizer step `number` (from 1) over the micro-batches [first, last + 1) of `epoch`."""
        self._pending.append((number, epoch, batches, losses))
        self._batches += batches[1] - batches[0]
        if batches[0] == 0 and epoch > 0:  # the first epoch, its evaluation and checkpoint fill caches
            for line in self._leaks.grown():
                self.alert(number, line.partition(" grew")[0], f"memory: {line}: what keeps it?")

    def log(self, number: int, epoch: int, losses: list, norm: torch.Tensor, learning_rate: float) -> None:
        loss = torch.stack([loss * weight for loss, weight in losses]).sum()
        weight = torch.stack([weight for _, weight in losses]).sum()
        both = self.distributed.sum(torch.stack([loss, weight]))
        mean = both[0] / both[1].clamp(min=1)
        loss, norm = torch.stack([mean.float(), norm.float()]).tolist()  # host sync
        self.check()
        seconds, steps = time.perf_counter() - self._since, number - self._from
        row = {
            "step": number,
            "epoch": epoch,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            "samples_per_second": self._batches * self.samples / seconds,
            "step_ms": 1000 * seconds / steps,
            "data_wait_fraction": self.waited / seconds,
            "eta_s": (self.total - number) * seconds / steps,
            "time": time.time(),
        }
        if self.precision.scaler is not None:
            row["skipped_steps"] = self.precision.skipped()  # since the last row
        row |= self.work.rates(row["samples_per_second"], self.devices)
        if self.device.type == "cuda":
            row["memory_mb"] = torch.cuda.max_memory_allocated(self.device) / 2**20
            row["memory_reserved_mb"] = torch.cuda.max_memory_reserved(self.device) / 2**20
        self.write(row)
        self.say(row)
        self._judge(row, seconds)
        self._restart(number)

    def _judge(self, row: dict[str, Any], seconds: float) -> None:
        """An alert where the device was used badly, once `monitor.system_every_seconds` have passed."""
        if self._judged is None or self.system is None or not self.system.seconds:
            self._judged = (0.0, 0.0)  # the first steps compile, and fill caches
            return
        waited, passed = self._judged[0] + self.waited, self._judged[1] + seconds
        self._judged = waited, passed
        if passed < self.system.seconds:
            return
        self._judged = (0.0, 0.0)
        row = row | {"data_wait_fraction": waited / passed}
        found = judge(row, self.system.means(), self.settings, self.loader.stats().get("workers"))
        if found is not None:
            self.alert(row["step"], *found)

    def alert(self, step: int, kind: str, text: str) -> None:
        """A line, once for each kind, and an event for the report."""
        if kind not in self._alerted:
            self._alerted.add(kind)
            self.line(f"alert: {text}")
            self.event(step, "alert", text=text)

    def event(self, step: int, kind: str, **facts: Any) -> None:
        """Appends what is no metric to `events.jsonl`: a checkpoint and its seconds, an alert."""
        if self.main:
            with suppress(OSError), open(self.run / "events.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "event": kind, **facts, "time": time.time()}) + "\n")

    def check(self) -> None:
        """Raises `NonFinite` for the first bad loss since the last look (host sync)."""
        pending, self._pending = self._pending, []
        losses = [loss for *_, group in pending for loss, _ in group]
        if not losses or not self.distributed.sum((~torch.stack(losses).isfinite()).sum()):
            return
        bad = [entry for entry in pending if not torch.stack([loss for loss, _ in entry[3]]).isfinite().all()]
        found = self.distributed.gather((*bad[0][:3], self.distributed.rank) if bad else None)
        raise NonFinite(*min(filter(None, found)))

    def evaluation(
        self, step: int, split: str, metrics: dict[str, float], seconds: float, best: bool
    ) -> None:
        """A row with `split`, and a line; a best one is marked so."""
        self.write({"step": step, "split": split, **metrics, "seconds": seconds, "time": time.time()})
        self.write_csv()
        values = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        self.line(f"step {step}  {split}  {values}  ({seconds:.1f} s){'  best so far' if best else ''}")
        self.exclude(seconds)

    def exclude(self, seconds: float) -> None:
        """Time that was not training: evaluations and checkpoints have figures of their own."""
        self._since += seconds

    def write(self, row: dict[str, Any]) -> None:
        """Appends one object; flushed, so that a killed run loses no row. nan becomes null."""
        if not self.main:
            return
        clean = {name: None if _bad(value) else value for name, value in row.items()}
        with self._going_on():
            self._file.write(json.dumps(clean) + "\n")
            self._file.flush()
        group = row.get("split", "train")
        numbers = {
            f"{group}/{name}": value
            for name, value in clean.items()
            if isinstance(value, float) and name != "time"
        }
        self.tracker.log(row["step"], numbers)

    def write_csv(self) -> None:
        """The same rows as a table, all columns that occur."""
        if not self.main:
            return
        rows = read_rows(self.path)
        table = io.StringIO()
        writer = csv.DictWriter(
            table, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        with self._going_on():
            write_text(self.csv, table.getvalue())

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """A full disk ends no training: rows wait in memory, and go out with the next that can."""
        try:
            yield
        except OSError as error:
            if not self._full:
                self.line(f"note: {self.run}: {error.strerror}: metrics wait in memory, training goes on")
            self._full = True

    def say(self, row: dict[str, Any]) -> None:
        """The row for a reader."""
        unit = "tokens" if "tokens_per_second" in row else "samples"
        rate = f"{row[f'{unit}_per_second']:,.0f} {unit}/s"
        rate += f"  MFU {row['mfu']:.1%}" if "mfu" in row else ""
        memory = f"  {row['memory_mb']:,.0f} MB" if "memory_mb" in row else ""
        if self.bar is not None:
            self.bar.set_postfix_str(
                f"loss {row['loss']:.4g}, {rate}, data {row['data_wait_fraction']:.0%}{memory}", False
            )
            self.bar.update(row["step"] - self.bar.n)
            return
        self.line(
            f"step {row['step']}/{self.total}  epoch {row['epoch'] + 1}  loss {row['loss']:.5f}"
            f"  lr {row['learning_rate']:.3g}  norm {row['gradient_norm']:.3g}  {rate}"
            f"  {row['step_ms']:.2f} ms/step  data wait {row['data_wait_fraction']:.0%}{memory}"
            f"  ETA {_clock(row['eta_s'])}"
        )

    def line(self, text: str) -> None:
        """One line on the main rank, above the bar where there is one."""
        if self.main:
            tqdm.write(text) if self.bar is not None else print(text, flush=True)

    def close(self) -> None:
        if self.system is not None:
            self.system.close()
        self.write_csv()
        with self._going_on():
            self._file.close()
        if self.bar is not None:
            self.bar.close()
        if self.main:
            self.tracker.close()


def _bad(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
