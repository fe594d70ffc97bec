"""One phase of a training, as the loop in `train.py` and the hooks see it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint, NotWritten
from .errors import UserError
from .evaluation import evaluate, timed
from .memory import check_rows, dry_run
from .monitor import Monitor
from .optimization import Schedule, freeze_garbage
from .order import RULE as ORDER_RULE
from .progress import Hooks, Progress, RankStates
from .signals import Signals
from .tracker import Tracker
from .weights import load_initial

if TYPE_CHECKING:
    from .project import Project

FAILED = 255  # the ranks agree on it after one of them called `fail`; no signal has this number


@dataclass
class Run:
    """One phase of a training: its data, its schedule, its checkpoints and its metrics.

    Call `begin`, then train. `closing` closes what the constructor opened, also after an error.
    """

    folder: Path
    project: Project
    progress: Progress
    signals: Signals
    closing: contextlib.ExitStack
    limit: int = 0  # stop after this step of the run; 0: at its end
    trial: bool = False  # no evaluation, no checkpoint

    def __post_init__(self) -> None:
        project = self.project
        self.settings = project.settings
        self.notes: list[str] = []  # for the user, printed at the start
        self.stop = 0  # the signal that all ranks know of
        self.saved_step = -1
        self.failure: UserError | None = None

        self.loader = self._open("train", train=True)
        self.validation: Any = None
        first, end = project.store.splits.get("validation", (0, 0))
        if first < end:
            self.validation = self._open("validation", fraction=self.settings.evaluation.fraction)

        training = self.settings.training
        self.accumulation = training.gradient_accumulation_steps
        steps_per_epoch = math.ceil(len(self.loader) / self.accumulation)
        self.num_steps = training.max_steps or training.epochs * steps_per_epoch
        self.global_batch_size = self.loader.order.batch_size_all_ranks * self.accumulation
        self.schedule = Schedule(project.optimizer, self.settings, self.num_steps)
        self.hooks = Hooks(self.trial, self.notes)

        tracker = None
        if project.distributed.is_main and not self.trial:
            tracker = Tracker(self.folder, self.settings)
        self.monitor = Monitor(self.folder, project, tracker, self.loader)
        self.closing.callback(self.monitor.close)
        self.checkpoint = self._make_checkpoint()

    def _open(self, split: str, **options: Any) -> Any:
        loader = self.project.loader(split, **options)
        self.closing.callback(loader.close)
        return loader

    def _make_checkpoint(self) -> Checkpoint:
        project = self.project
        recurrent = getattr(project.model, "recurrent", None)
        return Checkpoint(
            self.folder / "checkpoints",
            project.distributed,
            self.settings.checkpoint.keep,
            must_match={
                "data": project.store.fingerprint,
                "phase": self.progress.phase,
                "order rule": ORDER_RULE,
                "samples a step": self.global_batch_size,
                "schedule": f"{self.settings.schedule.name} over {self.num_steps} steps",
            },
            # They are restored in this order, the model last: `ranks` needs the progress.
            model=project.model,
            optimizer=project.optimizer,
            precision=project.precision,
            progress=self.progress,
            hooks=self.hooks,
            rows=self.monitor,
            ranks=RankStates(project.distributed, self.progress, recurrent, self.loader.order),
        )

    # --- before the first step

    def begin(self, resumed: bool) -> None:
        """Check one batch, then load the newest valid checkpoint or the initial weights.

        After this call, the hooks' `close` is called when the phase ends.
        """
        self._check_one_batch()
        self.project.distributed.on_all_ranks(lambda: self._load(resumed))
        self.schedule.set(self.step_of_phase)
        self.first_step = self.progress.step + 1
        self.monitor.start(self.progress.step, self.last_step)
        self.closing.callback(self.call_hooks, "close")

    def _check_one_batch(self) -> None:
        """Run one batch forward and backward, so that errors and a lack of memory show early."""
        distributed = self.project.distributed
        loaders = [loader for loader in (self.loader, self.validation) if loader is not None]
        distributed.on_all_ranks(lambda: check_rows(self.project, loaders))
        total_weight = distributed.on_all_ranks(lambda: dry_run(self.project, self.loader))
        self.project.precision.calibrate(max(distributed.gather_objects(total_weight)))

    def _load(self, resumed: bool) -> None:
        first_step = self.progress.phase_start
        if first_step > 0 and self.progress.step == first_step:
            # The phase before this one has just ended in this process.
            self.checkpoint.restore(self.checkpoint.find("last"), ["hooks", "model"])
            return

        restored_step = None
        if resumed:
            restored_step = self.checkpoint.load()
        for name in self.checkpoint.skipped:
            self.notes.append(f"skipped a damaged checkpoint: {name}, renamed to .damaged")
        if restored_step is not None:
            self.saved_step = restored_step
        self.notes += load_initial(self.project, restored_step is not None)

    # --- the position

    @property
    def last_step(self) -> int:
        """The run's step at which the phase ends."""
        return self.progress.phase_start + self.num_steps

    @property
    def step_of_phase(self) -> int:
        return self.progress.step - self.progress.phase_start

    @property
    def is_done(self) -> bool:
        """Whether the phase is complete."""
        return self.progress.stopped_early or self.progress.step >= self.last_step

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends here: the phase is complete, or a limit or a signal stops it."""
        at_limit = 0 < self.limit <= self.progress.step
        return self.is_done or at_limit or self.stop > 0

    # --- between two steps

    def advance(self, batch: int) -> int:
        """Count the step that ended with micro-batch `batch` of the epoch (from 1); return it."""
        self.agree()
        self.progress.advance(batch, len(self.loader))
        if self.progress.step == self.first_step:
            freeze_garbage()
        return self.progress.step

    def agree(self) -> bool:
        """Return on all ranks whether one of them received a signal. Every rank must call it."""
        distributed = self.project.distributed
        mine = self.signals.received
        if self.failure is not None:
            mine = FAILED
        self.stop = distributed.agree(mine) or self.stop
        if self.stop == FAILED:
            distributed.on_all_ranks(self._raise_failure)
        return self.stop > 0

    def fail(self, error: UserError) -> None:
        """End the run on all ranks with this error after the next step. One rank may call it."""
        self.failure = error

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def call_hooks(self, moment: str, *details: object) -> list[Any]:
        """Call this method of every hook that has it, in the order of names; return the results."""
        methods = [getattr(hook, moment, None) for hook in self.hooks.all.values()]
        return [method(self, *details) for method in methods if method is not None]

    # --- evaluations

    @property
    def evaluation_due(self) -> bool:
        if self.validation is None or self.trial:
            return False
        if self.progress.evaluated == self.progress.step:
            return False
        is_last = self.progress.step >= self.last_step
        return is_last or self._is_due(self.settings.evaluation.every_steps)

    def _is_due(self, every_steps: int) -> bool:
        """Whether this step ends a period of `every_steps`; 0 stands for an epoch."""
        if every_steps == 0:
            return self.progress.batch == 0
        return self.progress.step % every_steps == 0

    def evaluate(self) -> None:
        """Evaluate the validation split; save the best. After a signal, `--resume` repeats it."""
        metrics, seconds = timed(self.measure)
        if metrics is None:
            return

        patience = self.settings.evaluation.patience
        is_best = self.progress.judge(metrics["loss"], patience)
        self.monitor.evaluation("validation", metrics, seconds, self.progress)
        if self.progress.stopped_early:
            self.monitor.line(f"early stop: {patience} evaluations without a better loss")
        # A checkpoint of this step exists if a resume repeats an evaluation; it lacks the result.
        if is_best or self.saved_step == self.progress.step:
            self.save()

    def measure(self) -> dict[str, float] | None:
        """Return the validation metrics and what hooks add to them; None if a signal came."""
        project = self.project
        with contextlib.ExitStack() as stack:
            for context in self.call_hooks("evaluating"):
                stack.enter_context(context)
            metrics = evaluate(
                project.wrapped,
                self.validation,
                project.precision,
                project.distributed,
                stop=self.agree,
            )
        if metrics is not None:
            self.call_hooks("after_evaluation", metrics)
        return metrics

    # --- checkpoints

    @property
    def save_due(self) -> bool:
        if self.trial or self.saved_step == self.progress.step:
            return False
        return self.should_stop or self._is_due(self.settings.checkpoint.every_steps)

    def save(self) -> None:
        """Save, unless a loss is not finite. `NotWritten` is an error at the last step only."""
        self.monitor.check()
        step = self.progress.step
        try:
            _, seconds = timed(lambda: self.checkpoint.save(step, step == self.progress.best_step))
        except NotWritten as error:
            if self.should_stop:
                raise
            self.monitor.line(f"note: {error}; training continues, the next checkpoint tries again")
            return

        self.saved_step = step
        self.monitor.exclude(seconds)
        self.monitor.event(step, "checkpoint", seconds=seconds)
