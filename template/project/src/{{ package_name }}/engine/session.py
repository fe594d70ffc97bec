"""A run around its loop: folder, resume, evaluations, checkpoints, signals, and always a report.

The loop itself stands in `train.py`; each framework's loop calls the same few methods here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from .checkpoint import Checkpoint, DiskFull, newest_facts
from .environment import device_line, git_state, versions
from .errors import UserError
from .evaluation import evaluate, timed
from .failures import explain, out_of_memory
from .files import write_json, write_text
from .monitor import Monitor, NonFinite
from .optimization import freeze_garbage, reserved
from .progress import Progress, Ranks
from .report import read_json, write_report
from .reproducibility import random_state, set_random_state
from .schedule import Schedule
from .sections import changed_settings
from .step import Step
from .tracker import Tracker

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Session:
    """One call of `train` on one run folder; a context manager.

    assemble: settings → Project. limit: stop this call after that step, whatever the run's length.
    rank: of this process; only rank 0 writes and prints. trial: metrics only, no evaluation, checkpoint or
    report.
    """

    def __init__(
        self,
        run: Path,
        settings: Any,
        assemble: Callable[[Any], Any],
        limit: int = 0,
        resumed: bool = False,
        rank: int = 0,
        trial: bool = False,
    ):
        self.run, self.settings, self.assemble, self.limit = run, settings, assemble, limit
        self.resumed, self.main, self.trial = resumed, rank == 0, trial
        self.current, self.progress = settings, Progress()  # settings of the phase
        self.signal, self.stop = 0, 0  # that this process got; that all ranks know of
        self._saved = -1
        self._handlers: dict[int, Any] = {}

    # --- the run's beginning and end

    def __enter__(self) -> Session:
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        self.notes = list(self.settings.notes)
        if self.resumed and self.settings.phases:  # else the checkpoint is read once, when it is restored
            self.progress.phase = newest_facts(self.run / "checkpoints").get("phase", 0)
        elif self.main and not self.resumed:
            write_text(self.run / "config.resolved.yaml", self.settings.to_yaml())
        return self

    def listen(self) -> None:
        """Takes the signals; a framework that took them for itself gives them back here."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only notes it: the loop saves after its step. A second one ends at once, which harms nothing."""
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        if self.main:
            name = signal.Signals(number).name
            print(f"{name}: saving after this step; once more to leave at once", file=sys.stderr)

    def _agree(self) -> bool:
        """Whether a rank has got a signal: every rank asks as often, and all get the same answer."""
        distributed = self.project.distributed
        self.stop = distributed.agree(self.signal) or self.stop
        return bool(self.stop)

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._close_parts()
        explained = explain(error, self.current, getattr(self, "loader", None))
        if self.main:
            self._conclude(explained or error)
        if explained is not None:
            explained.told = not self.main and isinstance(error, NonFinite)
            raise explained from error

    def _conclude(self, error: BaseException | None) -> None:
        """Status and report; a mistake found before the start leaves nothing."""
        if isinstance(error, UserError) and not (self.resumed or (self.run / "env.json").exists()):
            shutil.rmtree(self.run, ignore_errors=True)
            return
        state = "failed" if error else "finished" if self.finished else "stopped"
        with contextlib.suppress(OSError):  # a full disk must not hide the error that is on its way
            self._status(state, self._reason(error))
            if not self.trial:
                write_report(self.run)

    def _close_parts(self) -> None:
        for name in ("loader", "validation", "monitor"):
            if (part := getattr(self, name, None)) is not None:
                part.close()

    def _reason(self, error: BaseException | None) -> str:
        if error is not None:
            return f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
        if self.stop:
            return signal.Signals(self.stop).name
        return "" if self.finished else "--max-steps or --phase"

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal that ended the run (143 SIGTERM, 130 SIGINT)."""
        return 128 + self.stop if self.stop else 0

    # --- phases

    def phases(self, only: int = 0) -> Iterator[Any]:
        """Each phase's project, ready to train; a run without phases is one of them.

        only: run this one phase (from 1), from the checkpoint that the one before it left.
        """
        phases = self.settings.phases
        if 0 < only <= self.progress.phase:
            where = f"the run is in phase {self.progress.phase + 1}"
            raise UserError(f"phase {only} is finished", where, "--resume goes on with it")
        for number in range(self.progress.phase, len(phases) or 1):
            self.begin(self.settings.phase(number + 1) if phases else self.settings)
            if only and number == only - 2 and not self._phase_done:
                where = f"step {self.progress.step} of {self.progress.phase_start + self.total}"
                raise UserError(f"phase {only - 1} is not finished", where, "resume it first")
            yield self.project
            if not self._phase_done or only == number + 1:
                return
            if number + 1 < len(phases):
                self._close_parts()
                self.progress.next_phase()

    @property
    def _phase_done(self) -> bool:
        return self.progress.stopped_early or self.progress.step >= self.end

    @property
    def finished(self) -> bool:
        """Whether the last phase has come to its end."""
        last = self.progress.phase == max(len(self.settings.phases) - 1, 0)
        return last and hasattr(self, "total") and self._phase_done

    @property
    def end(self) -> int:
        """The run's step at which the phase ends."""
        return self.progress.phase_start + self.total

    def begin(self, settings: Any) -> None:
        """Assembles, tries one batch, restores the newest checkpoint, and says what is on."""
        self.current = settings
        self.project = project = self.assemble(settings)
        training = settings.training
        self.accumulation = training.gradient_accumulation_steps
        self.loader = project.loader("train", train=True)
        first, last = project.store.splits.get("validation", (0, 0))
        self.validation = project.loader("validation") if last > first else None
        groups = -(-len(self.loader) // self.accumulation)
        self.total = training.max_steps or training.epochs * groups
        self.step = Step(
            *(project.wrapped, project.optimizer, project.precision, project.distributed),
            training.gradient_clip,
            no_sync=project.distributed.no_sync,
        )
        self.schedule = Schedule(project.optimizer, settings, self.total)
        tracker = Tracker(self.run, settings) if self.main else None
        self.monitor = Monitor(self.run, project, tracker, self.loader)
        self.checkpoint = Checkpoint(
            self.run / "checkpoints",
            project.distributed,
            settings.checkpoint.keep,
            {"data": project.store.fingerprint, "phase": self.progress.phase},
            {"data": project.store.fingerprints},
            model=project.model,
            optimizer=project.optimizer,
            schedule=self.schedule,
            precision=project.precision,
            progress=self.progress,
            ranks=Ranks(project.distributed, self.progress, self.step, self.loader.order, self.accumulation),
        )
        weight = project.distributed.together(self._dry_run)
        project.precision.calibrate(max(project.distributed.gather(weight)))
        project.distributed.together(self._restore)
        if self.main:
            project.store.remember(self.run)
        self.schedule.set(self.progress.step - self.progress.phase_start)
        self.samples = self.loader.order.slots * self.accumulation  # of a whole step, over all ranks
        self.monitor.start(self.progress.step, self.end, self.work)
        self._introduce()

    def _dry_run(self) -> float:
        """One forward and backward before step 0, so that memory and compile errors show now, not at night.

        Leaves no trace: random state, buffers and gradients are put back. Returns the batch's weight.
        """
        project, state = self.project, random_state()
        buffers = {name: buffer.clone() for name, buffer in project.model.named_buffers()}
        batches = self.loader.epoch(0)
        batch = next(batches)
        self.work = project.work(self.loader.samples, batch)
        try:
            with reserved(project.optimizer):
                with project.precision.autocast():
                    output = project.model(batch)  # as it is: without the exchange of gradients
                output.loss.backward(gradient=output.weight)
        except torch.cuda.OutOfMemoryError as error:
            if project.distributed.forward_exchanges:  # the others wait inside it: ending ends them
                raise
            raise out_of_memory(project.settings) from error
        batches.close()
        project.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in project.model.named_buffers():
                buffer.copy_(buffers[name])
        set_random_state(state)
        return output.weight.item()

    def _restore(self) -> None:
        """The newest valid checkpoint of this phase, else the weights that the phase before it left."""
        progress = self.progress
        if progress.phase_start and progress.step == progress.phase_start:  # this call has just begun it
            self.checkpoint.load_model("last")
            return
        found = self.checkpoint.load("last") if self.resumed else None
        self.notes += [f"skipped a damaged checkpoint: {name}" for name in self.checkpoint.skipped]
        if found is None:
            return
        self._saved = found["step"]
        if self.main and progress.best_step == found["step"]:  # killed between saving and marking
            self.checkpoint.mark_best(found["path"], progress.best_loss)

    # --- between two steps

    def advance(self, batches: tuple[int, int]) -> None:
        """After a step over the micro-batches [first, last + 1): progress, log, next learning rate."""
        self._agree()
        progress, epoch = self.progress, self.progress.epoch
        progress.step += 1
        progress.batch = batches[1]
        if progress.batch >= len(self.loader):  # normalised: an epoch's end is the next one's beginning
            progress.epoch, progress.batch = epoch + 1, 0
            self.step.carry.drop()
        self.monitor.step(progress.step, epoch, batches, self.step, self.schedule.learning_rate)
        self.schedule.set(progress.step - progress.phase_start)
        if progress.step == progress.phase_start + 1:
            freeze_garbage()

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 if every else self.progress.batch == 0

    @property
    def evaluation_due(self) -> bool:
        progress = self.progress
        due = progress.step >= self.end or self._due(self.project.settings.evaluation.every_steps)
        return bool(self.validation and progress.step > progress.evaluated and due and not self.trial)

    def evaluate(self) -> None:
        """A pass over the validation split; the best is saved. A signal leaves it to the resume."""
        progress, project = self.progress, self.project
        parts = project.wrapped, self.validation, project.precision, project.distributed
        metrics, seconds = timed(lambda: evaluate(*parts, self._agree))
        if metrics is None:
            return
        progress.evaluated = progress.step
        better = metrics["loss"] < progress.best_loss
        progress.without_gain = 0 if better else progress.without_gain + 1
        if better:
            progress.best_loss, progress.best_step = metrics["loss"], progress.step
        self.monitor.evaluation(progress.step, "validation", metrics, seconds, better)
        patience = project.settings.evaluation.patience
        if patience and progress.without_gain >= patience:
            progress.stopped_early = True
            self.monitor.line(f"early stop: {patience} evaluations without a better loss")
        if better:
            self.save()
            if self.main and self._saved == progress.step:
                path = self.run / "checkpoints" / f"step-{progress.step:08d}"
                self.checkpoint.mark_best(path, metrics["loss"])

    @property
    def save_due(self) -> bool:
        due = not self.trial and (self._due(self.project.settings.checkpoint.every_steps) or self.over)
        return due and self._saved != self.progress.step

    def save(self) -> None:
        """Saves, unless a loss has gone bad. A full disk costs this one; only the last must hold."""
        self.monitor.check()
        step = self.progress.step
        try:
            _, seconds = timed(lambda: self.checkpoint.save(step))
            self._saved = step
            self.monitor.exclude(seconds)
            self.monitor.event(step, "checkpoint", seconds=seconds)
        except DiskFull as error:
            if self.over:
                raise
            self.monitor.line(f"note: {error}; training goes on, the next checkpoint tries again")

    @property
    def over(self) -> bool:
        """Whether the loop ends here: the phase's length, --max-steps, a signal, an early stop."""
        return self._phase_done or bool(self.stop) or bool(self.limit and self.progress.step >= self.limit)

    # --- what the run says of itself

    def _introduce(self) -> None:
        project, line = self.project, self.monitor.line
        if project.store.source.get("kind") == "synthetic":
            self.notes.append(f"synthetic data in {project.store.folder}; `prepare` takes your own")
        without = [f"data.{name}" for name in self.loader.WITHOUT_EFFECT]
        self.notes += self.settings.without_effect(without, "this project's loader has no use for it")
        if self.resumed:
            line(f"resumed at step {self.progress.step} of {self.end}")
        line(f"{self.run}: {device_line(project.device)}")
        for entry in project.optimizations:
            line(f"  {entry['name']:<18}{entry['state']:<14}{entry['why']}")
        parameters = sum(parameter.numel() for parameter in project.model.parameters())
        steps = f"{self.total:,} steps of {self.samples:,} samples"
        line(f"  {parameters:,} parameters, {steps}{self.work.sentence}")
        for note in self.notes:
            line(f"note: {note}")
        if not self.main:
            return
        environment = {
            "versions": versions(),
            "gpu": device_line(project.device),
            "git": git_state(),
            "optimizations": project.optimizations,
            "changed": changed_settings(self.settings),
            "notes": self.notes,
            "parameters": parameters,
            "price_per_hour": self.settings.monitor.price_per_hour,
            "started": read_json(self.run / "env.json").get("started", time.time()),
            "argv": sys.argv[1:],
        }
        write_json(self.run / "env.json", environment)
        self._status("running", "")

    def _status(self, state: str, reason: str) -> None:
        resumes = read_json(self.run / "status.json").get("resumes", [])
        if state == "running" and self.resumed:
            resumes.append(self.progress.step)
        value = {"state": state, "reason": reason, "step": self.progress.step, "resumes": resumes}
        with contextlib.suppress(OSError):  # what ended the run matters more than its status
            write_json(self.run / "status.json", value)
