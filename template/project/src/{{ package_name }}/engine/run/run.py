"""A training, as the loop in `train.py` and the hooks see it."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves_with_path

from ..compute.precision import own
from ..data.order import RULE as ORDER_RULE
from ..errors import UserError
from ..interfaces import Batch
from ..log.meter import Meter
from ..log.report import Record, Row
from ..log.run_log import RunLog
from ..signals import Signals
from .checkpoint import Checkpoint, NotWritten
from .dry_run import dry_run
from .evaluation import evaluate
from .progress import Hooks, Progress, RankStates

if TYPE_CHECKING:
    from .project import Project

FIRST_STEPS = (1, 2, 5, 10, 20)  # logged, too, so that a new run soon shows something


@dataclass
class Run:
    """A training: its data, position, checkpoints and metrics.

    The step alone decides the position in the data. Call `begin`, then train. `closing` closes what
    the constructor opened, also after an error.
    """

    folder: Path
    project: Project
    signals: Signals
    closing: contextlib.ExitStack
    limit: int = 0  # stop after this step; 0: at the end
    trial: bool = False  # no evaluation, no checkpoint

    def __post_init__(self) -> None:
        project = self.project
        settings = project.settings
        distributed = project.distributed
        self.settings = settings
        self.progress = Progress()
        self.hooks = Hooks(self.trial)
        self.notes: list[str] = []  # for the user, printed at the start
        self.record: Row | None = None  # the last one of training
        self.stop = 0  # the signal that all ranks know of
        self.saved_step = -1
        self.not_finite: set[str]  # names of tensors before the first step

        self._open_loaders()
        training = settings.training
        self.accumulation = training.gradient_accumulation_steps
        self.steps_per_epoch = math.ceil(len(self.loader) / self.accumulation)
        self.num_steps = training.max_steps or training.epochs * self.steps_per_epoch
        self.global_batch_size = self.loader.order.batch_size_all_ranks * self.accumulation

        self.log = RunLog(self.folder, settings, distributed.is_main, self.trial)
        self.closing.callback(self.log.close)
        self.meter = Meter(distributed, skips=project.precision.scaler.is_enabled())
        self.checkpoint = self._make_checkpoint()
        self.closing.callback(self.checkpoint.close)

    def _open_loaders(self) -> None:
        project = self.project
        self.loader: Any = project.loader("train", train=True)
        self.closing.callback(self.loader.close)
        self.batches = self._all_batches()
        self.closing.callback(self.batches.close)  # before its loader is closed
        self.validation: Any = None
        first, end = project.store.splits.get("validation", (0, 0))
        if first < end:
            fraction = self.settings.evaluation.fraction
            self.validation = project.loader("validation", fraction=fraction)
            self.closing.callback(self.validation.close)

    def _make_checkpoint(self) -> Checkpoint:
        project = self.project
        order = self.loader.order
        must_match = {
            "data": project.store.fingerprint,
            "order rule": ORDER_RULE,
            "samples a step": self.global_batch_size,
            "schedule": f"{self.settings.schedule.name} over {self.num_steps} steps",
        }
        if order.by_width:
            must_match["samples a batch"] = order.batch_size_all_ranks
        return Checkpoint(
            self.folder / "checkpoints",
            project.distributed,
            self.settings.checkpoint.keep,
            must_match,
            optimizer=project.optimizer,
            precision=project.precision,
            progress=self.progress,
            hooks=self.hooks,
            ranks=RankStates(project.distributed, self.meter),
            model=project.model,
        )

    # --- before the first step

    def begin(self, resumed: bool) -> None:
        """Check one batch, then load the newest valid checkpoint or the initial weights.

        After this call, the hooks' `close` is called when the run ends.
        """
        project = self.project
        distributed = project.distributed
        distributed.on_all_ranks(lambda: self.call_hooks("before_first_batch"))
        # Errors and a lack of memory show early.
        total_weight = distributed.on_all_ranks(lambda: dry_run(project, self.loader))
        project.precision.calibrate(max(distributed.gather_objects(total_weight)))
        distributed.on_all_ranks(lambda: self._load(resumed))
        distributed.on_all_ranks(lambda: self.log.start(self.progress, self.num_steps))
        self.closing.callback(self.call_hooks, "close")
        # These objects live as long as the run. Collecting among them pauses large projects for up
        # to 500 ms (karpathy/nanochat, pytorch/torchtitan).
        gc.collect()
        gc.freeze()
        self.meter.restart(self.step)

    def _load(self, resumed: bool) -> None:
        self.meter.times.update(Record(self.folder).times)
        if resumed and self.checkpoint.load():
            self.saved_step = self.step
            return
        if resumed:
            self.notes.append("the run has no checkpoint: it starts again at step 0")
        self.call_hooks("initialize")

    # --- the position

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.progress.step

    def batches_of(self, step: int) -> tuple[int, int, int]:
        """Return the epoch (from 0) of a step (from 0), and its micro-batches.

        They are those from the second number up to, not including, the third one.
        """
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        first = step_of_epoch * self.accumulation
        return epoch, first, min(first + self.accumulation, len(self.loader))

    @property
    def is_done(self) -> bool:
        """Whether the training is complete."""
        return self.stops_early or self.step >= self.num_steps

    @property
    def stops_early(self) -> bool:
        """Whether `evaluation.patience` evaluations had no better loss; a resume may raise it."""
        return 0 < self.settings.evaluation.patience <= self.progress.without_gain

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends here: the training is complete, or a limit or a signal stops it."""
        at_limit = 0 < self.limit <= self.step
        return self.is_done or at_limit or self.stop > 0

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal that stopped the run (143 SIGTERM, 130 SIGINT)."""
        return 128 + self.stop if self.stop else 0

    def _is_due(self, every_steps: int) -> bool:
        """Whether this step ends a period of `every_steps`; 0 stands for an epoch."""
        return self.step % (every_steps or self.steps_per_epoch) == 0

    # --- in a step

    def _all_batches(self) -> Generator[Batch]:
        """Yield the batches from the next step on, epoch after epoch."""
        epoch, first, _ = self.batches_of(self.step)
        while True:
            batches = self.loader.epoch(epoch, first)
            first_batch = next(batches)
            # The loader has read by now how much memory the epoch before needed.
            if self.project.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.project.device)
            yield first_batch
            yield from batches
            epoch += 1
            first = 0

    def next_batches(self) -> Iterator[tuple[Batch, bool]]:
        """Yield the micro-batches of the next step, each with whether it is the last one."""
        _, first, end = self.batches_of(self.step)
        for number in range(first + 1, end + 1):
            yield self.meter.next_batch(self.batches), number == end
            self.meter.count("forward/backward")

    def divisor(self) -> Tensor:
        """Return the number () that turns the summed gradients into means over all ranks.

        An incomplete last step of an epoch is divided as a complete one, so its gradient is smaller
        by its fraction of the samples. DDP and FSDP average over the ranks, therefore `world`.
        """
        epoch, first, end = self.batches_of(self.step)
        fraction: float = self.loader.order.step_fraction(epoch, first, end, self.accumulation)
        distributed = self.project.distributed
        total_weight = distributed.sum_over_ranks(self.meter.total_weight()).clamp(min=1)
        return total_weight / (distributed.world * fraction)

    def log_value(self, name: str, value: float | Tensor) -> None:
        """Add a number () of this step to the next record, which has the mean over steps and ranks.

        All ranks call it, with any name that is not a column of the record. Nothing waits for the
        GPU before that record.
        """
        self.meter.add_value(name, value)

    def end_step(self, norm: Tensor) -> None:
        """Count a step. norm: of its gradients."""
        self.agree()
        self.progress.step += 1
        self.meter.end_step(norm)

    def agree(self) -> bool:
        """Return on all ranks whether one of them received a signal. Every rank must call it."""
        self.stop = self.project.distributed.agree(self.signals.received) or self.stop
        return self.stop > 0

    def call_hooks(self, moment: str, *details: object) -> list[Any]:
        """Call this method of every hook that has it, in the order of names; return the results."""
        results = []
        for hook in self.hooks.all.values():
            if hasattr(hook, moment):
                results.append(getattr(hook, moment)(self, *details))
        return results

    # --- records

    @property
    def log_due(self) -> bool:
        every_steps = self.settings.monitor.every_steps
        is_early = self.step in FIRST_STEPS and self.step < every_steps
        return is_early or self.step % every_steps == 0 or self.step == self.num_steps

    def write_record(self, learning_rate: float) -> None:
        """Write and print a record of the steps since the last one (host sync).

        Raises `NonFinite` if a loss or a gradient is nan or inf.
        """
        norm, num_skipped, means = self.meter.read()
        seconds = time.perf_counter() - self.meter.start_time
        seconds_per_step = seconds / self.meter.num_steps
        # The mean number of samples in a batch over all ranks: an epoch's last batch is padded.
        order = self.loader.order
        batch_samples = min(order.count / len(self.loader), order.batch_size_all_ranks)
        record = {
            "step": self.step,
            "epoch": math.ceil(self.step / self.steps_per_epoch),
            **means,
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            "samples_per_second": self.meter.num_batches * batch_samples / seconds,
            "step_ms": 1000 * seconds_per_step,
            "data_wait_fraction": self.meter.waited / seconds,
            "time": time.time(),
        }
        # The first steps compile and fill caches, so they say nothing of the time left.
        if self.record is not None:
            record["eta_s"] = (self.num_steps - self.step) * seconds_per_step
            # Evaluations and checkpoints will take as long as those up to the last evaluation.
            last_step = self.progress.evaluated or self.saved_step
            if last_step > 0:
                seconds = self.meter.times["validation"] + self.meter.times["saving"]
                record["eta_s"] += seconds * (self.num_steps / last_step - 1)
        if self.meter.skips:
            record["skipped_steps"] = num_skipped
        device = self.project.device
        if device.type == "cuda":
            record["memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
            record["memory_reserved_mb"] = torch.cuda.max_memory_reserved(device) / 2**20
        self.call_hooks("before_record", record)
        self.log.training(record, means)
        self.record = record
        self.meter.restart(self.step)

    # --- evaluations

    @property
    def evaluation_due(self) -> bool:
        is_evaluated = self.progress.evaluated == self.step
        if self.validation is None or self.trial or is_evaluated:
            return False
        return self.step >= self.num_steps or self._is_due(self.settings.evaluation.every_steps)

    def evaluate(self) -> None:
        """Evaluate the validation split; save the best. After a signal, `--resume` repeats it."""
        project = self.project
        self.meter.count("Python")
        with contextlib.ExitStack() as stack:
            for context in self.call_hooks("evaluating"):
                stack.enter_context(context)
            metrics = evaluate(project, self.validation, stop=self.agree)
        seconds = self.meter.count("validation")
        if metrics is None:
            return
        self.call_hooks("after_evaluation", metrics)

        is_best = self.progress.judge(metrics["loss"])
        metrics = project.ask_dataset("finish", metrics, metrics, project.store, "validation")
        record = {
            "step": self.step,
            "split": "validation",
            **metrics,
            "samples_per_second": self.validation.order.count / seconds,
            "seconds": seconds,
            "time": time.time(),
        }
        self.log.evaluation(record, metrics, mark="  best so far" if is_best else "")
        self.meter.count("validation")
        if self.stops_early:
            count = self.progress.without_gain
            self.log.line(f"early stop: {count} evaluations without a better loss")
        # A checkpoint of this step exists if a resume repeats an evaluation; it lacks the result.
        if is_best or self.saved_step == self.step:
            self.save()

    # --- checkpoints

    @property
    def save_due(self) -> bool:
        if self.trial or self.saved_step == self.step:
            return False
        return self.should_stop or self._is_due(self.settings.checkpoint.every_steps)

    def save(self) -> None:
        """Save, unless something is not finite. `NotWritten` is an error at the last step only."""
        self.meter.check()
        self.meter.count("Python")
        self.project.distributed.on_all_ranks(self._check_state)
        step = self.step
        try:
            is_best = step == self.progress.best_step
            self.checkpoint.save(step, is_best, wait=self.should_stop)
        except NotWritten as error:
            if self.should_stop:
                raise
            self.log.line(f"note: {error}; training continues, the next checkpoint tries again")
            return

        self.saved_step = step
        seconds = self.meter.count("saving")
        times = dict(self.meter.times)
        self.checkpoint.when_complete(
            lambda: self.log.event(step, "checkpoint", seconds=seconds, times=times)
        )

    def _check_state(self) -> None:
        """Raise `UserError` if a tensor of the state is not finite any more (host sync)."""
        broken = self.names_not_finite() - self.not_finite
        if broken:
            what = f"{min(broken)} is not finite after step {self.step}, the losses are"
            remedy = "look for what changes it, or lower optimizer.learning_rate"
            raise UserError(what, "model.py, optimizer.py or hooks/", remedy)

    def names_not_finite(self) -> set[str]:
        """Return the names of weights, buffers and other saved tensors with nan or inf (host sync).

        Call it on every rank, because hooks may gather their states. A tensor of another class,
        such as in the state of an 8-bit optimizer, may not know `isfinite`, and is left out.
        """
        return {
            part + keystr(path)
            for part in ("model", "optimizer", "hooks")
            for path, value in tree_leaves_with_path(self.checkpoint.parts[part].state_dict())
            if type(own(value)) is Tensor and not own(value).isfinite().all()
        }
