"""Train a model; on synthetic data where nothing was prepared."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..engine.errors import UserError
from ..engine.runs import all_runs, find_run, held, new_run

if TYPE_CHECKING:
    from ..config import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add = parser.add_argument
    resume = "go on with a run and its settings; the newest one without a name"
    add("--resume", nargs="?", const="", metavar="RUN", help=resume)
    add("--name", help="name of the new run (default: date and time)")
    stop = "stop this call after step N; the schedule keeps its length (training.max_steps changes that)"
    add("--max-steps", type=int, default=0, metavar="N", help=stop)
    phase = "only phase N (from 1), from the end of the one before"
    add("--phase", type=int, default=0, metavar="N", help=phase)
    off = "every optimization off, to compare with: the same as --profile baseline"
    add("--no-optimize", dest="profile", action="store_const", const="baseline", help=off)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Trains; returns 0, or 128 + the signal that ended it (143 SIGTERM, 130 SIGINT)."""
    if arguments.max_steps < 0:
        raise UserError(f"no run has {arguments.max_steps} steps", "--max-steps", "give at least 1")
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
    from ..engine.run import Session
    from ..train import fit

    distributed = Distributed()
    try:
        if folder is None and (folder := distributed.restarted(arguments.name)):
            settings = load(folder / "config.resolved.yaml")
        # Before the run's folder: a mistake leaves nothing behind. Rank 0 makes what others wait for.
        distributed.together(lambda: open_store(settings), main_first=True)
        resumed, place = folder is not None, folder or distributed.begin(lambda: new_run(arguments.name))
        holding = ExitStack()
        distributed.together(lambda: holding.enter_context(held(place)) if distributed.is_main else None)
        session = Session(
            place,
            settings,
            lambda settings: assemble(settings, distributed, open_store(settings)),
            distributed,
            limit=arguments.max_steps,
            resumed=resumed,
        )
        with holding, session:
            session.train(fit, arguments.phase)
        if distributed.is_main and session.run is not None:
            where = f"at step {session.progress.step} of {session.run.end}"
            again = f"stopped {where}: `train --resume {session.folder.name}` goes on"
            print(f"finished {where}: {session.folder / 'report.md'}" if session.finished else again)
        distributed.together(lambda: None)  # who leaves first ends the others: not before rank 0 has reported
        return session.exit_code
    finally:
        distributed.close()
