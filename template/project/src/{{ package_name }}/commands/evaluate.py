"""Measure a trained run on a whole split, beside simple baselines."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..engine.config import found as plugged
from ..engine.errors import UserError
from ..engine.files import replacing, write_json
from ..engine.runs import device_line, find_run

if TYPE_CHECKING:
    import numpy as np

    from ..assemble import Project
    from ..engine.loader import Loader
    from ..engine.seams import Batch
    from ..engine.store import Store

# What is printed of the optimizations.
CONDITIONS = ("precision", "TF32 in matmuls", "TF32 in cuDNN", "cuDNN benchmark", "deterministic")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that this verb, and each that predicts, has."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add_weights(parser)
    add("--split", choices=["train", "validation", "test"], default="test", help="(default: test)")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `evaluation.json` into the run folder and print a table."""
    folder = find_run(arguments.run)
    split = arguments.split
    settings = load(folder / "config.resolved.yaml")

    from .. import dataset
    from ..engine.evaluation import evaluate, timed

    project, step = open_run(folder, settings, arguments)
    loader = project.loader(split)
    distributed = project.distributed
    sums, seconds = timed(lambda: evaluate(project.wrapped, loader, project.precision, distributed))
    loader.close()
    distributed.close()
    if not distributed.is_main:
        return

    metrics = project.finish(sums, split)
    baselines = dataset.baselines(project.store, project.settings, split)
    result = {"split": split, "step": step, "metrics": metrics, "baselines": baselines}
    write_json(folder / "evaluation.json", result)
    track(folder, project, step, {f"{split}/{name}": value for name, value in metrics.items()})

    count = loader.order.count
    print(conditions(project))
    print(f"{folder}: {split} split, checkpoint of step {step}")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    print(table({"model": metrics, **baselines}))


def track(folder: Path, project: Project, step: int, metrics: dict[str, float]) -> None:
    """Log metrics to the tracker's part of the run."""
    from ..engine.tracker import Tracker

    tracker = Tracker(folder, project.settings)
    tracker.open()
    tracker.log(step, metrics)
    tracker.close()


def conditions(project: Project) -> str:
    """Name the device, and what of torch's state changes the numbers."""
    states = []
    for row in project.optimizations:
        if row["name"] in CONDITIONS:
            states.append(f"{row['name']} {row['state']}")
    return f"{device_line(project.device)}, {', '.join(states)}"


def averages() -> dict[str, Any]:
    """Return hooks that keep other weights than the trained ones, by their name for `--weights`."""
    return {hook.WEIGHTS: hook for hook in plugged("hooks", "WEIGHTS = ")}


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add `--weights`, where the project has such a hook."""
    kinds = averages()
    if kinds:
        choices = ["trained", *kinds]
        parser.add_argument(
            "--weights", choices=choices, default="trained", help="(default: trained)"
        )


def open_run(
    folder: Path, settings: Any, arguments: argparse.Namespace, needs_data: bool = True
) -> tuple[Any, int]:
    """Return a trained run's project with the weights of a checkpoint, and its step.

    arguments: `checkpoint` is best or last; `weights` names those of a hook, where they are not the
    trained ones. needs_data: without them the project's store is what the run remembers of its
    data: facts, no rows. Raises `UserError` where the run has no valid checkpoint, or was trained
    on other data than there are now.
    """
    from ..assemble import assemble
    from ..engine.checkpoint import Checkpoint
    from ..engine.distributed import Distributed
    from ..engine.store import Store

    distributed = Distributed()
    which = arguments.checkpoint
    data = None
    if settings.phases:  # a phase may have had other data, another block size
        facts = Checkpoint(folder / "checkpoints", distributed).peek(which)
        data = facts.get("data")
        settings = settings.phase(facts.get("phase", 0) + 1)
    store = Store.remembered(folder, data)  # None of runs of older versions
    if store is None or needs_data:
        store = _data_of(folder, settings, store)
    project = assemble(settings, distributed, store)
    step = load_weights(folder, project, which, getattr(arguments, "weights", "trained"))
    project.model.eval()
    return project, step


def load_weights(folder: Path, project: Project, which: str, weights: str) -> int:
    """Load a checkpoint's weights, or those that a hook keeps there; return its step."""
    from ..engine.checkpoint import Checkpoint

    store = project.store
    averaged = averages().get(weights)
    states: dict[str, Any] = {}
    hooks: Any = SimpleNamespace(load_state_dict=states.update)
    checkpoint = Checkpoint(
        folder / "checkpoints", project.distributed, model=project.model, hooks=hooks
    )

    def fits(facts: dict[str, Any]) -> None:
        if facts["data"] not in store.fingerprints:
            what = "the run was trained on other data than these"
            remedy = "name the run's data with --data.path, or prepare the same once more"
            raise UserError(what, str(store.folder), remedy)

    loaded = checkpoint.load_model(which, fits, also=("hooks",) if averaged else ())
    if project.distributed.is_main:
        for skipped in checkpoint.skipped:
            print(f"note: skipped a damaged checkpoint: {skipped}")
    if loaded is None:
        what = "the run has no checkpoint yet"
        raise UserError(what, str(folder), "train it further with --resume")
    if averaged is not None:
        averaged.use(project.model, states)
    step: int = loaded["step"]
    return step


def _data_of(folder: Path, settings: Any, remembered: Store | None) -> Store:
    """Return the data that a run needs.

    Raises `UserError` where there are none, with what makes them again.
    """
    from ..assemble import open_store
    from ..engine.store import MANIFEST, SYNTHETIC

    place = Path(settings.data.path)
    was_synthetic = remembered is not None and remembered.source.get("kind") == SYNTHETIC
    is_there = any((data / MANIFEST).exists() for data in (place, place / SYNTHETIC))
    if was_synthetic and not is_there:
        what = "the synthetic data of the run are gone"
        remedy = f"`train --resume {folder.name}` makes them again"
        raise UserError(what, str(place / SYNTHETIC), remedy)
    return open_store(settings, synthetic=False)


# --- what the verbs that predict have in common


def add_flags(parser: argparse.ArgumentParser, endings: str, default: str) -> None:
    """Add `--output` and the flags of `evaluate`, for a verb that writes predictions."""
    arguments(parser)
    meaning = f"{endings} (default: {default} of the run)"
    parser.add_argument("--output", metavar="FILE", help=meaning)


def output_path(output: str | None, default: Path, *endings: str) -> Path:
    """Return where predictions go. Raises `UserError` before anything is computed for nothing."""
    path = Path(output or default)
    if path.suffix not in endings:
        what = f"cannot write a '{path.suffix}' file"
        raise UserError(what, f"--output {path}", f"use {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UserError("there is no such folder", f"--output {path}", "make it first")
    return path


def write_output(path: Path, content: bytes | dict[str, Any]) -> None:
    """Write the file, whole or not at all; arrays as `numpy.load` reads them."""
    import numpy as np

    try:
        with replacing(path) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                np.savez(file, allow_pickle=False, **content)
    except OSError as error:
        what = f"cannot write the file ({error.strerror})"
        raise UserError(what, f"--output {path}") from error


def new_loader(project: Project, folder: Path) -> Loader:
    """Return batches of the split `input` of a store in `folder` that has the run's facts."""
    from ..engine.store import Store

    return replace(project, store=Store.open(folder)).loader("input")


def predictions(
    project: Any, loader: Loader, answer: Callable[[Batch], dict[str, Any]] | None = None
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Yield each batch of the loader, and what `answer` (else the model's `predict`) makes of it.

    The next batch may reuse the memory of this one.
    """
    import torch
    from tqdm import tqdm

    predict = answer or project.model.predict
    bar = tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None)
    for batch in bar:
        with torch.no_grad(), project.precision.autocast():
            predicted = predict(batch)
        yield batch, predicted
    loader.close()


def collected(passed: Iterable[tuple[Batch, dict[str, Any]]], *names: str) -> dict[str, np.ndarray]:
    """Return what was predicted for every sample, and `names` of the batches.

    Arrays are (N, …), in the order of the samples.
    """
    import torch

    parts: dict[str, list[Any]] = defaultdict(list)
    for batch, predicted in passed:
        kept = {name: batch[name] for name in ("index", *names) if name in batch}
        for name, value in (predicted | kept).items():
            parts[name].append(value.to("cpu", copy=True))
    values = {name: torch.cat(tensors).numpy() for name, tensors in parts.items()}

    index = values["index"]
    order = index.argsort(kind="stable")  # lanes visit samples in another order
    order = order[index[order] >= 0]
    return {name: value[order] for name, value in values.items()}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Show metrics next to each other, a line for each row."""
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    widths = {name: max(16, len(name) + 2) for name in names}
    first = max(map(len, rows)) + 2
    header = [f"{name:>{widths[name]}}" for name in names]
    lines = [" " * first + "".join(header)]
    for row, values in rows.items():
        line = f"{row:<{first}}"
        for name in names:
            cell = f"{values[name]:.5g}" if name in values else "-"
            line += f"{cell:>{widths[name]}}"
        lines.append(line)
    return "\n".join(lines)
