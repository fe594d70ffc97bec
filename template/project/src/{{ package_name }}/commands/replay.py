"""Train steps of a run again: compare their exact numbers, save a step, or debug it.

A run is a function of its code, data, settings and seed. So every step follows from the checkpoint
before it, or from the start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tarfile import FilterError
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError, note
from ..engine.files import read_json, replacing
from ..engine.monitoring.report import Record, duration, numbers
from ..engine.plugins import PACKAGE
from ..engine.runs import CONFIG, add_run, find_run, typed_path

if TYPE_CHECKING:
    from ..engine.training.run import Run
    from ..settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add_run(parser)
    steps = parser.add_mutually_exclusive_group().add_argument
    compare = "compare steps A to B, or with --steps=-A: the last A (default: all recorded ones)"
    steps("--steps", metavar="A:B", help=compare)
    steps("--step", type=int, metavar="N", help="save batch, weights and gradients of step N")
    use = parser.add_mutually_exclusive_group().add_argument
    save = "the file that --step writes (default: step-N.pt in the run's folder)"
    use("--save", type=typed_path, metavar="FILE", help=save)
    use("--pdb", action="store_true", help="with --step: stop in the debugger, in its forward")
    add = parser.add_argument
    add("--anyway", action="store_true", help="with --step: even if bits before it differ")
    exact = "require that hashes of all gradients are compared, which `train --exact` has recorded"
    add("--exact", action="store_true", help=exact)
    against = "if a step differs, name what differs first from the code of this commit"
    add("--against", metavar="COMMIT", help=against)


def main(arguments: argparse.Namespace, load: Callable[..., Settings]) -> int:
    """Return 0 if all bits are equal, 1 if not, or 128 + the signal that stopped it."""
    from ..measure.exact import Comparison
    from ..measure.rerun import capture, debug, rerun, train_again

    folder = find_run(arguments.run)
    settings = load(folder / CONFIG)
    record = Record(folder)
    check_flags(arguments, settings)
    first, last = asked_steps(arguments, record)
    with TemporaryDirectory() as source:
        if arguments.against:
            extract(arguments.against, Path(source))
        with rerun(folder, settings, first, last) as run:
            comparison = Comparison(record.training, run, last)
            recorded = comparison.recorded
            check_steps(arguments, run, (first, last), bool(recorded))
            start = run.step
            announce(record, start, last)
            state = capture(run, arguments.step or 0)

            def is_wanted() -> bool:
                """Whether the debugger should stop; the last step has no numbers by then."""
                return arguments.anyway or comparison.first_difference()[0] in (0, last)

            if arguments.pdb:
                debug(run, last, is_wanted)
            train_again(run)
            if run.stop:
                return run.exit_code
            step, text = comparison.first_difference()

        if step:
            print(f"different bits from step {step} on: {text}")
            explain(record, run, start)
        elif recorded:
            print(f"equal bits: steps {min(recorded)} to {max(recorded)}")
        if step and arguments.against:
            compare_code(Path(source), folder, settings, (first, step))
    if arguments.step:
        save(arguments, folder, state, bool(recorded) and not step)
    return int(step > 0)


# --- before


def check_flags(arguments: argparse.Namespace, settings: Settings) -> None:
    """Raise `UserError` for flags that miss something."""
    if arguments.exact and not settings.monitor.exact:
        remedy = "start a run with `train --exact`"
        raise UserError("the run has no hashes of its gradients", "--exact", remedy)
    if arguments.step is None and (arguments.save or arguments.pdb or arguments.anyway):
        where = "--save, --pdb or --anyway"
        raise UserError("there is no step to save or to debug", where, "add --step N")


def asked_steps(arguments: argparse.Namespace, record: Record) -> tuple[int, int]:
    """Return the first and the last step that are asked for. Raises `UserError`."""
    processes = record.environment.get("processes", 1)
    if processes != 1:
        what = f"the run had {processes} processes, and replay has one"
        raise UserError(what, str(record.folder), "replay a run of one process")
    if arguments.step is not None:
        return arguments.step, arguments.step
    begin, _, end = (arguments.steps or ":").partition(":")
    try:
        first = int(begin or 1)
        if first < 0:
            first = max(1, record.step + 1 + first)
        return first, int(end or record.step)
    except ValueError:
        where = f"--steps {arguments.steps}"
        raise UserError("this is no range of steps", where, "write A:B, A: or :B") from None


def check_steps(
    arguments: argparse.Namespace, run: Run, steps: tuple[int, int], is_recorded: bool
) -> None:
    """Raise `UserError` if the run has no such step, or no exact numbers to compare."""
    first, last = steps
    if not 1 <= first <= last <= run.num_steps:
        where = f"--step or --steps, of {run.num_steps} steps"
        raise UserError("the run has no such steps", where, "choose others")
    if not is_recorded and not arguments.anyway:
        remedy = "choose earlier steps, or save one with --step N --anyway"
        raise UserError("there are no exact numbers of these steps", "metrics.jsonl", remedy)


def announce(record: Record, start: int, last: int) -> None:
    """Print how many steps are trained, from where, and about how long that takes."""
    times = numbers(record.training, "step_ms").values()
    seconds = (last - start) * median(times or [0]) / 1000
    where = f"the checkpoint of step {start}" if start else "the start"
    print(
        f"{record.folder}: {last - start} steps from {where}, about {duration(seconds)}", flush=True
    )


# --- after


def save(
    arguments: argparse.Namespace, folder: Path, state: dict[str, Any], is_equal: bool
) -> None:
    """Save what a step computes, unless it is not that of the run."""
    import torch

    if not is_equal and not arguments.anyway:
        print(f"step {arguments.step} is not that of the run: add --anyway to save or debug it")
    if arguments.pdb or not (is_equal or arguments.anyway):
        return
    path = Path(arguments.save or folder / f"step-{arguments.step}.pt")
    with replacing(path) as file:
        torch.save({**state, "equal_bits": is_equal}, file)
    print(f"saved step {arguments.step}{'' if is_equal else ', not as in the run'}: {path}")


def explain(record: Record, run: Run, start: int) -> None:
    """Print how code, machine and settings differ from those of the run.

    start: the step after which steps were trained again.
    """
    from ..engine.training.environment import device_line, git_state, versions

    environment = record.environment
    device = run.project.device
    old = {**environment.get("versions", {}), "device": environment.get("gpu")}
    new = {**versions(), "device": device_line(device)}
    old["data"] = read_json(record.folder / "data.json").get("seal")
    new["data"] = run.project.store.manifest["seal"]
    print(f"commit: {environment.get('git') or 'none'} in the run, {git_state() or 'none'} now")
    for name, value in new.items():
        if old.get(name) != value:
            print(f"{name}: {old.get(name)} in the run, {value} now")
    for event in record.events:
        if event.get("event") == "resumed" and event["step"] > start:
            note(f"settings that a resume at step {event['step']} changed count from the start")
    if device.type == "cuda" and not run.settings.reproducibility.deterministic:
        note("on a GPU, bits are equal only with reproducibility.deterministic true")


# --- the code of another commit


def extract(commit: str, place: Path) -> None:
    """Write the code of a commit into a folder. Raises `UserError`."""
    file = place / "source.tar"
    printed(["git", "archive", f"--output={file}", commit, "src"], "git cannot read this commit")
    try:
        shutil.unpack_archive(file, place, filter="data")
    except FilterError as error:  # such as a link to an absolute path
        raise UserError(f"{error}", f"--against {commit}", "copy the file, and commit it") from None


def compare_code(place: Path, folder: Path, settings: Settings, steps: tuple[int, int]) -> None:
    """Print what this code computes differently first from the code in `place`.

    That code trains in a process of its own. steps: the first one that was asked for, and the one
    that differs.
    """
    from ..measure.rerun import trace

    there = place / "src" / PACKAGE / "measure"
    there.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[1] / "measure" / "rerun.py", there)
    config = place / CONFIG
    config.write_text(settings.to_yaml(), encoding="utf-8")
    command = [sys.executable, "-m", f"{PACKAGE}.measure.rerun", config, folder, *map(str, steps)]
    paths = f"{place / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": paths}
    old = json.loads(printed(command, "this code cannot train the step", environment))
    for before, now in zip(old, trace(folder, settings, *steps), strict=False):
        if before != now:
            print(f"first difference of the code: {now[0]}")
            return
    print("both codes compute the same: settings, data, torch or the machine differ")


def printed(command: list[Any], failure: str, environment: dict[str, str] | None = None) -> str:
    """Return the last line that a program prints. Raises `UserError` with its last error."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise UserError(f"{failure} ({said})", "--against", "name the commit of the run")
    return done.stdout.strip().rpartition("\n")[2]
