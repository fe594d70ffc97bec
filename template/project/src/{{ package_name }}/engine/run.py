"""A run around its loop: phases, resume, evaluations, checkpoints, signals, hooks, and always a report.

The loop itself stands in `train.py`. `Run` is what it sees of one phase, and what hooks see; `Session` is
one call of `train`, from its folder to its exit code.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint, DiskFull
from .errors import NonFinite, UserError, explain
from .evaluation import evaluate, timed
from .files import write_text
from .memory import check_memory
from .monitor import Monitor
from .nonfinite import explain_non_finite
from .optimization import Schedule, dry_run, freeze_garbage
from .order import RULE as ORDER_RULE
from .progress import Hooks, Progress, Ranks, RecurrentState
from .report import write_report
from .runs import amend, write_environment, write_status
from .tracker import Tracker
from .weights import begin

if TYPE_CHECKING:
    from ..assemble import Project
    from ..config import Settings
    from .distributed import Distributed

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FAILED = 255  # what ranks agree on where a hook of one of them has called `fail`; no signal has this number


class Run:
    """One phase of a training, restored and ready: what the loop and the hooks see."""

    def __init__(self, session: Session, settings: Settings, project: Project):
        training, distributed = settings.training, project.distributed
        self.folder, self.settings, self.project = session.folder, settings, project
        self.session, self.progress, self.trial = session, session.progress, session.trial
        self.stop = 0  # the signal that all ranks know of
        self._failure: UserError | None = None
        self._saved = -1
        closing = session.closing  # takes what is open also where the rest of this raises

        self.loader = project.loader("train", train=True)
        closing.callback(self.loader.close)
        first, last = project.store.splits.get("validation", (0, 0))
        part = settings.evaluation.fraction
        self.validation = project.loader("validation", fraction=part) if last > first else None
        if self.validation is not None:
            closing.callback(self.validation.close)
        self.accumulation = training.gradient_accumulation_steps
        groups = -(-len(self.loader) // self.accumulation)
        self.total = training.max_steps or training.epochs * groups
        self.samples = self.loader.order.slots * self.accumulation  # of a whole step, over all ranks
        self.recurrent = RecurrentState()
        self.schedule = Schedule(project.optimizer, settings, self.total)
        self.hooks = Hooks(self.trial, session.notes)
        tracker = Tracker(self.folder, settings) if distributed.is_main and not self.trial else None
        self.monitor = Monitor(self.folder, project, tracker, self.loader)
        closing.callback(self.monitor.close)
        self.checkpoint = Checkpoint(
            self.folder / "checkpoints",
            distributed,
            settings.checkpoint.keep,
            {"data": project.store.fingerprint, "phase": self.progress.phase},
            {"order": ORDER_RULE},
            model=project.model,
            optimizer=project.optimizer,
            schedule=self.schedule,
            precision=project.precision,
            progress=self.progress,
            hooks=self.hooks,
            rows=self.monitor,
            ranks=Ranks(distributed, self.progress, self.recurrent, self.loader.order, self.accumulation),
        )
        distributed.together(lambda: check_memory(project, self.loader, self.validation))
        weight = distributed.together(lambda: dry_run(project, self.loader))
        project.precision.calibrate(max(distributed.gather(weight)))
        distributed.together(lambda: self._restore(session.resumed))
        self.schedule.set(self.step_of_phase)
        self.monitor.start(self.progress.step, self.end)
        closing.callback(self.tell_hooks, "close")

    def tell_hooks(self, moment: str, *facts: object) -> list[Any]:
        """Calls that method of each hook that has it, in the order of names; returns what they say."""
        return self.hooks.tell(moment, self, *facts)

    def _restore(self, resumed: bool) -> None:
        """The newest valid checkpoint of this phase, the weights of the phase before it, or new ones."""
        progress = self.progress
        if progress.phase_start and progress.step == progress.phase_start:  # this call has just begun it
            self.checkpoint.load_model("last", also=("hooks",))
            return
        restored = self.checkpoint.load("last", data=self.project.store.fingerprints) if resumed else None
        self.session.notes += [f"skipped a damaged checkpoint: {name}" for name in self.checkpoint.skipped]
        self._saved = restored["step"] if restored else -1
        self._mark_best()  # where it was killed between saving and marking
        self.session.notes += begin(self.project, restored is not None)

    def _mark_best(self) -> None:
        """Names the checkpoint of the best step, if that could be saved."""
        progress = self.progress
        if self.project.distributed.is_main and self._saved == progress.best_step:
            path = self.folder / "checkpoints" / f"step-{progress.best_step:08d}"
            self.checkpoint.mark_best(path, progress.best_loss)

    # --- where it stands

    @property
    def end(self) -> int:
        """The run's step at which the phase ends."""
        return self.progress.phase_start + self.total

    @property
    def step_of_phase(self) -> int:
        return self.progress.step - self.progress.phase_start

    @property
    def done(self) -> bool:
        """Whether the phase has come to its end."""
        return self.progress.stopped_early or self.progress.step >= self.end

    @property
    def over(self) -> bool:
        """Whether the loop ends here: the phase's length, --max-steps, a signal, an early stop."""
        return self.done or bool(self.stop) or 0 < self.session.limit <= self.progress.step

    # --- between two steps

    def advance(self, batch: int) -> int:
        """Counts the step that closed with micro-batch `batch` of the epoch (from 1); returns its number."""
        self.agree()
        self.progress.advance(batch, len(self.loader))
        if not self.progress.batch:
            self.recurrent.state = None
        if self.step_of_phase == 1:
            freeze_garbage()
        return self.progress.step

    def agree(self) -> bool:
        """Whether a rank has got a signal: every rank asks as often, and all get the same answer."""
        distributed = self.project.distributed
        self.stop = distributed.agree(FAILED if self._failure else self.session.signal) or self.stop
        if self.stop == FAILED:
            distributed.together(self._raise_failure)
        return bool(self.stop)

    def fail(self, error: UserError) -> None:
        """Ends the run with this error after the next step, on all ranks; one of them may call it alone."""
        self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 if every else self.progress.batch == 0

    @property
    def evaluation_due(self) -> bool:
        progress = self.progress
        due = progress.step >= self.end or self._due(self.settings.evaluation.every_steps)
        return bool(self.validation and progress.step > progress.evaluated and due and not self.trial)

    def evaluate(self) -> None:
        """A pass over the validation split; the best is saved. A signal leaves it to the resume."""
        progress = self.progress
        metrics, seconds = timed(self.measure)
        if metrics is None:
            return
        patience = self.settings.evaluation.patience
        better = progress.judge(metrics["loss"], patience)
        self.monitor.evaluation("validation", metrics, seconds, progress)
        if progress.stopped_early:
            self.monitor.line(f"early stop: {patience} evaluations without a better loss")
        if better:
            self.save()
            self._mark_best()

    def measure(self) -> dict[str, float] | None:
        """Metrics of the validation split, with what hooks add; None when a signal came meanwhile."""
        project = self.project
        with contextlib.ExitStack() as stack:
            for around in self.tell_hooks("evaluating"):
                stack.enter_context(around)
            parts = project.wrapped, self.validation, project.precision, project.distributed
            metrics = evaluate(*parts, self.agree)
        if metrics is not None:
            self.tell_hooks("after_evaluation", metrics)
        return metrics

    @property
    def save_due(self) -> bool:
        due = not self.trial and (self._due(self.settings.checkpoint.every_steps) or self.over)
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


@dataclass
class Session:
    """One call of `train` on one run folder; a context manager.

    assemble: settings → Project. limit: stop this call after that step, whatever the run's length.
    distributed: the run's processes; only rank 0 writes and prints. trial: metrics only, no evaluation,
    checkpoint or report. changed: settings of a resumed run that had another value, which it says.
    """

    folder: Path
    settings: Settings
    assemble: Callable[[Settings], Project]
    distributed: Distributed
    limit: int = 0
    resumed: bool = False
    trial: bool = False
    changed: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.main, self.progress, self.notes = self.distributed.is_main, Progress(), [*self.settings.notes]
        self.signal = 0  # that this process got
        self.attempts = 1  # hooks are new in each
        self.run: Run | None = None  # of the phase
        self.closing = contextlib.ExitStack()  # what the phase has open
        self._current = self.settings  # of the phase
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> Session:
        self.listen()
        if self.main and not self.resumed:
            write_text(self.folder / "config.resolved.yaml", self.settings.to_yaml())
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.closing.close()
        explained = self._explain(error)
        if self.main:
            self._conclude(explained or error)
        if explained is not None:
            explained.reported = not self.main and isinstance(error, NonFinite)
            raise explained from error

    def _explain(self, error: BaseException | None) -> UserError | None:
        """The line for an error that a setting can fix; None for any other."""
        if isinstance(error, NonFinite) and self.run is not None:
            return explain_non_finite(error, self.run)
        return explain(error, self._current, self.run.loader.order if self.run else None)

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

    def phases(self, only: int = 0) -> Iterator[Run]:
        """Each phase, ready to train; a run without phases is one of them.

        only: run this one phase (from 1), from the checkpoint that the one before it left.
        """
        phases = self.settings.phases
        if self.resumed and phases:  # else the checkpoint is read once, when it is restored
            facts = Checkpoint(self.folder / "checkpoints", self.distributed).peek("last")
            self.progress.phase = facts.get("phase", 0)
        if 0 < only <= self.progress.phase:
            where = f"the run is in phase {self.progress.phase + 1}"
            raise UserError(f"phase {only} is finished", where, "--resume goes on with it")
        for number in range(self.progress.phase, len(phases) or 1):
            run = self._begin(self.settings.phase(number + 1) if phases else self.settings)
            if only and number == only - 2 and not run.done:
                where = f"step {self.progress.step} of {run.end}"
                raise UserError(f"phase {only - 1} is not finished", where, "resume it first")
            yield run
            if not run.done or only == number + 1:
                return
            if number + 1 < len(phases):
                self.closing.close()
                self.progress.next_phase()

    def train(self, fit: Callable[[Run], None], phase: int = 0) -> None:
        """Trains all phases, or one; after an error once more where a hook's `on_error` says so.

        Then it goes on as `--resume` does, with `settings` as the hook may have left them.
        """
        while self._attempt(fit, phase):
            self.closing.close()
            self.run, self.resumed, self.progress = None, True, Progress()
            self.attempts += 1
            self.distributed.agree(self.signal)  # what `fail` said to all is said
            gc.unfreeze()
            gc.collect()  # what the attempt held

    def _attempt(self, fit: Callable[[Run], None], phase: int) -> bool:
        for run in self.phases(phase):
            try:
                fit(run)
            except Exception as error:
                # Of several ranks one alone would ask: the others wait for it in the middle of a step.
                if self.distributed.world > 1 and not isinstance(error, NonFinite | UserError):
                    raise
                if not any(self.distributed.gather(any(run.tell_hooks("on_error", error)))):
                    raise
                run.monitor.line(f"note: again, after {type(error).__name__}: {error}")
                return True
        return False

    def _begin(self, settings: Settings) -> Run:
        self._current = settings
        run = self.run = Run(self, settings, self.assemble(settings))
        self._introduce(run)
        run.project.distributed.together(lambda: run.tell_hooks("start"))
        return run

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal that ended the run (143 SIGTERM, 130 SIGINT)."""
        return 128 + self.run.stop if self.run and self.run.stop else 0

    @property
    def finished(self) -> bool:
        """Whether the last phase has come to its end."""
        last = self.progress.phase == max(len(self.settings.phases) - 1, 0)
        return last and self.run is not None and self.run.done

    # --- what the run says of itself

    def _introduce(self, run: Run) -> None:
        self.notes += run.project.remarks(run.loader, run.validation)
        if self.resumed:
            run.monitor.line(f"resumed at step {self.progress.step} of {run.end}")
            self._amend()
        parameters = run.monitor.introduce(run.total, run.samples, self.notes)
        if not self.main:
            return
        facts = {"changed": self.settings.changed(), "notes": self.notes, "parameters": parameters}
        write_environment(self.folder, run.project.device, optimizations=run.project.optimizations, **facts)
        run.project.store.remember(self.folder)
        write_status(self.folder, "running", "", self.progress.step, resumed=self.resumed)

    def _amend(self) -> None:
        """The run's settings get the values that hold from here on."""
        since = f"from step {self.progress.step} on"
        for key, before in self.changed.items():
            self.notes.append(f"{since} {key} is {self.settings.value(key)}; it was {before}")
        if self.main and self.changed:
            amend(self.folder, self.settings.to_yaml(), since)
        self.changed = {}

    def _conclude(self, error: BaseException | None) -> None:
        """Status and report; a mistake found before the start leaves nothing."""
        if isinstance(error, UserError) and not (self.resumed or (self.folder / "env.json").exists()):
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        closed = isinstance(error, BrokenPipeError)  # `train | head`
        state = "failed" if error and not closed else "finished" if self.finished else "stopped"
        with contextlib.suppress(OSError):  # a full disk must not hide the error that is on its way
            write_status(self.folder, state, self._reason(error), self.progress.step)
            if not self.trial:
                write_report(self.folder)

    def _reason(self, error: BaseException | None) -> str:
        if error is not None:
            return f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
        if self.run is not None and self.run.stop:
            return signal.Signals(self.run.stop).name
        return "" if self.finished else "--max-steps or --phase"
