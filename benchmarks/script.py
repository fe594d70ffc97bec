"""A step of `layout: script` against a step of the package, on the same data and settings.

Runs take turns, each in a process of its own with one thread; a round's ratio is taken on its own,
so that a drifting machine cancels out. A run's figure is the median over its rows of metrics, each
of 20 steps, without evaluations and checkpoints; the first row warms up and does not count. The
clock counts seconds of the process, so that time which others took does not. Losses must be equal.

    python benchmarks/script.py [--rounds 7] [--only llm] [--write]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / path) for path in ("tests", "tools", "benchmarks")]

from loop import interval  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from running import losses, rows, run  # noqa: E402
from test_script import CASES, run_script  # noqa: E402

STEPS = 300
EVERY = 20
# Sizes as by default; data large enough for none of the epochs' ends to fall into the steps that
# count.
SIZES = {
    "tabular": ("--batch_size 256", "--data.batch_size 256 --data.num_workers 0"),
    "timeseries": ("--history 24 --horizon 6", ""),
    "llm": ("--block_size 32 --batch_size 16", "--data.block_size 32 --data.batch_size 16"),
    "windows": ("--shuffle_block 100", "--data.order block --data.shuffle_block 100"),
    "graph": ("--window 10 --neighbors 3 --correlation_days 40 --split 150,35,20", ""),
    "seq2seq": ("--split 180,40,40 --batch_size 8", "--data.batch_size 8"),
}


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global STEPS, EVERY
    STEPS = 4
    EVERY = 2


def trained(
    workload: str, folder: Path, sides: tuple[str, ...]
) -> dict[str, tuple[float, list[tuple[int, str]]]]:
    """Milliseconds of a step and the losses, of both layouts, in that order."""
    words_of_side = {}
    script, package = SIZES[workload]
    for side in sides:
        cwd = folder / side
        cwd.mkdir(parents=True)
        CASES[workload].write(cwd / "data.file")
        if side == "script":
            words = f"--data data.file --precision fp32 --max_steps {STEPS} {script}"
            words += f" --evaluate_every {STEPS} --save_every {STEPS} --log_every {EVERY}"
            done = run_script(render(workload=workload, layout="script"), *words.split(), cwd=cwd)
        else:
            project = render(workload=workload)
            run(project, "prepare", *CASES[workload].prepare.split(), cwd=cwd)
            words = f"--training.precision fp32 --training.max_steps {STEPS}"
            words += f" --monitor.every_steps {EVERY}"
            words += f" --evaluation.every_steps {STEPS} --checkpoint.every_steps {STEPS} {package}"
            done = run(project, "train", *words.split(), cwd=cwd)
        assert done.code == 0, done.err
        times = [row["step_ms"] for row in rows(cwd) if "split" not in row][1:]
        words_of_side[side] = statistics.median(times), losses(cwd)
    assert words_of_side["script"][1] == words_of_side["package"][1], (
        f"not the same work: {workload}"
    )
    return words_of_side


def measure(workloads: list[str], rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times of both, and the ratio with the interval that holds its median with about 95 %."""
    times: list[list[str]] = []
    ratios: list[list[str]] = []
    for workload in workloads:
        seconds: dict[str, list[float]] = {"script": [], "package": []}
        with tempfile.TemporaryDirectory() as temporary:
            for number in range(rounds):  # who goes first changes, too
                sides = ("script", "package")[:: 1 - 2 * (number % 2)]
                taken = trained(workload, Path(temporary) / str(number), sides)
                for side, (milliseconds, _) in taken.items():
                    seconds[side].append(milliseconds)
        for side, values in seconds.items():
            shown = (f"{figure(values):.3f}" for figure in (statistics.median, min, max))
            times.append([f"{workload}, {side}", *shown])
        ordered = sorted(a / b for a, b in zip(seconds["script"], seconds["package"], strict=True))
        low, high = interval(ordered)
        median = f"{statistics.median(ordered):.3f}"
        ratios.append([workload, median, f"{low:.3f} to {high:.3f}", "≤ 1.02"])
    return (
        {"columns": ["loop", "ms a step, median", "fastest", "slowest"], "rows": times},
        {
            "columns": ["script against package", "ratio, median", "95 % interval", "wanted"],
            "rows": ratios,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments = command_line(parser, rounds=1)
    if arguments.rehearse:
        shrink()
    rounds = f"{arguments.rounds} rounds of {STEPS} steps"
    how = f"{machine()}, one thread, {rounds}, seconds of the process"
    with mock.patch.object(time, "perf_counter", time.process_time):  # forks have it, too
        seconds = measure(arguments.only, arguments.rounds)
    publish("script", "script", how, *seconds, arguments=arguments)


if __name__ == "__main__":
    main()
