"""One training of a search, in a process of its own: what `train` does, without a tracker and a page.

Its folder holds `settings.yaml`, the `run`, a `log`, and at the end `result.json`. The process has the
folder's lock as long as it lives; without one and without a result the training was cut off, and goes on.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import write_json
from ..engine.report import read_metrics
from ..engine.runs import held
from .trials import SETTINGS, SOURCE

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

    from ..engine.run import Run

JOURNAL, RESULT = "journal.log", "result.json"
STARTING_TRIALS = 4  # drawn at random, and finished, before any is drawn or ended by what others found
TAKEN = 75  # exit code: another process has this training, or has finished it
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)


def launch(folder: Path, number: int) -> int:
    """Exit code of `main` in a process of its own, which saves and ends when this one ends in any way."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))
    command, environment = [sys.executable, "-m", __name__, str(folder), str(number)], os.environ
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            command,
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process, which ends that one by its input
        )
    try:
        return process.wait()
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait()


def main(folder: str, number: str) -> int:
    """Trains; number: of the trial in the folder's study, negative for a repeat. 0 where it has a result."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    place = Path(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(held(place))
        except UserError:
            return TAKEN
        if (place / RESULT).exists():
            return TAKEN
        try:
            return train(place, int(number))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.code


def end_with_parent() -> None:
    """The parent's end closes the pipe, also where it was killed: the run saves, as after any SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def train(folder: Path, number: int) -> int:
    """A training by the folder's settings, or the rest of one; writes its result."""
    from ..assemble import assemble, open_store
    from ..config import load
    from ..engine.distributed import Distributed
    from ..engine.session import Session
    from ..train import fit

    begun, distributed, place = time.monotonic(), Distributed(), folder / "run"
    watcher = Watcher(None if number < 0 else trial_of(folder.parent, number))
    resumed = (place / "checkpoints").exists()
    place.mkdir(exist_ok=True)
    try:
        build = lambda settings: assemble(settings, distributed, open_store(settings))  # noqa: E731
        settings = load(folder / SETTINGS)
        with Session(place, settings, build, distributed, resumed=resumed, trial=True) as session:
            for run in session.phases():
                run.trial = False  # it evaluates, and saves, so that it can go on
                run.hooks.all["search"] = watcher
                fit(run)
    finally:
        distributed.close()
    if session.exit_code:
        return session.exit_code
    evaluations = read_metrics(place / "metrics.jsonl")[1]
    result: dict[str, Any] = {"loss": session.progress.best_loss, "pruned": watcher.pruned}
    if not math.isfinite(session.progress.best_loss):
        raise UserError("no validation loss was finite", str(place))
    result |= {"evaluations": len(evaluations), "seconds": time.monotonic() - begun}
    write_json(folder / RESULT, result)
    shutil.rmtree(place / "checkpoints", ignore_errors=True)  # the settings are what is kept
    return 0


class Watcher:
    """A hook that tells the study of each evaluation, and ends a trial that falls behind the others."""

    def __init__(self, trial: Trial | None):
        self.trial, self.pruned = trial, False

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Trials are compared at the same number of evaluations. One that is at its end may as well end."""
        if self.trial is None:
            return
        self.trial.report(metrics["loss"], 1 + len(read_metrics(run.folder / "metrics.jsonl")[1]))
        if not run.is_done and self.trial.should_prune():
            self.pruned, run.limit = True, run.progress.step


def trial_of(folder: Path, number: int) -> Trial:
    """A trial of the study in `folder`, as another process asked for it."""
    from optuna.trial import Trial

    study = study_in(folder)
    return Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)


def study_in(folder: Path) -> Study:
    """The study of a folder, a new one where there is none; processes share it by its journal.

    A trial is ended where its best evaluation so far is worse than the median of the others' at that number
    of evaluations: not at its first, which is noise, nor among the first trials, which have no others.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = str(folder / JOURNAL)
    storage = JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTING_TRIALS, n_warmup_steps=2)
    return optuna.create_study(storage=storage, study_name=folder.name, pruner=pruner, load_if_exists=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
