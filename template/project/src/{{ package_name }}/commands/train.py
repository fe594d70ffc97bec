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
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import lock
from ..engine.plugins import discover, names
from ..engine.runs import CONFIG, find_training, new_run, typed_run

if TYPE_CHECKING:
    from ..engine.compute.distributed import Distributed
    from ..engine.run.project import Project
    from ..engine.run.session import Session
    from ..engine.settings.config import Settings

TIMED_STEPS = 10  # for `--minutes`; the last ones count, because the first ones are slow
TRAINING_SHARE = 3 / 4  # of the minutes; the others are for evaluations
# A resumed run may change these settings of data and model. Its checkpoint requires that a step
# keeps its number of samples.
FREE = {"path", "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers"}
FREE |= {"resident", "chunk_size_gb", "dropout", "chunked_loss"}
FIXED = ("reproducibility.seed", "optimizer.name", "finetune.init_from")


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
    parser.set_defaults(phase=None)
    if "phases" in names("hooks"):  # the extra `finetune`
        phase = "train phase N only (counted from 1), from the last weights of the phase before it"
        add("--phase", type=int, metavar="N", help=phase)
    off = "turn every optimization off, for a comparison; the same as --profile unoptimized"
    add("--no-optimize", dest="profile", action="store_const", const="unoptimized", help=off)


def run(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Train; return 0, or 128 + the signal that ended it (143 SIGTERM, 130 SIGINT)."""
    resumed = resumed_folder(arguments)
    settings = load(resumed / CONFIG if resumed else None)

    gc.disable()  # looking for garbage among imported modules takes a tenth of a start's CPU time
    from ..engine.compute.distributed import Distributed

    distributed = Distributed()
    try:
        if resumed is None:
            resumed = distributed.restarted(arguments.name)
            if resumed is not None:
                arguments.config = None  # the first start has read it
                settings = load(resumed / CONFIG)
        phases = None
        for module in discover("hooks", "Phases"):  # the extra `finetune`
            load_phase = partial(load, resumed / CONFIG if resumed else None)
            phases = module.Phases(settings, load_phase, distributed, arguments)
        return train(arguments, settings, resumed, distributed, phases or None)
    finally:
        gc.enable()
        distributed.close()


def resumed_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the run to resume; None for a new run. Raises `UserError`."""
    for flag, most in (("max_steps", arguments.max_steps), ("minutes", arguments.minutes)):
        if most is not None and not 0 < most < math.inf:
            flag = flag.replace("_", "-")
            raise UserError(f"cannot train for {most:g}", f"--{flag}", "give a number above 0")

    # A later phase continues the newest run.
    if arguments.resume is None and (arguments.phase or 1) <= 1:
        return None
    for flag in ("name", "minutes"):
        if getattr(arguments, flag) is not None:
            what = "a resumed run keeps its name and its steps"
            raise UserError(what, f"--{flag}", "remove it, or start a new run")
    folder = find_training(arguments.resume)
    is_phase = (folder.parent / CONFIG).exists()
    return folder.parent if is_phase else folder


def train(
    arguments: argparse.Namespace,
    settings: Settings,
    resumed: Path | None,
    distributed: Distributed,
    phases: Any,
) -> int:
    """Train in the folder `resumed`, or in a new one; return the exit code."""
    if resumed is None and arguments.minutes is not None:
        settings = within(arguments.minutes, settings, distributed)
    folder = resumed or distributed.begin(lambda: new_run(arguments.name))

    def hold() -> None:
        if distributed.is_main:
            holding.enter_context(lock(folder))

    with ExitStack() as holding:
        distributed.on_all_ranks(hold)
        changed = changes(folder, settings) if resumed else []
        train_in = partial(train_run, distributed, limit=arguments.max_steps or 0, changes=changed)
        session = phases.train(folder, changed, train_in) if phases else train_in(folder, settings)

    # The first process to end takes the others with it, so all wait until rank 0 has reported.
    distributed.on_all_ranks(lambda: print_end(session, folder))
    return session.exit_code


def train_run(
    distributed: Distributed, folder: Path, settings: Settings, **options: Any
) -> Session:
    """Train in a folder, or resume what is in it; return the session, which has ended.

    options: further arguments of `Session`.
    """
    from ..assemble import assemble, open_store
    from ..engine.data.store import Store
    from ..engine.run.session import Session
    from ..train import train

    def build(settings: Settings) -> Project:
        # A resumed run whose data are gone must not continue on others. Rank 0 makes the synthetic
        # sample while the other ranks wait.
        synthetic = Store.was_synthetic(folder)
        store = distributed.on_all_ranks(lambda: open_store(settings, synthetic), main_first=True)
        return assemble(settings, distributed, store)

    resumed = distributed.gather_objects((folder / CONFIG).exists())[0]
    session = Session(folder, settings, build, distributed, resumed=resumed, **options)
    with session:
        run = session.start()
        gc.enable()
        train(run)
    return session


def print_end(session: Session, folder: Path) -> None:
    """Print on rank 0 the step at which the call ended, and the command that continues the run."""
    if session.run is None or not session.is_main:
        return
    where = f"at step {session.run.step} of {session.run.num_steps}"
    if session.finished:
        print(f"finished {where}: {session.folder / 'report.md'}")
    else:
        print(f"stopped {where}: `train --resume {shlex.quote(folder.name)}` continues it")


def changes(folder: Path, settings: Settings) -> list[str]:
    """Return what is said of each setting that differs from that of the run.

    Raises `UserError` for a setting that a resumed run cannot change.
    """
    from ..config import load

    before = load(folder / CONFIG, resolved=True)
    changed = []
    for key, origin in settings.origins.items():
        old = before.value(key)
        new = settings.value(key)
        section, dot, name = key.partition(".")
        if not dot or new == old:
            continue
        is_fixed = section in ("data", "model") and name not in FREE
        if key in FIXED or is_fixed:
            what = f"a resumed run cannot change {key} from {old!r} to {new!r}"
            raise UserError(what, origin, "keep the value, or start a new run")
        changed.append(f"{key} is {new}; it was {old}")
    return changed


# --- train --minutes


def within(minutes: float, settings: Settings, distributed: Distributed) -> Settings:
    """Return the settings with as many steps as fit into `minutes` here, and no more than before.

    A quarter of the time is left for evaluations; long ones take more. The steps become part of the
    settings, so the run can be repeated and resumed like any other.
    """
    start_time = time.perf_counter()
    seconds_per_step, num_steps = time_steps(settings, distributed)
    gc.unfreeze()
    gc.collect()  # frees what the timed steps held
    seconds = 60 * minutes - (time.perf_counter() - start_time)
    steps = max(1, int(TRAINING_SHARE * seconds / seconds_per_step))
    steps = min(distributed.gather_objects(min(steps, num_steps)))  # as the slowest rank
    return settings.replaced({"training.max_steps": steps}, f"--minutes {minutes:g}")


def time_steps(settings: Settings, distributed: Distributed) -> tuple[float, int]:
    """Return the seconds of a step, and how many steps the settings ask for."""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        session = train_run(distributed, Path(folder), settings, limit=TIMED_STEPS, trial=True)
    run = session.run
    if session.exit_code or run is None or run.record is None:
        raise SystemExit(session.exit_code)
    return run.record["step_ms"] / 1000, run.num_steps
