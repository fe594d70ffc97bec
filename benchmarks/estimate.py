"""How near is `estimate` to a step of this machine? Every workload in small, estimated and then
measured.

Both sides by their fastest repetition in one process, one after the other in each round: what else
runs on the machine only adds. A ratio is taken in each round.

    python benchmarks/estimate.py [--rounds 7] [--only tabular llm ...] [--write]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402
from importing import imported  # noqa: E402
from publish import command_line, machine, publish  # noqa: E402
from rendering import render  # noqa: E402
from sizes import TINY  # noqa: E402

SECONDS = 0.5  # of steps in a round


def shrink() -> None:
    """Takes the sizes of a rehearsal."""
    global SECONDS
    SECONDS = 0.01


def measure(workload: str, rounds: int, quick: bool) -> list[tuple[float, float]]:
    """(estimated, measured) milliseconds of a step, by round; in the working folder. One more warms
    up.

    quick: whether the estimate repeats each of its own measurements no longer than a round, too.
    """
    project = render(workload=workload, extras=["estimate", "profile"])
    get = lambda name: imported(project, name)  # noqa: E731
    flags = iter(TINY[workload])
    overrides = [
        (name[2:], value) for name, value in zip(flags, flags, strict=True) if "fp8" not in name
    ]
    settings = get("settings").Settings.load(overrides=overrides)
    estimates: Any = get("measure.estimates")
    if quick:
        estimates.fastest = functools.partial(estimates.fastest, seconds=SECONDS)
    times = []
    with get("measure.trial").trial(settings) as run:
        samples = {name: value.clone() for name, value in next(run.batches).items()}
        run.batches = map(dict, itertools.repeat(samples))  # a loader that costs nothing

        def step() -> None:
            run.end_step(get("train").take_step(run, settings.optimizer.learning_rate))

        facts = run.project.store.facts
        build: Any = lambda: get("model").build_model(settings, facts)  # noqa: E731
        counted = get("measure.costs").count(build, samples, "fp32")
        for _ in range(rounds + 1):
            expected, _ = estimates.this_cpu().step(counted)
            times.append((1000 * expected, 1000 * estimates.fastest(step, seconds=SECONDS)))
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only", nargs="+", choices=list(TINY), default=list(TINY), metavar="WORKLOAD"
    )
    arguments = command_line(parser, rounds=1, only=["tabular", "timeseries", "llm"])
    if arguments.rehearse:
        shrink()
    torch.set_num_threads(1)
    how = f"{machine()}, one thread, fp32, {arguments.rounds} rounds, "
    how += f"the fastest step of {SECONDS} s in each"
    rows = []
    for workload in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found = measure(workload, arguments.rounds, arguments.rehearse)
            os.chdir(ROOT)
        ratios = [expected / measured for expected, measured in found]
        times = (f"{statistics.median(side):.2f}" for side in zip(*found, strict=True))
        rows.append(
            [
                f"`{workload}`",
                *times,
                *(f"{figure(ratios):.2f}" for figure in (statistics.median, min, max)),
            ]
        )
    columns = [
        "workload",
        "ms/step, estimated",
        "measured",
        "estimated / measured",
        "lowest",
        "highest",
    ]
    publish("estimate", "estimate", how, {"columns": columns, "rows": rows}, arguments=arguments)


if __name__ == "__main__":
    main()
