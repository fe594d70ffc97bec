"""Evaluate a trained run on a whole split, and compare it with simple baselines."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.files import write_json
from ..engine.run.environment import device_line
from ..engine.runs import find_run
from ..trained import add_flags, open_run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add_flags(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `evaluation.json` into the run folder and print a table."""
    folder = find_run(arguments.run)
    split = arguments.split
    settings = load(folder / "config.resolved.yaml")

    from ..engine.log.report import aligned, side_by_side
    from ..engine.run.evaluation import evaluate

    project, step = open_run(folder, settings, arguments)
    loader = project.loader(split)
    distributed = project.distributed
    start_time = time.perf_counter()
    sums: Any = evaluate(project, loader)
    seconds = time.perf_counter() - start_time
    loader.close()
    distributed.close()
    if not distributed.is_main:
        return

    store = project.store
    metrics = project.ask_dataset("finish", sums, sums, store, split)
    baselines = project.ask_dataset("baselines", {}, store, settings, split)
    count = loader.order.count
    print(f"{device_line(project.device)}, precision {project.precision.name}")
    print(f"{folder}: {split} split, checkpoint of step {step}, {arguments.weights} weights")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    print("\n".join(aligned(*side_by_side({"model": metrics, **baselines}))))

    about = {"split": split, "step": step, "weights": arguments.weights}
    write_results(folder, settings, {**about, "metrics": metrics, "baselines": baselines})


def write_results(folder: Path, settings: Any, results: dict[str, Any]) -> None:
    """Write `evaluation.json`, and send the metrics to the tracker."""
    from ..engine.log.run_log import find_trackers

    write_json(folder / "evaluation.json", results)
    split = results["split"]
    numbers = {f"{split}/{name}": value for name, value in results["metrics"].items()}
    for tracker in find_trackers(folder, settings):
        tracker.open()
        tracker.log(results["step"], numbers)
        tracker.close()
