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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from .errors import NonFinite
from .files import read_rows, write_text
from .runs import device_line

if TYPE_CHECKING:
    from ..assemble import Project
    from .progress import Progress
    from .tracker import Tracker

T = TypeVar("T")
Row = dict[str, Any]
Losses = list[tuple[Tensor, Tensor]]
"""(loss, weight) of each micro-batch of an optimizer step, on the device."""

WAITS = 0.15  # an alert where the loop waits for data for a larger share of the time
STRETCH_SECONDS = 10.0  # least time that is judged
DIVERGED = 3.0  # times the best loss of the validation: an alert
# Steps with a line before the first of `monitor.every_steps`: does it go, how long?
FIRST = (1, 2, 5, 10, 20)


class Monitor:
    """The lines and files of a run. `row` is the last logged row of metrics, None before the first.

    Only the main rank writes and prints, and only there is a tracker; `note`, `log` and `check` are
    called on every rank.
    """

    def __init__(self, folder: Path, project: Project, tracker: Tracker | None, loader: Any):
        self.folder, self.project, self.tracker, self.loader = folder, project, tracker, loader
        self.distributed, self.main = project.distributed, project.distributed.is_main
        self.every = project.settings.monitor.every_steps
        # Samples of a batch over all ranks, on the average of an epoch: its last one is filled up.
        self.samples = min(loader.order.count / len(loader), loader.order.slots)
        self.row: Row | None = None
        self.end = 0
        # A hook adds its own: samples a second and devices → metrics.
        self.rates: list[Callable[[float, int], Row]] = []
        self._bar: tqdm | None = None
        self._file: TextIO = io.StringIO()  # until `start`
        self._pending: list[tuple[int, int, tuple[int, int], Losses]] = []
        # Since the last row: (loss, weight) of each micro-batch, and (sum, count) of what a model measures.
        self._open: dict[str, Losses] = {"loss": []}
        self._stretch = (0.0, 0.0)  # seconds waited for data and in all, since the last judgement
        self._alerted: set[str] = set()
        self._naive: float | None = None  # the loss without a model, from the first evaluation on
        self._restart(0)

    def start(self, step: int, end: int) -> None:
        """Begins (or goes on) at `step` of `end`; rows behind it, of a run that died later, are dropped."""
        self.end = end
        path, progress = self.folder / "metrics.jsonl", self.project.settings.monitor.progress
        if self.main:
            kept = [json.dumps(row) + "\n" for row in read_rows(path) if row["step"] <= step]
            write_text(path, "".join(kept))
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
            if sys.stderr.isatty() if progress == "auto" else progress:
                self._bar = tqdm(total=end, initial=step, unit="step", dynamic_ncols=True)
        if where := self.distributed.together(lambda: self.tracker.open(step) if self.tracker else ""):
            self.line(f"tracked in {where}")
        self._restart(step)

    def _restart(self, step: int) -> None:
        self._since, self._from, self._batches, self.waited = time.perf_counter(), step, 0, 0.0

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Passes batches on and adds up the time that the loop waits for them."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter() - self.loader.stall_seconds
            batch = next(iterator, None)
            self.waited += time.perf_counter() - self.loader.stall_seconds - start
            if batch is None:
                return
            yield batch

    def note(self, step: int, epoch: int, batches: tuple[int, int], losses: Losses) -> None:
        """After optimizer step `step` (from 1) over micro-batches [first, last + 1) of `epoch` (from 0)."""
        self._pending.append((step, epoch, batches, losses))
        self._open["loss"] += losses
        self._batches += batches[1] - batches[0]

    def keep(self, metrics: dict[str, tuple[Tensor, Tensor]]) -> None:
        """What a model measures while it trains, (sum, count) by name: their means stand in the next row."""
        for name, (total, count) in metrics.items():
            self._open.setdefault(name, []).append((total.detach().float(), count.float()))

    def state_dict(self) -> dict[str, Any]:
        """What the next row will be a mean of, on every rank (host sync)."""
        parts = {name: [torch.stack(pair) for pair in pairs] for name, pairs in self._open.items() if pairs}
        mine = {name: torch.stack(pairs).tolist() for name, pairs in parts.items()}
        return {"ranks": self.distributed.gather(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of other processes than those that saved, the first goes on with all of it."""
        ranks, group = state.get("ranks", []), self.distributed
        if len(ranks) == group.world:
            ranks = [ranks[group.rank]]
        elif not self.main:
            return
        for name, part in (item for rank in ranks for item in rank.items()):
            pairs = torch.tensor(part, device=self.project.device).view(-1, 2)
            self._open.setdefault(name, []).extend((total, count) for total, count in pairs)

    def due(self, step: int) -> bool:
        """Whether `log` comes after this step: at the first ones, then every so many, and at the end."""
        return step % self.every == 0 or step == self.end or (step in FIRST and step < self.every)

    def log(self, step: int, epoch: int, norm: Tensor, learning_rate: float) -> None:
        """A row and a line at the step that was just noted (host sync). Raises `NonFinite`.

        The loss and what the model measured are means over the steps since the last row, of all ranks.
        norm: () gradient norm before clipping. epoch: from 0; rows and lines count from 1.
        """
        sums = []
        for name, pairs in self._open.items():
            values, weights = (torch.stack(part) for part in zip(*pairs, strict=True))
            total = (values * weights).sum() if name == "loss" else values.sum()
            sums.append(torch.stack([total, weights.sum()]).float())
        totals = self.distributed.sum(torch.stack(sums))
        means = totals[:, 0] / totals[:, 1].clamp(min=1)
        size, *found = torch.cat([norm.float().view(1), means]).tolist()
        measured, self._open = dict(zip(self._open, found, strict=True)), {"loss": []}
        self.check()
        seconds, device = time.perf_counter() - self._since, self.project.device
        per_step = seconds / (step - self._from)
        row = {
            "step": step,
            "epoch": epoch + 1,
            **measured,
            "learning_rate": learning_rate,
            "gradient_norm": size,
            "samples_per_second": self._batches * self.samples / seconds,
            "step_ms": 1000 * per_step,
            "data_wait_fraction": self.waited / seconds,
            "eta_s": (self.end - step) * per_step,
            "time": time.time(),
        }
        if self.project.precision.scaler is not None:
            row["skipped_steps"] = self.project.precision.skipped()  # since the last row
        for rates in self.rates:
            row |= rates(row["samples_per_second"], self.distributed.world)
        if device.type == "cuda":
            row["memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
            row["memory_reserved_mb"] = torch.cuda.max_memory_reserved(device) / 2**20
        self._write(row)
        self._say(row)
        if self.row is not None:  # the first steps compile, and fill caches
            self._judge(step, seconds)
        self.row = row
        self._restart(step)

    def _judge(self, step: int, seconds: float) -> None:
        """An alert where the loop waited for data for too much of a stretch."""
        waited, passed = self._stretch = self._stretch[0] + self.waited, self._stretch[1] + seconds
        if passed < STRETCH_SECONDS:
            return
        self._stretch = (0.0, 0.0)
        if waited > WAITS * passed:
            workers = self.loader.stats().get("workers")
            remedy = "a faster disk, or work that moves from dataset.py to `prepare`"
            if workers is not None:
                remedy = f"raise data.num_workers ({workers}), then data.prefetch_factor; or {remedy}"
            why = f"the loop waits for data {waited / passed:.0%} of the time"
            self.alert(step, "input-bound", f"input-bound: {why}: {remedy}")

    def alert(self, step: int, kind: str, text: str) -> None:
        """A line, once for each kind, and an event for the report."""
        if kind not in self._alerted:
            self._alerted.add(kind)
            self.line(f"alert: {text}")
            self.event(step, "alert", text=text)

    def event(self, step: int, kind: str, **facts: object) -> None:
        """Appends what is no metric to `events.jsonl`: a checkpoint and its seconds, an alert."""
        if self.main:
            with suppress(OSError), open(self.folder / "events.jsonl", "a", encoding="utf-8") as file:
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

    def evaluation(self, split: str, metrics: Row, seconds: float, progress: Progress) -> None:
        """A row with `split`, and a line; the best so far is marked, one that is far too bad an alert."""
        step, best = progress.step, progress.best_step == progress.step
        metrics = self.project.finish(metrics, split)
        self._write({"step": step, "split": split, **metrics, "seconds": seconds, "time": time.time()})
        self._write_csv()
        values = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        self.line(f"step {step}  {split}  {values}  ({seconds:.1f} s){'  best so far' if best else ''}")
        if self.main:
            self._judge_loss(split, metrics["loss"], progress)
        self.exclude(seconds)

    def _judge_loss(self, split: str, loss: float, progress: Progress) -> None:
        """An alert where the model has become far worse than it was, or is worse than none.

        The latter from a tenth of the run on, and not in its first steps: every model begins so.
        """
        step = progress.step
        if self._naive is None:
            self._naive = self.project.naive(split)
            self.event(step, "naive", loss=self._naive if math.isfinite(self._naive) else None)
        if loss > DIVERGED * progress.best_loss > 0:
            best = f"its best {progress.best_loss:.4g} at step {progress.best_step}"
            why = f"the {split} loss {loss:.4g} is over {DIVERGED:g} times {best}"
        elif step >= max(self.end / 10, FIRST[-1]) and not loss <= self._naive:
            why = f"the {split} loss {loss:.4g} is worse than {self._naive:.4g} without a model"
        else:
            return
        settings = self.project.settings
        remedy = f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"
        remedy += "" if settings.training.gradient_clip else ", or set training.gradient_clip 1"
        self.alert(step, "divergence", f"divergence: {why}: {remedy}")

    def exclude(self, seconds: float) -> None:
        """Time that was not training: evaluations and checkpoints have figures of their own."""
        self._since += seconds

    def _write(self, row: Row) -> None:
        """Appends one object; flushed, so that a killed run loses no row. nan becomes null."""
        if not self.main:
            return
        clean = {name: x if not isinstance(x, float) or math.isfinite(x) else None for name, x in row.items()}
        with self._going_on():
            self._file.write(json.dumps(clean) + "\n")
            self._file.flush()
        if self.tracker is None:
            return
        group = row.get("split", "train")
        sent = {f"{group}/{name}": x for name, x in clean.items() if isinstance(x, float) and name != "time"}
        self.tracker.log(row["step"], sent)

    def _write_csv(self) -> None:
        """The same rows as a table, all columns that occur."""
        if not self.main:
            return
        rows, table = read_rows(self.folder / "metrics.jsonl"), io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = ([row.get(name) for name in names] for row in rows)
        csv.writer(table, lineterminator="\n").writerows([names, *lines])
        with self._going_on():
            write_text(self.folder / "metrics.csv", table.getvalue())

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """A full disk ends no training: rows wait in memory, and go out with the next that can."""
        try:
            yield
        except OSError as error:
            what = f"{self.folder}: {error.strerror}: metrics wait in memory, training goes on"
            self.alert(self._from, "disk", what)

    def _say(self, row: Row) -> None:
        """The row for a reader."""
        unit = "tokens" if "tokens_per_second" in row else "samples"
        rate = f"{row[f'{unit}_per_second']:,.0f} {unit}/s"
        rate += f"  MFU {row['mfu']:.1%}" if "mfu" in row else ""
        memory = f"  {row['memory_mb']:,.0f} MB" if "memory_mb" in row else ""
        waits = f"{row['data_wait_fraction']:.0%}"
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {row['loss']:.4g}, {rate}, data {waits}{memory}", False)
            self._bar.update(row["step"] - self._bar.n)
            return
        self.line(
            f"step {row['step']}/{self.end}  epoch {row['epoch']}  loss {row['loss']:.5f}"
            f"  lr {row['learning_rate']:.3g}  norm {row['gradient_norm']:.3g}  {rate}"
            f"  {row['step_ms']:.2f} ms/step  data wait {waits}{memory}"
            f"  ETA {timedelta(seconds=round(row['eta_s']))}"
        )

    def introduce(self, steps: int, samples: int, notes: list[str]) -> int:
        """Says what trains on what, and how; returns the number of parameters. samples: of a step."""
        self.line(f"{self.folder}: {device_line(self.project.device)}")
        for entry in self.project.optimizations:
            self.line(f"  {entry['name']:<18}{entry['state']:<13} {entry['why']}")
        parameters: int = sum(parameter.numel() for parameter in self.project.model.parameters())
        self.line(f"  {parameters:,} parameters, {steps:,} steps of {samples:,} samples")
        for note in notes:
            self.line(f"note: {note}")
        return parameters

    def line(self, text: str) -> None:
        """One line on the main rank, above the bar where there is one."""
        if self.main:
            tqdm.write(text) if self._bar is not None else print(text, flush=True)

    def close(self) -> None:
        """Writes what is left; every rank calls it, also after an error."""
        self._write_csv()
        with self._going_on():
            self._file.close()
        if self._bar is not None:
            self._bar.close()
        if self.tracker is not None:
            self.tracker.close()
