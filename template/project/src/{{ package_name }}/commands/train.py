"""Train a model; on synthetic data where nothing was prepared."""

from __future__ import annotations

import argparse
import gc
import io
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from ..engine.config import Given, Layer
from ..engine.errors import UserError
from ..engine.runs import all_runs, find_run, held, new_run

if TYPE_CHECKING:
    from ..assemble import Project
    from ..config import Settings
    from ..engine.distributed import Distributed
    from ..engine.run import Run

MEASURED = 5  # steps, from whose last ones `--minutes` knows what one takes
# Of data and model, what a resumed run may change: how fast, how much at a time. `Ranks` holds it to as many
# samples a step.
FREE = {"path", "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers"}
FREE |= {"resident", "chunk_size_gb", "dropout", "chunked_loss"}
EVALUATION_SHARE = 1 / 4  # of the time that `--minutes` gives: the most that evaluations take


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add = parser.add_argument
    resume = "go on with a run and its settings; the newest one without a name"
    add("--resume", nargs="?", const="", metavar="RUN", help=resume)
    add("--name", help="name of the new run (default: date and time)")
    stop = "stop this call after step N; the schedule keeps its length (training.max_steps changes that)"
    add("--max-steps", type=int, default=0, metavar="N", help=stop)
    minutes = "as many steps as this machine does in N minutes, and no more than the settings say"
    add("--minutes", type=float, metavar="N", help=minutes)
    phase = "only phase N (from 1), from the end of the one before"
    add("--phase", type=int, default=0, metavar="N", help=phase)
    off = "every optimization off, to compare with: the same as --profile baseline"
    add("--no-optimize", dest="profile", action="store_const", const="baseline", help=off)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Trains; returns 0, or 128 + the signal that ended it (143 SIGTERM, 130 SIGINT)."""
    if arguments.max_steps < 0:
        raise UserError(f"no run has {arguments.max_steps} steps", "--max-steps", "give at least 1")
    if arguments.minutes is not None and (not arguments.minutes > 0 or arguments.resume is not None):
        raise UserError("a new run takes minutes above 0", "--minutes", "a resumed run keeps its length")
    if arguments.phase and not all_runs():
        load().phase(arguments.phase)  # "there is no such phase" says more than "there is no run"
    if arguments.resume is None and arguments.phase > 1:  # a later phase goes on with the newest run
        arguments.resume = ""
    folder = None if arguments.resume is None else find_run(arguments.resume)
    settings = load(folder / "config.resolved.yaml" if folder else None)
    if arguments.phase:
        settings.phase(arguments.phase)  # one line where there is no such phase

    from ..assemble import assemble, open_store
    from ..engine.distributed import Distributed
    from ..engine.session import Session
    from ..train import fit

    distributed = Distributed()

    def build(settings: Settings) -> Project:
        return assemble(settings, distributed, open_store(settings))

    try:
        if folder is None and (folder := distributed.restarted(arguments.name)):
            settings = load(folder / "config.resolved.yaml")
        # Before the run's folder: a mistake leaves nothing behind. Rank 0 makes what others wait for.
        distributed.together(lambda: open_store(settings), main_first=True)
        if arguments.minutes is not None and folder is None:
            settings = within(arguments.minutes, settings, build, distributed)
        resumed, place = folder is not None, folder or distributed.begin(lambda: new_run(arguments.name))
        holding = ExitStack()
        distributed.together(lambda: holding.enter_context(held(place)) if distributed.is_main else None)
        session = Session(
            place,
            settings,
            build,
            distributed,
            limit=arguments.max_steps,
            resumed=resumed,
            changed=changes(place, settings) if resumed else {},
        )
        with holding, session:
            session.train(fit, arguments.phase)
        if distributed.is_main and session.run is not None:
            where = f"at step {session.progress.step} of {session.run.last_step}"
            again = f"stopped {where}: `train --resume {session.folder.name}` goes on"
            print(f"finished {where}: {session.folder / 'report.md'}" if session.finished else again)
        distributed.together(lambda: None)  # who leaves first ends the others: not before rank 0 has reported
        return session.exit_code
    finally:
        distributed.close()


def changes(folder: Path, settings: Settings) -> dict[str, object]:
    """What a run had of the settings that differ now. Raises `UserError` where it would be another run."""
    from ..config import load

    before = load(folder / "config.resolved.yaml", resolved=True)
    keys = [key for key in settings.origins if "." in key and settings.value(key) != before.value(key)]
    for key in keys:
        section, _, name = key.partition(".")
        if key == "reproducibility.seed" or (section in ("data", "model") and name not in FREE):
            what = f"{key} was {before.value(key)}, and would be {settings.value(key)}"
            raise UserError(what, settings.origins[key], "keep it, or start a new run")
    return {key: before.value(key) for key in keys}


def within(
    minutes: float, settings: Settings, build: Callable[[Settings], Project], distributed: Distributed
) -> Settings:
    """The settings with as many steps as take `minutes` here, evaluations included, if they say no fewer.

    Measures a few steps of a run that leaves nothing. `training.max_steps` and perhaps `evaluation.fraction`
    become a part of the settings: the run repeats and resumes like one that was given them.
    """
    from ..engine.session import Session
    from ..train import fit

    if settings.phases:
        raise UserError("each phase has its own number of steps", "--minutes", "take it out")
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        trial = settings.lasting(MEASURED, "--minutes")
        with Session(Path(folder), trial, build, distributed, trial=True) as session:
            session.train(fit)
            run = session.run
            if run is None or session.exit_code or run.monitor.row is None:
                raise SystemExit(session.exit_code)
            pace = pace_of(run)
    left = 60 * minutes - (time.perf_counter() - begun)
    left = min(distributed.gather(left))  # then all ranks plan the same
    steps, fraction = plan(left, pace, settings)
    del run, session
    gc.unfreeze()
    gc.collect()  # what the trial held
    return settings.lasting(steps, f"--minutes {minutes:g}", overlay_of(fraction, minutes, settings))


class Pace(NamedTuple):
    """How fast a run goes here."""

    step: float  # seconds
    evaluation: float  # seconds of a whole one
    batches: int  # of an evaluation
    epoch: int  # optimizer steps


def pace_of(run: Run) -> Pace:
    """What a few steps and a few batches of the validation took, on the slowest rank."""
    from ..engine.evaluation import seconds_of

    row = run.monitor.row or {}
    project, batches, evaluation = run.project, 0, 0.0
    if run.validation is not None:
        batches = len(run.validation)
        evaluation = seconds_of(project.wrapped, run.validation, project.precision, project.distributed)
    step = max(project.distributed.gather(row["step_ms"] / 1000))
    evaluation = max(project.distributed.gather(evaluation))
    return Pace(step, evaluation, batches, -(-len(run.loader) // run.accumulation))


def plan(left: float, pace: Pace, settings: Settings) -> tuple[int, float]:
    """Steps and the fraction of the validation samples that take `left` seconds together.

    Each evaluation measures a half of the samples, a quarter and so on, at least a batch, until evaluations
    take no more than `EVALUATION_SHARE` of the time. The steps are no more than the settings say.
    """
    most = settings.training.max_steps or settings.training.epochs * pace.epoch
    every = settings.evaluation.every_steps or pace.epoch
    fraction = 1.0
    while True:
        evaluation = fraction * pace.evaluation
        # One evaluation at the end; the others come every so many steps.
        fitting = (left - evaluation) / (pace.step + evaluation / every)
        steps = int(max(1, min(fitting, most)))
        spent = -(-steps // every) * evaluation
        if spent <= EVALUATION_SHARE * left or fraction * pace.batches <= 1:
            return steps, fraction
        fraction /= 2


def overlay_of(fraction: float, minutes: float, settings: Settings) -> Layer:
    """The setting for evaluations of a part of the split; none for the whole."""
    if fraction == 1:
        return {}
    value = fraction * settings.evaluation.fraction
    return {"evaluation.fraction": Given(value, f"--minutes {minutes:g}")}
