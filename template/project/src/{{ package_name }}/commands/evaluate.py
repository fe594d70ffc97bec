"""Measure a trained run on a whole split, beside simple baselines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.files import write_json
from ..engine.runs import find_run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    parser.add_argument("--run", help="name or path of the run (default: the newest)")
    splits = ("train", "validation", "test")
    parser.add_argument("--split", choices=splits, default="test", help="default: test")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best", help="default: best")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> int:
    """Writes `evaluation.json` into the run folder and prints a table."""
    folder = find_run(arguments.run)
    settings = load(folder / "config.resolved.yaml")

    from .. import dataset
    from ..engine.evaluation import evaluate, timed
    from ..engine.tracker import Tracker

    project, step = open_run(folder, settings, arguments.checkpoint)
    loader = project.loader(arguments.split)
    metrics, seconds = timed(
        lambda: evaluate(
            project.wrapped, loader, project.precision, project.distributed, title=arguments.split
        )
    )
    loader.close()
    project.distributed.close()
    if not project.distributed.is_main:
        return 0
    metrics = dataset.finish(metrics, project.store, arguments.split)
    baselines = dataset.baselines(project.store, project.settings, arguments.split)
    result = {"split": arguments.split, "step": step, "metrics": metrics, "baselines": baselines}
    write_json(folder / "evaluation.json", result)
    tracker = Tracker(folder, project.settings)
    tracker.open()
    tracker.log(step, {f"{arguments.split}/{name}": value for name, value in metrics.items()})
    tracker.close()
    count = len(loader.order.samples)
    print(f"{folder}: {arguments.split} split, checkpoint of step {step}")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    print(table({"model": metrics, **baselines}))
    return 0


def open_run(folder: Path, settings: Any, which: str, needs_data: bool = True) -> tuple[Any, int]:
    """A trained run's project with the weights of its best or last checkpoint, and their step.

    Prints what the engine has switched on, as training does. Raises `UserError` where the run has no
    valid checkpoint, or was trained on other data than there are now.
    """
    from ..assemble import assemble, open_store
    from ..engine.checkpoint import Checkpoint
    from ..engine.distributed import Distributed
    from ..engine.optimization import prepare_process

    prepare_process()
    distributed = Distributed()
    line = print if distributed.is_main else lambda text: None
    if settings.phases:  # a phase may have had other data, another block size
        number = Checkpoint(folder / "checkpoints", distributed).peek(which).get("phase", 0)
        settings = settings.phase(number + 1)
    store = open_store(settings, synthetic=False)
    project = assemble(settings, distributed, store)
    checkpoint = Checkpoint(folder / "checkpoints", distributed, model=project.model)

    def fits(facts: dict[str, Any]) -> None:
        if facts["data"] != store.fingerprint:
            what = "the run was trained on other data than these"
            remedy = "name the run's data with --data.path, or prepare the same once more"
            raise UserError(what, str(store.folder), remedy)

    found = checkpoint.load_model(which, fits)
    for skipped in checkpoint.skipped:
        line(f"note: skipped a damaged checkpoint: {skipped}")
    if found is None:
        raise UserError("the run has no checkpoint yet", str(folder), "train it further with --resume")
    for entry in project.optimizations:
        line(f"  {entry['name']:<18}{entry['state']:<14}{entry['why']}")
    project.model.eval()
    return project, found["step"]


def table(rows: dict[str, dict[str, float]]) -> str:
    """Metrics side by side, a line each row."""
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    width = max(map(len, rows)) + 2
    lines = [" " * width + "".join(f"{name:>16}" for name in names)]
    for row, values in rows.items():
        cells = "".join(f"{values[name]:>16.5g}" if name in values else f"{'-':>16}" for name in names)
        lines.append(f"{row:<{width}}{cells}")
    return "\n".join(lines)
