"""SIGKILL at eight kinds of moments, in every kind of run: resumed, it is the run that nothing
stopped, bit for bit.

A moment is a call that any training makes, so no name of the project's own code is in here. The
run that nothing stops counts the calls; a case draws one of them.
"""

import functools
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ranks import run_ranks
from rendering import render
from running import run
from scripts import CASES, result_of, run_script, script, words_of
from sizes import TINY
from torch.optim import optimizer as optimizers

FLAGS = (
    *("--training.max_steps", "24", "--monitor.every_steps", "1"),
    *("--training.gradient_accumulation_steps", "2"),
    *("--evaluation.every_steps", "7", "--checkpoint.every_steps", "5"),
)
CALLS = "calls"  # in the folder of a run: a letter for each call
PIDS = "pids"  # of the run's processes


class Variant(NamedTuple):
    """How a run is started."""

    workload: str
    framework: str = "pytorch"
    layout: str = "package"
    world: int = 1


VARIANTS = (
    *(Variant(workload) for workload in TINY),
    *(Variant(workload, layout="script") for workload in CASES),
    Variant("tabular", framework="lightning"),
    Variant("timeseries", framework="accelerate"),
    Variant("tabular", world=2),
)
# owner and name of a function, and whether the process ends before or after the call
MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "backward": (torch.Tensor, "backward", False),
    "update": (optimizers.Optimizer, "zero_grad", False),  # weights are new, the step not counted
    "evaluation": (torch.nn.Module, "eval", True),
    "written": (os, "fsync", False),
    "renaming": (os, "replace", False),
    "renamed": (os, "replace", True),
    "removed": (os, "unlink", True),
    "resume": (torch, "load", True),
}
ROUNDS = 5
KILLS = [
    (variant, list(MOMENTS)[(place + 5 * number) % len(MOMENTS)])
    for number in range(ROUNDS)
    for place, variant in enumerate(VARIANTS)
]


def at(moment, act):
    """Do something at each call, with its number from 1."""
    owner, name, after = MOMENTS[moment]
    real = getattr(owner, name)
    process = os.getpid()  # a loader's worker makes calls of its own
    count = 0

    @functools.wraps(real)
    def changed(*arguments, **named):
        nonlocal count
        # Libraries remove files of their own, which another run may not: a cache of fonts.
        foreign = name == "unlink" and "checkpoints" not in str(arguments[0])
        if foreign or os.getpid() != process:
            return real(*arguments, **named)
        if not after:
            count += 1
            act(count)
        result = real(*arguments, **named)
        if after:  # a call that raised, since no such file is there, does not count
            count += 1
            act(count)
        return result

    setattr(owner, name, changed)


def count_calls():
    """Write down each call of each moment."""
    for moment in MOMENTS:
        path = Path(f"{CALLS}.{moment}").absolute()
        path.touch()

        def write(_, path=path):
            with path.open("a") as file:
                file.write("x")

        at(moment, write)


def kill_at(moment, number):
    """End all processes of the run at this call."""
    pids = Path(PIDS).absolute()
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")

    def act(count):
        if count == number:
            for pid in map(int, pids.read_text().split()):
                if pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    at(moment, act)


def train(variant, cwd, *words, before):
    """Train, or resume with `--resume`; return the exit codes."""
    (cwd / PIDS).unlink(missing_ok=True)
    workload = variant.workload
    if variant.layout == "script":
        often = ("--evaluate_every", "7", "--save_every", "5")
        words = words or (*words_of(workload, 24, 2), *often)
        ended = run_script(script(workload), *words, cwd=cwd, before=lambda _: before())
        return [ended.code]
    words = ("train", *(words or (*TINY[workload], *FLAGS)))
    if variant.world > 1:
        project = render(workload=workload, distributed="ddp")
        ended = run_ranks(project, *words, cwd=cwd, before=lambda _: before())
        return [rank.code for rank in ended]
    project = render(workload=workload, framework=variant.framework)
    return [run(project, *words, cwd=cwd, before=before).code]


@functools.cache
def whole(variant, folder):
    """A run that nothing stops."""
    place = folder / "-".join(map(str, variant))
    place.mkdir()
    if variant.layout == "script":
        CASES[variant.workload].write(place / "data.file")
    else:  # the calls that make the sample data are no part of what is counted
        words = (*TINY[variant.workload], "--max-steps", "1")
        run(render(workload=variant.workload), "train", *words, cwd=place)
        shutil.rmtree(place / "runs")
    assert set(train(variant, place, before=count_calls)) == {0}
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.mark.parametrize(
    ("variant", "moment"), KILLS, ids=["-".join([*map(str, v), m]) for v, m in KILLS]
)
@pytest.mark.cover(1, "moment")
def test_killed_and_resumed_is_the_run_that_nothing_stopped(variant, moment, base, tmp_path):
    expected = whole(variant, base)
    place = tmp_path / "run"
    place.mkdir()
    for name in ("data", "data.file"):
        if (expected / name).exists():
            (place / name).symlink_to(expected / name)
    first = "update" if moment == "resume" else moment
    calls = (expected / f"{CALLS}.{first}").stat().st_size // variant.world
    assert calls, f"nothing calls {MOMENTS[first][1]} here"
    earliest = calls // 2 if moment == "resume" else 1  # there is a checkpoint by then
    number = random.Random(f"{variant}{moment}").randint(earliest, calls)

    kill = functools.partial(kill_at, first, number)
    assert -signal.SIGKILL in train(variant, place, before=kill)
    if moment == "resume":
        kill = functools.partial(kill_at, "resume", 1)
        assert set(train(variant, place, "--resume", before=kill)) == {-signal.SIGKILL}
    settings = "settings.json" if variant.layout == "script" else "config.resolved.yaml"
    words = ("--resume",) * any(place.glob(f"runs/*/{settings}"))
    if not words:
        shutil.rmtree(place / "runs", ignore_errors=True)
    assert set(train(variant, place, *words, before=lambda: None)) == {0}
    assert result_of(place) == result_of(expected)
