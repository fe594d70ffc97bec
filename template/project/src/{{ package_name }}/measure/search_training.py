"""One training of a search in its own process, like `train`, but without tracker and report.

Its folder contains `settings.yaml`, the `run`, a `log`, and at the end `result.json`. The process
locks the folder while it runs. A training without lock and result was interrupted, and is resumed.
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
from ..engine.files import NUMBER, exists, lock, read_json, write_json
from ..engine.monitoring.report import Record
from .trials import SETTINGS, SOURCE

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

    from ..engine.training.run import Run
    from ..settings import Settings

JOURNAL = "journal.log"
RESULT = "result.json"
STARTING_TRIALS = 4  # these are drawn at random and never stopped early
TAKEN = 75  # exit code: another process runs or has finished this training
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)


def launch(folder: Path, number: int) -> int:
    """Run `main` in a child process, which ends with this process; return its exit code."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(number)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # only this process gets Ctrl-C, and closes the child's input
        )
    try:
        return process.wait()
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait()


def main(folder: str, number: str) -> int:
    """Run the training; return 0 if there is a result. number: of the trial, -1 for a repeat."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    path = Path(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(path))
        except UserError:
            return TAKEN
        if read_result(path):
            return TAKEN
        try:
            return train(path, int(number))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.code


def read_result(folder: Path) -> dict[str, Any]:
    """Return the result of a training; empty until it ends, and if the file is damaged."""
    numbers: Any = dict.fromkeys(("value", "cost", "seconds"), NUMBER)
    types: Any = {"metric": str, **numbers, "evaluations": int, "error": str}
    result = read_json(folder / RESULT, **types)
    is_complete = types.keys() - {"error"} <= result.keys()
    return result if "error" in result or is_complete else {}


def end_with_parent() -> None:
    """Wait until the parent ends, which closes the pipe; then save and end, as after SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def train(folder: Path, number: int) -> int:
    """Train with the folder's settings, or resume, and write the result."""
    from ..assemble import build_project
    from ..engine.compute.distributed import Distributed
    from ..engine.training.session import Session
    from ..settings import Settings
    from ..train import train as train_run

    start_time = time.monotonic()
    distributed = Distributed()
    run_folder = folder / "run"
    watcher: Any = Watcher(None if number < 0 else trial_of(folder.parent, number))
    resumed = exists(run_folder / "checkpoints")
    run_folder.mkdir(exist_ok=True)

    try:
        settings = Settings.load(folder / SETTINGS)
        with Session(run_folder, settings, distributed, resumed=resumed, trial=True) as session:
            session.write_settings()
            run = session.start(build_project(run_folder, settings, distributed))
            run.trial = False  # evaluate, and save checkpoints for a resume
            run.hooks.all["search"] = watcher
            train_run(run)
    finally:
        distributed.close()
    if run.exit_code:
        return run.exit_code

    cost = run.progress.best_cost
    metric = settings.evaluation.metric
    if not math.isfinite(cost):
        raise UserError(f"no validation {metric} was finite", str(run_folder))
    evaluations = Record(run_folder).evaluations
    result = {
        "metric": metric,
        "value": -cost if is_higher_better(settings) else cost,
        "cost": cost,  # lower is better
        "pruned": watcher.pruned,
        "evaluations": len(evaluations),
        "seconds": time.monotonic() - start_time,
    }
    write_json(folder / RESULT, result)
    # A search needs the settings, not the weights.
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)
    return 0


class Watcher:
    """A hook that reports each evaluation to the study, and stops a trial that falls behind."""

    def __init__(self, trial: Trial | None):
        self.trial = trial
        self.pruned = False

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the trial with others at this number of evaluations, unless it is at its end."""
        if self.trial is None:
            return
        evaluations = Record(run.folder).evaluations
        value = metrics.get(run.progress.metric, math.nan)
        self.trial.report(value, 1 + len(evaluations))
        if not run.is_done and self.trial.should_prune():
            self.pruned = True
            run.limit = run.step


def trial_of(folder: Path, number: int) -> Trial:
    """Return a trial that another process drew, of the study in `folder`."""
    from optuna.trial import Trial

    study = study_in(folder)
    frozen = study.get_trials(deepcopy=False)[number]
    return Trial(study, frozen._trial_id)


def is_higher_better(settings: Settings) -> bool:
    """Whether a higher value of the metric that decides is better."""
    return settings.evaluation.metric in settings.evaluation.higher_is_better


def study_in(folder: Path, maximize: bool = False) -> Study:
    """Open or create the study of a folder, which processes share through its journal.

    maximize: whether a new study looks for high values.

    A trial stops if its best evaluation so far is worse than the median of others at the same
    number of evaluations. The first evaluations are too noisy to stop a trial, and the first trials
    have no others to compare with.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = str(folder / JOURNAL)
    storage = JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTING_TRIALS, n_warmup_steps=2)
    return optuna.create_study(
        storage=storage,
        study_name=folder.name,
        pruner=pruner,
        direction="maximize" if maximize else "minimize",
        load_if_exists=True,
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
