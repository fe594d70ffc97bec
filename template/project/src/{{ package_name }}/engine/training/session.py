"""One call of `train` on the folder of a run, from its start to exit code, status and report."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..compute.distributed import Distributed
from ..errors import NonFinite, UserError
from ..files import read_json, write_text
from ..loading.store import SYNTHETIC
from ..monitoring.report import write_report
from ..runs import CONFIG, write_status
from ..settings import EngineSettings
from ..signals import Signals
from .environment import device_line, write_environment
from .explanations import advice, explain
from .project import Project
from .run import Run


@dataclass
class Session:
    """One call of `train` on the folder of a run; a context manager. `start` returns the run."""

    folder: Path
    settings: EngineSettings
    distributed: Distributed  # only rank 0 writes and prints
    limit: int = 0  # stop this call after that step, whatever the length of the run
    resumed: bool = False
    trial: bool = False  # metrics only: no evaluation, no checkpoint, no report
    changes: Sequence[str] = ()  # what a resume has changed, for notes

    def __post_init__(self) -> None:
        self.is_main = self.distributed.is_main
        self.signals = Signals(self.is_main)
        self.run: Run | None = None
        self.closing = contextlib.ExitStack()  # what the run has open

    def __enter__(self) -> Session:
        self.signals.listen()
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.closing.close()
        except Exception as failure:  # such as that of a hook; it must not hide how the run ended
            error = error or failure
        explained = explain(error, self.settings)
        if isinstance(error, NonFinite) and self.run is not None:
            explained = explain_non_finite(error, self.run)
            explained.reported = not self.is_main  # all ranks have seen it
        if self.is_main:
            self._write_outcome(explained or error)
        self.signals.restore()
        if explained is not None:
            raise explained from error
        if error is not None:
            raise error

    # --- the start

    def write_settings(self) -> None:
        """Make the folder of a new run a run; call it first, so that a killed start is one, too."""
        if self.is_main and not self.resumed:
            write_text(self.folder / CONFIG, self.settings.to_yaml())

    def start(self, project: Project) -> Run:
        """Check one batch and restore; return the run, ready to train."""
        run = Run(
            self.folder,
            project,
            self.signals,
            self.closing,
            limit=self.limit,
            trial=self.trial,
        )
        self.run = run
        run.begin(self.resumed)
        self._introduce(run)
        self.distributed.on_all_ranks(lambda: run.call_hooks("start"))
        run.not_finite = run.names_not_finite()  # a mask in a buffer may be -inf from the start
        return run

    def _introduce(self, run: Run) -> None:
        """Print what is trained and how; write it to the run's folder."""
        project = run.project
        notes = list(run.notes)
        source = project.store.source
        if source.get("kind") == SYNTHETIC:
            what = source.get("text", "synthetic data")
            notes.append(f"{what} in {project.store.folder}; `prepare` reads your own data")
        if self.resumed:
            run.log.line(f"resumed at step {run.step} of {run.num_steps}")
            run.log.event(run.step, "resumed")
            changes = [*self.changes]
            precision = project.precision.name
            before = read_json(self.folder / "env.json").get("precision", precision)
            if before != precision:  # `auto` depends on the card
                changes.append(f"the precision is {precision}; it was {before}")
            notes += [f"from step {run.step} on {change}" for change in changes]
        project.optimizations += run.loader.describe()
        num_parameters = sum(weight.numel() for weight in project.model.parameters())
        steps = f"{run.num_steps:,} steps of {run.global_batch_size:,} samples"
        lines = [
            f"{self.folder}: {device_line(project.device)}",
            *project.optimization_lines(),
            f"  {num_parameters:,} parameters, {steps}",
            *(f"note: {note}" for note in notes),
        ]
        for line in lines:
            run.log.line(line)
        if not self.is_main:
            return
        if self.changes:
            write_text(self.folder / CONFIG, self.settings.to_yaml())
        write_environment(
            self.folder,
            project.device,
            precision=project.precision.name,
            optimizations=project.optimizations,
            changed=self.settings.changed(),
            notes=notes,
            parameters=num_parameters,
        )
        project.store.remember(self.folder)
        write_status(self.folder, "running", "", run.step)
        self.resumed = True  # the run has started: after an error, its folder stays

    # --- the outcome

    def _write_outcome(self, error: BaseException | None) -> None:
        """Write status and report; remove the folder after an error found before the start."""
        if isinstance(error, UserError) and not self.resumed:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        state, reason = self._outcome(error)
        write_status(self.folder, state, reason, self.run.step if self.run else 0)
        if self.trial:
            return
        try:
            summary = dict(write_report(self.folder))
            print(f"time {summary.get('time', 'unknown, because there is no checkpoint')}")
        except Exception as failure:  # a full disk or a broken plot must not hide how the run ended
            print(f"note: no report: {type(failure).__name__}: {failure}")

    def _outcome(self, error: BaseException | None) -> tuple[str, str]:
        """Return the state and the reason."""
        if isinstance(error, UserError):
            return "failed", str(error)
        if isinstance(error, BrokenPipeError):  # by `train | head`
            return "stopped", "its output was closed"
        if error is not None:
            return "failed", f"{type(error).__name__}: {error}"
        run: Any = self.run  # without an error, it has started
        if run.is_done:
            return "finished", ""
        if run.stop:
            return "stopped", signal.Signals(run.stop).name
        return "stopped", "--max-steps"


def explain_non_finite(error: NonFinite, run: Run) -> UserError:
    """Return the line of a hook for a loss or gradient that is not finite, or else advice."""
    for explained in run.call_hooks("explain", error):
        if explained is not None:
            return explained  # type: ignore[no-any-return]
    epoch, _, _ = run.batches_of(error.step - 1)
    remedy = f"{advice(run.settings, run.project.precision.name)}; or look for its cause"
    remedy += " in model.py, forward, or in dataset.py: the extra diagnose names it"
    return UserError(str(error), f"epoch {epoch + 1}", remedy)
