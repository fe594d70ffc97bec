"""Evaluate a trained run on a whole split, and compare it with a baseline."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from ..engine.files import write_json
from ..engine.plugins import discover
from ..engine.run.environment import device_line
from ..engine.runs import find_run
from ..trained import add_flags, open_run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add_flags(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Print the metrics, write them to `evaluation.json` and send them to the tracker."""
    folder = find_run(arguments.run)
    split = arguments.split
    settings = load(folder / "config.resolved.yaml")

    from ..engine.log.report import show
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
    baseline = project.ask_dataset("baseline_loss", None, store, split)
    count = loader.order.count
    print(device_line(project.device))
    print("\n".join(project.optimization_lines()))
    print(f"{folder}: {split} split, checkpoint of step {step}, {arguments.weights} weights")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    for name, value in metrics.items():
        print(f"{name:<16} {show(value)}")
    if baseline is not None:
        print(f"{'baseline_loss':<16} {show(baseline)}")

    results = {
        "split": split,
        "step": step,
        "weights": arguments.weights,
        "metrics": metrics,
        "baseline_loss": baseline,
    }
    write_json(folder / "evaluation.json", results)
    for module in discover("engine.log", "Tracker"):
        module.Tracker(folder, settings).log_evaluation({"step": step, "split": split, **metrics})
