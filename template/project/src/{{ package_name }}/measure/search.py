"""Search settings with a better validation metric, in trials of Optuna, for `tune --search`.

A trial is a complete training in its own folder, such as `searches/STUDY/trial-007`. The name of
the study is a hash of settings, space and data. So the same command resumes it, in one process or
several. The state is in the files only: a training without a result that no process has locked is
resumed. At the end, the best and the configured settings train with other seeds, which shows
whether the gain is larger than noise.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.errors import UserError
from ..engine.files import lock, write_json, write_text
from .search_page import Found, Row, words, write_page
from .search_space import Space, inside, parse, tidy
from .search_training import (
    JOURNAL,
    RESULT,
    STARTING_TRIALS,
    STOPPED,
    TAKEN,
    is_higher_better,
    launch,
    read_result,
    study_in,
)
from .trials import SETTINGS, Failed, Overrides, card_here

if TYPE_CHECKING:
    from ..settings import Settings

SEARCHES = Path("searches")
OUTPUT = Path("tuned.yaml")
REPEATS = 3  # trainings of the best and of the configured settings, each with a new seed
SEED = "reproducibility.seed"


class Job(NamedTuple):
    """A training to run: the trial `number` of the study, or a repeat if it is -1."""

    folder: Path
    overrides: Overrides
    number: int = -1

    @property
    def result(self) -> dict[str, Any]:
        """The result; empty until the training ends."""
        return read_result(self.folder)

    @property
    def row(self) -> Row:
        """The training as a row of the page."""
        return Row(self.folder.name, self.overrides, self.result)


def search(text: str, configured: Settings, trials: int, minutes: float | None) -> int:
    """Search the space `text`, with all other settings as configured, and write tuned.yaml.

    minutes: the time limit, after which no trial begins. Raises `UserError`.
    """
    if trials < 1:
        raise UserError(f"cannot search with {trials} trials", "--trials", "use at least 1")
    space = parse(text, configured)

    from ..assemble import open_store

    SEARCHES.mkdir(exist_ok=True)
    with alone(SEARCHES):  # only one of several processes writes the synthetic samples
        store = open_store(configured)
    first, last = store.splits.get("validation", (0, 0))
    if first >= last:
        what = "the data have no validation split"
        raise UserError(what, str(store.folder), "run prepare with a --split that has one")
    identity = [sorted(map(str, space.items())), configured.model_dump(), store.fingerprint]
    name = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()[:8]
    searcher = Searcher(SEARCHES / name, configured, space, trials, minutes)
    searcher.work()
    return searcher.conclude(card_here().name)


class Searcher:
    """One process of a study.

    settings: the configured settings. trials: the number in the whole study. minutes: the time
    limit of this process.
    """

    def __init__(
        self, folder: Path, settings: Settings, space: Space, trials: int, minutes: float | None
    ):
        from tqdm import tqdm

        self.folder = folder
        self.settings = settings
        self.space = space
        self.trials = trials
        self.begun = time.monotonic()
        self.limit = math.inf if minutes is None else 60 * minutes  # seconds
        folder.mkdir(exist_ok=True)
        with alone(folder):
            mend(folder / JOURNAL)
            self.study = study_in(folder, is_higher_better(settings))
            present = inside(settings, space)
            if not self.study.get_trials(deepcopy=False) and present is not None:
                self.study.enqueue_trial(present)
            self.settle()
        study = f"{folder}: {trials} trials of {', '.join(space)}"
        print(f"{study}; run the same command again to resume or to help", flush=True)
        self.bar = tqdm(desc="trials", total=trials, unit="trial", disable=None, dynamic_ncols=True)

    # --- choose the next training

    def job(self, trial: Any) -> Job:
        """Return the training of a trial."""
        folder = self.folder / f"trial-{trial.number + 1:03d}"
        return Job(folder, tidy(trial.params, self.space), trial.number)

    def asked(self) -> list[Any]:
        """Return the trials of the study that have begun."""
        trials = []
        for trial in self.study.get_trials(deepcopy=False):
            is_complete = len(trial.params) == len(self.space)  # false if killed while drawing
            if trial.state.name != "WAITING" and is_complete:
                trials.append(trial)
        return trials

    def claim(self) -> tuple[Job | None, bool]:
        """Return a training that no process runs, and whether there is work left."""
        with alone(self.folder):
            self.settle()
            trials = self.asked()
            running = [self.job(trial) for trial in trials if not trial.state.is_finished()]
            for job in running:
                if free(job.folder):
                    return self.begin(job), True
            if len(trials) < self.trials and self.has_time():
                return self.begin(self.draw(len(trials))), True
            if running:
                return None, True

            repeats = [job for job in self.repeats() if not job.result]
            for job in repeats:
                if free(job.folder):
                    return self.begin(job), True
            return None, bool(repeats)

    def draw(self, num_trials: int) -> Job:
        """Let Optuna draw a new trial."""
        import optuna

        # Seed each trial differently, so that no process repeats a draw.
        seed = (self.settings.reproducibility.seed * 100_003 + num_trials) % 2**32
        starting = max(STARTING_TRIALS, min(10, self.trials // 5))
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=starting)
        return self.job(self.study.ask(dict(self.space)))

    def begin(self, job: Job) -> Job:
        """Write all settings of a training into its folder."""
        job.folder.mkdir(exist_ok=True)
        fixed: Overrides = {"monitor.progress": False}
        settings = self.settings.replaced(fixed | job.overrides, "trial")
        write_text(job.folder / SETTINGS, settings.to_yaml())
        return job

    def settle(self) -> None:
        """Tell the study the results; a failed one counts as bad, so that none is drawn near it."""
        from optuna.trial import TrialState

        for trial in self.asked():
            if trial.state.is_finished():
                continue
            result = self.job(trial).result
            if "error" in result or result.get("pruned"):
                self.study.tell(trial.number, state=TrialState.PRUNED)
            elif result:
                self.study.tell(trial.number, result["value"])

    def best(self) -> Job | None:
        """Return the best finished trial."""
        ended = []
        for trial in self.asked():
            job = self.job(trial)
            if trial.state.name == "COMPLETE" and job.result:
                ended.append(job)
        return min(ended, key=lambda job: job.result["cost"], default=None)

    def repeats(self) -> list[Job]:
        """Return trainings with other seeds; none if the configured settings are the best."""
        best = self.best()
        if best is None:
            return []
        if all(self.settings.value(key) == value for key, value in best.overrides.items()):
            return []
        jobs = []
        for number in range(1, REPEATS + 1):
            seed = (self.settings.reproducibility.seed + number) % 2**32
            configured = self.folder / f"configured-seed-{seed}"
            jobs.append(Job(configured, {SEED: seed}))
            repeated = self.folder / f"{best.folder.name}-seed-{seed}"
            jobs.append(Job(repeated, best.overrides | {SEED: seed}))
        return jobs

    def has_time(self) -> bool:
        """Whether there is time for another trial and the repeats, judging by the trials so far."""
        results = [self.job(trial).result for trial in self.asked()]
        seconds = [result["seconds"] for result in results if "seconds" in result]
        needed = 0.0
        if seconds:
            needed = (1 + 2 * REPEATS) * median(seconds)
        return time.monotonic() - self.begun + needed <= self.limit

    # --- run the trainings

    def work(self) -> None:
        """Run trainings that no other process runs, until all are finished."""
        try:
            while True:
                job, left = self.claim()
                if job is not None:
                    self.end(job, launch(job.folder, job.number))
                elif left:
                    time.sleep(0.5)  # wait for other processes, and resume what they leave
                else:
                    return
        finally:
            self.bar.close()

    def end(self, job: Job, code: int) -> None:
        """Record the end of a training, and print a line; a stopped one is resumed later."""
        log = job.folder / "log"
        with alone(self.folder):
            if code == TAKEN or (code in STOPPED and not job.result):
                return
            if not job.result and free(job.folder):
                error = Failed(code, log.read_text(encoding="utf-8", errors="replace"))
                # An error that the drawn values did not cause: the user must fix it first.
                if code == 1 or job.number < 0:
                    raise UserError(str(error), str(log), "fix it, then run the same command")
                reason = str(error)
                if code < 0:
                    reason = f"killed by signal {-code}"
                write_json(job.folder / RESULT, {"error": reason})
            self.settle()
            self.say(job)
            write_page(self.folder, self.found(), self.study)

    def say(self, job: Job) -> None:
        """Print a line about a training, with the best one so far."""
        ended = self.over()
        line = f"{job.folder.name}: {words(job.overrides)}: {job.row.state}"
        best = self.best()
        if best is not None:
            line += f"; best {best.result['value']:.5g} in {best.folder.name}"
        self.bar.update(ended - self.bar.n)
        self.bar.write(f"{line}; {ended} of {self.trials} trials")
        sys.stdout.flush()

    def over(self) -> int:
        """Return the number of trials that have ended."""
        return sum(trial.state.is_finished() for trial in self.asked())

    def found(self) -> Found:
        """Return the results so far, for the page."""
        best = self.best()
        trials = [self.job(trial).row for trial in self.asked()]
        repeats = [job.row for job in self.repeats() if job.result]
        metric = self.settings.evaluation.metric
        return Found(metric, self.space, trials, repeats, best.row if best else None)

    def conclude(self, card: str) -> int:
        """Write the page and tuned.yaml. Raises `UserError` if no trial has finished."""
        with alone(self.folder):
            result = self.found()
            best = self.best()
            write_page(self.folder, result, self.study)
            if best is None:
                raise UserError("no trial has finished", str(self.folder), "see search.md")
            lines = result.verdict()
            tuned = self.settings.replaced(best.overrides, "tune")
            comments = [f"# Searched on {card}: {line}" for line in lines]
            write_text(OUTPUT, "\n".join([*comments, tuned.to_yaml()]))
        print("\n".join([*lines, f"{self.folder / 'search.md'}: every trial"]))
        print(f"{OUTPUT}: train --config {OUTPUT}")
        return 0


def free(folder: Path) -> bool:
    """Whether no process has locked the folder."""
    folder.mkdir(exist_ok=True)
    try:
        with lock(folder):
            return True
    except UserError:
        return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked the folder, and lock it."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock(folder))
                break
            except UserError:
                time.sleep(0.02)
        yield


def mend(journal: Path) -> None:
    """Remove an unfinished last line after a crash, since text appended to it would be lost."""
    from optuna.storages.journal import JournalFileOpenLock

    lock = JournalFileOpenLock(str(journal))
    lock.acquire()
    try:
        with open(journal, "a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    finally:
        lock.release()
