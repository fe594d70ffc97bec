"""Find settings with a lower validation loss, by trials that Optuna draws: for `tune --search`.

A trial is a whole training in a folder of its own, `searches/STUDY/trial-007`. The study's name says which
settings, space and data it is of: the same command goes on with it, in one process or in several. What is to
be done follows from the files alone: a training without a result that no process holds is taken up again.
At last the best settings and those as configured train with other seeds, which says what the gain is worth.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ..engine.errors import UserError
from ..engine.files import read_json, write_json, write_text
from ..engine.runs import held
from .search_page import Found, Row, words, write_page
from .search_space import Space, inside, parse, tidy
from .search_training import JOURNAL, RESULT, STARTING_TRIALS, STOPPED, TAKEN, launch, study_in
from .trials import SETTINGS, Failed, Overrides, card_here, changed, replaced

if TYPE_CHECKING:
    from ..config import Settings

SEARCHES, OUTPUT = Path("searches"), Path("tuned.yaml")
REPEATS = 3  # trainings of the best settings, and of those as configured, each with a new seed
SEED = "reproducibility.seed"
HOPELESS = 3  # trials that fail before any succeeds: not the fault of what was drawn


class Job(NamedTuple):
    """A training to be done: a trial of the study, by its number, or with number -1 a repeat."""

    folder: Path
    overrides: Overrides
    number: int = -1

    @property
    def result(self) -> dict[str, Any]:
        """What it came to; empty while it is under way."""
        return read_json(self.folder / RESULT)

    @property
    def row(self) -> Row:
        """As the page has it."""
        return Row(self.folder.name, self.overrides, self.result)


def search(text: str, configured: Settings, trials: int, minutes: float | None) -> int:
    """Searches the space `text` with the settings as they are for all else, and writes tuned.yaml.

    minutes: when to ask for no more trials. Raises `UserError`.
    """
    if trials < 1:
        raise UserError(f"{trials} trials find nothing", "--trials", "give at least 1")
    space = parse(text, configured)

    from ..assemble import open_store

    SEARCHES.mkdir(exist_ok=True)
    with alone(SEARCHES):  # of several processes one makes the synthetic samples
        store = open_store(configured)
    first, last = store.splits.get("validation", (0, 0))
    if first >= last:
        remedy = "prepare with a --split that has one"
        raise UserError("the data have no validation split to compare by", str(store.folder), remedy)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the child then saves
    what = [sorted(map(str, space.items())), configured.resolved(), store.fingerprint]
    name = hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:8]
    searcher = Searcher(SEARCHES / name, configured, space, trials, minutes)
    searcher.work()
    return searcher.conclude(card_here().name)


class Searcher:
    """One process of a study.

    settings: what a trial has beside what it tries. trials: of the whole study. minutes: of this process.
    """

    def __init__(self, folder: Path, settings: Settings, space: Space, trials: int, minutes: float | None):
        from tqdm import tqdm

        self.folder, self.settings, self.space, self.trials = folder, settings, space, trials
        self.begun, self.limit = time.monotonic(), None if minutes is None else 60 * minutes
        self.failed = self.finished = 0  # trainings of this process
        folder.mkdir(exist_ok=True)
        with alone(folder):
            mend(folder / JOURNAL)
            self.study = study_in(folder)
            present = inside(settings, space)
            if not self.study.get_trials(deepcopy=False) and present is not None:
                self.study.enqueue_trial(present)
            self.settle()
            self.before = self.over()
        what = f"{folder}: {trials} trials of {', '.join(space)}"
        print(f"{what}; the same command goes on with it, or helps", flush=True)
        self.bar = tqdm(desc="trials", total=trials, unit="trial", disable=None, dynamic_ncols=True)

    # --- what there is to do

    def job(self, trial: Any) -> Job:
        """A trial of the study as a training."""
        folder = self.folder / f"trial-{trial.number + 1:03d}"
        return Job(folder, tidy(trial.params, self.space), trial.number)

    def asked(self) -> list[Any]:
        """The study's trials that somebody began."""
        begun = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name != "WAITING"]
        return [trial for trial in begun if len(trial.params) == len(self.space)]  # not killed in between

    def claim(self) -> tuple[Job | None, bool]:
        """A training that nobody works on, and whether there is anything left to wait for."""
        import optuna

        with alone(self.folder):
            self.settle()
            trials = self.asked()
            running = [self.job(trial) for trial in trials if not trial.state.is_finished()]
            for job in running:
                if free(job.folder):
                    return self.begin(job), True
            if len(trials) < self.trials and self.has_time():
                # Each trial has random numbers of its own: no process draws what was drawn before.
                seed = (self.settings.reproducibility.seed * 100_003 + len(trials)) % 2**32
                starting = max(STARTING_TRIALS, min(10, self.trials // 5))
                self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=starting)
                return self.begin(self.job(self.study.ask(self.space))), True
            if running:
                return None, True
            jobs = [job for job in self.repeats() if not job.result]
            return next((self.begin(job) for job in jobs if free(job.folder)), None), bool(jobs)

    def begin(self, job: Job) -> Job:
        """Writes the settings of a training, whole, beside its log."""
        job.folder.mkdir(exist_ok=True)
        fixed: Overrides = {"monitor.progress": False}
        tree = replaced(self.settings.resolved(), fixed | job.overrides)
        write_text(job.folder / SETTINGS, yaml.safe_dump(tree, sort_keys=False))
        return job

    def settle(self) -> None:
        """Tells the study what trials came to; one that failed is among the worst, to draw none near it."""
        from optuna.trial import TrialState

        for trial in self.asked():
            result = {} if trial.state.is_finished() else self.job(trial).result
            if "error" in result or result.get("pruned"):
                self.study.tell(trial.number, state=TrialState.PRUNED)
            elif result:
                self.study.tell(trial.number, result["loss"])

    def best(self) -> Job | None:
        """The trial with the lowest loss, of those that came to their end."""
        ended = [trial for trial in self.asked() if trial.state.name == "COMPLETE"]
        return self.job(min(ended, key=lambda trial: trial.value)) if ended else None

    def repeats(self) -> list[Job]:
        """Trainings with other seeds than the trials'; none where the configuration was the best."""
        best = self.best()
        if best is None or all(self.settings.value(key) == x for key, x in best.overrides.items()):
            return []
        seed, jobs = self.settings.reproducibility.seed, []
        for more in range(1, REPEATS + 1):
            other: Overrides = {SEED: (seed + more) % 2**32}
            for name, overrides in (("configured", {}), (best.folder.name, best.overrides)):
                jobs.append(Job(self.folder / f"{name}-seed-{other[SEED]}", overrides | other))
        return jobs

    def has_time(self) -> bool:
        """Whether another trial and the repeats fit, by what trials took so far."""
        seconds = [job.result["seconds"] for job in map(self.job, self.asked()) if "seconds" in job.result]
        needed = (1 + 2 * REPEATS) * median(seconds) if seconds else 0.0
        return self.limit is None or time.monotonic() - self.begun + needed <= self.limit

    # --- doing it

    def work(self) -> None:
        """Trains what nobody else does, until all is done."""
        try:
            while True:
                job, left = self.claim()
                if job is not None:
                    self.end(job, launch(job.folder, job.number))
                elif left:
                    time.sleep(0.5)  # others are at work: what they leave is taken up
                else:
                    return
        finally:
            self.bar.close()

    def end(self, job: Job, code: int) -> None:
        """Notes a training down as failed where it was not just stopped, and says a line."""
        log = job.folder / "log"
        with alone(self.folder):
            if code == TAKEN or (code in STOPPED and not job.result):
                return
            if not job.result and free(job.folder):
                error = Failed(code, log.read_text(encoding="utf-8", errors="replace"))
                # Nothing that the project knows, or no fault of what was drawn: to be mended first.
                if code == 1 or job.number < 0:
                    raise UserError(str(error), str(log), "mend it; the same command goes on")
                reason = f"killed by signal {-code}" if code < 0 else str(error)
                write_json(job.folder / RESULT, {"error": reason})
            self.settle()
            self.say(job)
            write_page(self.folder, self.found())
        failed = "error" in job.result
        self.failed, self.finished = self.failed + failed, self.finished + (not failed)
        if failed and self.failed >= HOPELESS and not self.finished:
            remedy = f"mend it, remove {self.folder} and start again"
            raise UserError(job.result["error"], str(log), remedy)

    def say(self, job: Job) -> None:
        """A line for a training, with the best so far and the time left."""
        over, best, repeats = self.over(), self.best(), self.repeats()
        made = sum(bool(repeat.result) for repeat in repeats)
        each = (time.monotonic() - self.begun) / max(over + made - self.before, 1)  # of all processes
        trials = max(self.trials - over, 0)
        left = timedelta(seconds=round(each * (trials + (2 * REPEATS if trials else len(repeats) - made))))
        found = f"; best {best.result['loss']:.5g} of {best.folder.name}" if best else ""
        self.bar.update(over - self.bar.n)
        line = f"{job.folder.name}: {words(job.overrides)}: {job.row.state}{found}"
        self.bar.write(f"{line}; {over} of {self.trials} trials, left {left}")
        sys.stdout.flush()

    def over(self) -> int:
        """Trials that came to an end."""
        return sum(trial.state.is_finished() for trial in self.asked())

    def found(self) -> Found:
        """What the page says."""
        best, jobs = self.best(), [self.job(trial) for trial in self.asked()]
        repeats = [job.row for job in self.repeats() if job.result]
        return Found(self.space, [job.row for job in jobs], repeats, best.row if best else None)

    def conclude(self, card: str) -> int:
        """Writes the page and tuned.yaml. Raises `UserError` where no trial came to its end."""
        with alone(self.folder):
            found, best = self.found(), self.best()
            write_page(self.folder, found)
            if best is None:
                raise UserError("no trial came to its end", str(self.folder), "search.md says why")
            lines = found.verdict()
            tuned = changed(self.settings, best.overrides)
            tuned._origins = self.settings.origins | dict.fromkeys(best.overrides, "tune")
            head = [f"# Searched on {card}: {line}" for line in lines]
            write_text(OUTPUT, "\n".join([*head, tuned.to_yaml()]))
        print("\n".join([*lines, f"{self.folder / 'search.md'}: every trial"]))
        print(f"{OUTPUT}: train --config {OUTPUT}")
        return 0


def free(folder: Path) -> bool:
    """Whether no process works there."""
    folder.mkdir(exist_ok=True)
    try:
        with held(folder):
            return True
    except UserError:
        return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process is between these lines, for this folder."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held(folder))
                break
            except UserError:
                time.sleep(0.02)
        yield


def mend(journal: Path) -> None:
    """Cuts off a last line that a crash left unfinished: what is appended to it would be lost with it."""
    from optuna.storages.journal import JournalFileOpenLock

    lock = JournalFileOpenLock(str(journal))
    lock.acquire()
    try:
        with open(journal, "a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    finally:
        lock.release()
