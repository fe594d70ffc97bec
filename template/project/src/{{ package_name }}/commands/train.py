"""Train a model; on synthetic data if no data were prepared."""

from __future__ import annotations

import argparse
import gc
import io
import math
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from ..engine.errors import UserError
from ..engine.files import lock
from ..engine.runs import find_run, new_run, typed_run

if TYPE_CHECKING:
    from ..engine.compute.distributed import Distributed
    from ..engine.run.project import Project
    from ..engine.run.session import Session
    from ..engine.settings.config import Settings

# For `--minutes`, some steps are timed. The first ones are slow.
FIRST_STEPS = 5
MOST_STEPS = 50
MEASURING_SHARE = 1 / 20  # of the minutes: the most that further timed steps take
# A resumed run may change these settings of data and model. Its checkpoint requires that a step
# keeps its number of samples.
FREE = {"path", "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers"}
FREE |= {"resident", "chunk_size_gb", "dropout", "chunked_loss"}
FIXED = ("reproducibility.seed", "optimizer.name", "training.init_from")
EVALUATION_SHARE = 1 / 4  # of the minutes: the most that evaluations take


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only this command has."""
    add = parser.add_argument
    resume = "resume a run with its own settings; without RUN, the newest one"
    add("--resume", nargs="?", const="", type=typed_run, metavar="RUN", help=resume)
    add("--name", help="name of the new run (default: date and time)")
    stop = "stop this call after step N; training.max_steps shortens the schedule, too"
    add("--max-steps", type=int, metavar="N", help=stop)
    minutes = "train for about N minutes on this machine, but no more steps than the settings allow"
    add("--minutes", type=float, metavar="N", help=minutes)
    phase = "train phase N only (counted from 1), from the end of the phase before it"
    add("--phase", type=int, metavar="N", help=phase)
    off = "turn every optimization off, for a comparison; the same as --profile unoptimized"
    add("--no-optimize", dest="profile", action="store_const", const="unoptimized", help=off)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Train; return 0, or 128 + the signal that ended it (143 SIGTERM, 130 SIGINT)."""
    folder = resumed_folder(arguments)
    settings = load(folder / "config.resolved.yaml" if folder else None)
    if arguments.phase is not None:
        settings.phase(arguments.phase)  # raises if there is no such phase

    from ..engine.compute.distributed import Distributed

    distributed = Distributed()
    try:
        if folder is None:
            folder = distributed.restarted(arguments.name)
            if folder is not None:
                arguments.config = None  # the first start has read it
                settings = load(folder / "config.resolved.yaml")
        return train(arguments, settings, folder, distributed)
    finally:
        distributed.close()


def resumed_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the run to resume; None for a new run. Raises `UserError`."""
    if arguments.max_steps is not None and arguments.max_steps < 1:
        what = f"a run cannot have {arguments.max_steps} steps"
        raise UserError(what, "--max-steps", "give at least 1")
    minutes = arguments.minutes
    if minutes is not None and (not minutes > 0 or arguments.resume is not None):
        what = "only a new run can be given minutes, and more than 0"
        raise UserError(what, "--minutes", "give a number above 0, or resume without it")

    # A later phase continues the newest run.
    if arguments.resume is None and (arguments.phase or 1) <= 1:
        return None
    if arguments.name is not None:
        remedy = "remove it, or start a new run"
        raise UserError("a resumed run keeps its name", f"--name {arguments.name}", remedy)
    return find_run(arguments.resume)


def train(
    arguments: argparse.Namespace,
    settings: Settings,
    resumed: Path | None,
    distributed: Distributed,
) -> int:
    """Train in the folder `resumed`, or in a new one; return the exit code."""
    from ..assemble import assemble, open_store
    from ..engine.data.store import Store
    from ..engine.run.session import Session
    from ..train import train as train_run

    # A resumed run whose data are gone must not continue on others.
    synthetic = resumed is None or Store.may_be_synthetic(resumed)

    def build(settings: Settings) -> Project:
        return assemble(settings, distributed, open_store(settings, synthetic))

    # The run's folder does not exist yet, so an error leaves nothing behind. Rank 0 makes the
    # synthetic sample while the other ranks wait. A later phase may have other data.
    first_phase = settings.phase(1) if settings.phases else settings
    if resumed is None or not settings.phases:
        distributed.on_all_ranks(lambda: open_store(first_phase, synthetic), main_first=True)
    if arguments.minutes is not None and resumed is None:
        settings = within(arguments.minutes, settings, build, distributed)

    changed: dict[str, object] = {}
    folder = resumed or distributed.begin(lambda: new_run(arguments.name))

    def hold() -> None:
        if distributed.is_main:
            holding.enter_context(lock(folder))

    with ExitStack() as holding:
        distributed.on_all_ranks(hold)
        if resumed is not None:
            changed = changes(folder, settings)
        session = Session(
            folder,
            settings,
            build,
            distributed,
            limit=arguments.max_steps or 0,
            resumed=resumed is not None,
            changed=changed,
        )
        with session:
            for run in session.phases(arguments.phase or 0):
                train_run(run)

    if distributed.is_main:
        print_end(session)
    # The first process to end takes the others with it, so all wait until rank 0 has reported.
    distributed.on_all_ranks(lambda: None)
    return session.exit_code


def print_end(session: Session) -> None:
    """Print the step at which the call ended, and the command that continues the run."""
    if session.run is None:
        return
    where = f"at step {session.progress.step} of {session.run.last_step}"
    if session.finished:
        print(f"finished {where}: {session.folder / 'report.md'}")
    else:
        name = shlex.quote(session.folder.name)
        print(f"stopped {where}: `train --resume {name}` continues it")


def changes(folder: Path, settings: Settings) -> dict[str, object]:
    """Return the old values of the settings that differ from those of the run.

    Raises `UserError` for a setting that a resumed run cannot change.
    """
    from ..config import load

    before = load(folder / "config.resolved.yaml", resolved=True)
    changed = {}
    for key, origin in settings.origins.items():
        old = before.value(key)
        section, dot, name = key.partition(".")
        if not dot or settings.value(key) == old:
            continue
        is_fixed = section in ("data", "model") and name not in FREE
        if key in FIXED or is_fixed:
            former = "nothing" if old == "" else old
            what = f"a resumed run cannot change {key} from {former} to {settings.value(key)}"
            raise UserError(what, origin, "keep the value, or start a new run")
        changed[key] = old
    return changed


# --- train --minutes


class Pace(NamedTuple):
    """The speed of a run on this machine, that of its slowest rank."""

    step: float  # seconds
    evaluation: float  # seconds of a complete evaluation
    steps_per_epoch: int


def within(
    minutes: float,
    settings: Settings,
    build: Callable[[Settings], Project],
    distributed: Distributed,
) -> Settings:
    """Return the settings with as many steps as fit into `minutes` here, and no more than before.

    Evaluations count. A few steps are timed in a temporary run. The steps, and where necessary a
    smaller `evaluation.fraction`, become part of the settings, so the run can be repeated and
    resumed like any other.
    """
    if settings.phases:
        raise UserError("each phase has its own number of steps", "--minutes", "remove it")
    begun = time.perf_counter()
    pace = measure_pace(60 * minutes, settings, build, distributed)
    seconds = 60 * minutes - (time.perf_counter() - begun)
    seconds = min(distributed.gather_objects(seconds))  # so that all ranks plan the same steps
    steps, fraction = plan(seconds, pace, settings)
    gc.unfreeze()
    gc.collect()  # frees what the timed steps held

    origin = f"--minutes {minutes:g}"
    fraction *= settings.evaluation.fraction
    planned = {"training.max_steps": steps, "evaluation.fraction": fraction}
    return settings.replaced(planned, origin)


def measure_pace(
    seconds: float,
    settings: Settings,
    build: Callable[[Settings], Project],
    distributed: Distributed,
) -> Pace:
    """Train some steps in a temporary folder, and evaluate a few batches.

    seconds: the time planned for the whole run.
    """
    from ..engine.run.evaluation import seconds_of
    from ..engine.run.session import Session
    from ..train import train as train_run

    trial = settings.replaced({"training.max_steps": MOST_STEPS}, "--minutes")
    with (
        TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        Session(Path(folder), trial, build, distributed, FIRST_STEPS, trial=True) as session,
    ):
        run = next(session.phases())
        for _ in range(2):
            train_run(run)
            if session.exit_code or run.record is None:
                raise SystemExit(session.exit_code)
            step = max(distributed.gather_objects(run.record["step_ms"] / 1000))
            run.limit += int(MEASURING_SHARE * seconds / step)
        evaluation = 0.0
        if run.validation is not None:
            project = run.project
            evaluation = seconds_of(project.wrapped, run.validation, project.precision, distributed)
        steps_per_epoch = math.ceil(len(run.loader) / run.accumulation)
        evaluation = max(distributed.gather_objects(evaluation))
        return Pace(step, evaluation, steps_per_epoch)


def plan(seconds: float, pace: Pace, settings: Settings) -> tuple[int, float]:
    """Return how many steps, and which fraction of the validation samples, fit into `seconds`.

    Evaluations take at most `EVALUATION_SHARE` of the time, unless a hundredth of the samples takes
    longer. The steps are at most those of the settings.
    """
    most = settings.training.max_steps or settings.training.epochs * pace.steps_per_epoch
    every = settings.evaluation.every_steps or pace.steps_per_epoch
    num_evaluations = math.ceil(min(most, max(1, seconds / pace.step)) / every)
    fraction = 1.0
    if pace.evaluation > 0:
        share = EVALUATION_SHARE * seconds / (num_evaluations * pace.evaluation)
        fraction = min(1.0, max(0.01, share))
    # Some steps and an evaluation repeat; the time that is left is for fewer steps.
    evaluation = fraction * pace.evaluation
    repeats, left = divmod(seconds, every * pace.step + evaluation)
    steps = int(repeats) * every + max(0, int((left - evaluation) / pace.step))
    return min(most, max(1, steps)), fraction
