"""Evaluate a trained run on a whole split, and compare it with simple baselines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..engine.files import write_json
from ..engine.run.environment import device_line
from ..engine.runs import find_run
from ..trained import add_flags, open_run

if TYPE_CHECKING:
    from ..engine.run.project import Project

# The optimizations whose state is printed with the results.
CONDITIONS = ("precision", "TF32 in matmuls", "cuDNN benchmark", "deterministic")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add_flags(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `evaluation.json` into the run folder and print a table."""
    folder = find_run(arguments.run)
    split = arguments.split or "test"
    settings = load(folder / "config.resolved.yaml")

    from ..engine.log.report import aligned, side_by_side
    from ..engine.log.tracker import Tracker
    from ..engine.run.evaluation import evaluate, timed

    project, step = open_run(folder, settings, arguments)
    loader = project.loader(split)
    distributed = project.distributed
    sums, seconds = timed(lambda: evaluate(project.wrapped, loader, project.precision, distributed))
    scores = project.scores(loader)
    loader.close()
    distributed.close()
    if not distributed.is_main:
        return

    metrics = {**project.finish(sums, split), **scores}
    baselines = project.baselines(split)
    weights = getattr(arguments, "weights", "trained")
    result = {"split": split, "step": step, "weights": weights}
    result |= {"metrics": metrics, "baselines": baselines}
    try:
        write_json(folder / "evaluation.json", result)
        tracker = Tracker(folder, project.settings)
        tracker.open()
        tracker.log(step, {f"{split}/{name}": value for name, value in metrics.items()})
        tracker.close()
    except OSError as error:
        print(f"note: the results are not in {folder} ({error.strerror})")

    count = loader.order.count
    print(f"{device_line(project.device)}, {conditions(project)}")
    print(f"{folder}: {split} split, checkpoint of step {step}, {weights} weights")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    print("\n".join(aligned(*side_by_side({"model": metrics, **baselines}))))


def conditions(project: Project) -> str:
    """Return the states of the optimizations in `CONDITIONS`, as a line."""
    state = {row["name"]: row["state"] for row in project.optimizations}
    return ", ".join(f"{name} {state[name]}" for name in CONDITIONS)
