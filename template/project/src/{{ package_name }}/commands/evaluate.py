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


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb beside the common ones."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add_weights(parser)
    add("--split", choices=["train", "validation", "test"], default="test", help="(default: test)")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes `evaluation.json` into the run folder and prints a table."""
    folder, split = find_run(arguments.run), arguments.split
    settings = load(folder / "config.resolved.yaml")

    from .. import dataset
    from ..engine.evaluation import evaluate, timed
    from ..engine.tracker import Tracker

    project, step = open_run(folder, settings, arguments)
    loader = project.loader(split)
    distributed, count = project.distributed, loader.order.count
    found, seconds = timed(lambda: evaluate(project.wrapped, loader, project.precision, distributed))
    loader.close()
    distributed.close()
    if not distributed.is_main:
        return
    metrics = project.finish(found, split)
    baselines = dataset.baselines(project.store, project.settings, split)
    result = {"split": split, "step": step, "metrics": metrics, "baselines": baselines}
    write_json(folder / "evaluation.json", result)
    tracker = Tracker(folder, project.settings)
    tracker.open()
    tracker.log(step, {f"{split}/{name}": value for name, value in metrics.items()})
    tracker.close()
    shown = ("precision", "TF32 in matmuls", "TF32 in cuDNN", "cuDNN benchmark", "deterministic")
    states = [f"{x['name']} {x['state']}" for x in project.optimizations if x["name"] in shown]
    print(f"{device_line(project.device)}, {', '.join(states)}")
    print(f"{folder}: {split} split, checkpoint of step {step}")
    print(f"{count:,} samples in {seconds:.1f} s, {count / seconds:,.0f} samples/s")
    print(table({"model": metrics, **baselines}))


def averages() -> dict[str, Any]:
    """Hooks that keep other weights than the trained ones, by what `--weights` calls those."""
    return {hook.WEIGHTS: hook for hook in plugged("hooks", "WEIGHTS = ")}


def add_weights(parser: argparse.ArgumentParser) -> None:
    """`--weights`, where the project has such a hook."""
    if kinds := averages():
        choices = ["trained", *kinds]
        parser.add_argument("--weights", choices=choices, default="trained", help="(default: trained)")


def open_run(
    folder: Path, settings: Any, arguments: argparse.Namespace, needs_data: bool = True
) -> tuple[Any, int]:
    """A trained run's project with the weights of a checkpoint, and its step.

    arguments: `checkpoint` is best or last; `weights` names those of a hook, where they are not the trained
    ones. needs_data: without them the project's store is what the run remembers of its data: facts, no rows.
    Raises `UserError` where the run has no valid checkpoint, or was trained on other data than there are now.
    """
    from ..assemble import assemble
    from ..engine.checkpoint import Checkpoint
    from ..engine.distributed import Distributed
    from ..engine.store import Store

    distributed, data, which = Distributed(), None, arguments.checkpoint
    states: dict[str, Any] = {}
    averaged = averages().get(getattr(arguments, "weights", "trained"))
    line = print if distributed.is_main else lambda text: None
    if settings.phases:  # a phase may have had other data, another block size
        facts = Checkpoint(folder / "checkpoints", distributed).peek(which)
        settings, data = settings.phase(facts.get("phase", 0) + 1), facts.get("data")
    store = Store.remembered(folder, data)  # None of runs of older versions
    if store is None or needs_data:
        store = _data_of(folder, settings, store)
    project = assemble(settings, distributed, store)
    hooks: Any = SimpleNamespace(load_state_dict=states.update)
    checkpoint = Checkpoint(folder / "checkpoints", distributed, model=project.model, hooks=hooks)

    def fits(facts: dict[str, Any]) -> None:
        if facts["data"] not in store.fingerprints:
            remedy = "name the run's data with --data.path, or prepare the same once more"
            raise UserError("the run was trained on other data than these", str(store.folder), remedy)

    found = checkpoint.load_model(which, fits, also=("hooks",) if averaged else ())
    for skipped in checkpoint.skipped:
        line(f"note: skipped a damaged checkpoint: {skipped}")
    if found is None:
        raise UserError("the run has no checkpoint yet", str(folder), "train it further with --resume")
    if averaged is not None:
        averaged.use(project.model, states)
    project.model.eval()
    return project, found["step"]


def _data_of(folder: Path, settings: Any, remembered: Store | None) -> Store:
    """The data that a run needs. Raises `UserError` where there are none, with what makes them again."""
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
    """`--output` and the flags of `evaluate`, for a verb that writes predictions."""
    arguments(parser)
    parser.add_argument("--output", metavar="FILE", help=f"{endings} (default: {default} of the run)")


def output_path(output: str | None, default: Path, *endings: str) -> Path:
    """Where predictions go. Raises `UserError` before anything is computed for nothing."""
    path = Path(output or default)
    if path.suffix not in endings:
        what = f"cannot write a '{path.suffix}' file"
        raise UserError(what, f"--output {path}", f"use {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UserError("there is no such folder", f"--output {path}", "make it first")
    return path


def write_output(path: Path, content: bytes | dict[str, Any]) -> None:
    """Writes the file, whole or not at all; arrays as `numpy.load` reads them. Raises `UserError`."""
    import numpy as np

    try:
        with replacing(path) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                np.savez(file, allow_pickle=False, **content)
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", f"--output {path}") from error


def new_loader(project: Project, folder: Path) -> Loader:
    """Batches of the split `input` of a store that was written into `folder` with the run's facts."""
    from ..engine.store import Store

    return replace(project, store=Store.open(folder)).loader("input")


def predictions(
    project: Any, loader: Loader, answer: Callable[[Batch], dict[str, Any]] | None = None
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Each batch of the loader, and what `answer` (else the model's `predict`) makes of it.

    States are carried as in evaluation. The next batch may reuse the memory of this one.
    """
    import torch
    from tqdm import tqdm

    from ..engine.progress import RecurrentState

    recurrent = RecurrentState()
    for batch in tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None):
        recurrent.attach(batch)
        with torch.no_grad(), project.precision.autocast():
            found = (answer or project.model.predict)(batch)
        recurrent.state = found.pop("carry", None)
        yield batch, found
    loader.close()


def collected(passed: Iterable[tuple[Batch, dict[str, Any]]], *names: str) -> dict[str, np.ndarray]:
    """What was predicted for every sample, and `names` of the batches, (N, …) in the order of the samples."""
    import torch

    parts: dict[str, list[Any]] = defaultdict(list)
    for batch, found in passed:
        kept = {name: batch[name] for name in ("index", *names) if name in batch}
        for name, value in (found | kept).items():
            parts[name].append(value.to("cpu", copy=True))
    values = {name: torch.cat(tensors).numpy() for name, tensors in parts.items()}
    index = values["index"]
    order = index.argsort(kind="stable")  # lanes visit samples in another order
    order = order[index[order] >= 0]
    return {name: value[order] for name, value in values.items()}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Metrics side by side, a line each row."""
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    width = max(map(len, rows)) + 2
    wide = {name: max(16, len(name) + 2) for name in names}
    lines = [" " * width + "".join(f"{name:>{wide[name]}}" for name in names)]
    for row, values in rows.items():
        shown = {name: f"{values[name]:.5g}" if name in values else "-" for name in names}
        cells = [f"{cell:>{wide[name]}}" for name, cell in shown.items()]
        lines.append(f"{row:<{width}}{''.join(cells)}")
    return "\n".join(lines)
