"""A trained run, opened for evaluation and prediction, and what these commands have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine.errors import UserError
from .engine.plugins import discover, names
from .engine.runs import CONFIG, add_run, find_run, typed_path

if TYPE_CHECKING:
    import numpy as np

    from .engine.data.loader import Loader


# --- flags


def add_flags(parser: argparse.ArgumentParser, split: bool = True, output: str = "") -> None:
    """Add the flags that choose a run and its weights, and a split.

    output: what `--output` is, for a command that writes predictions.
    """
    add_run(parser)
    add = parser.add_argument
    which = "which checkpoint to load (default: best)"
    add("--checkpoint", choices=["best", "last"], default="best", help=which)
    parser.set_defaults(weights="trained")
    if "ema" in names("hooks"):  # the extra `ema`
        which = "which weights to load, with the extra ema (default: trained)"
        add("--weights", choices=["trained", "averaged"], help=which)
    if split:
        splits = ["train", "validation", "test"]
        which = "which split to use (default: %(default)s)"
        add("--split", choices=splits, default="test", help=which)
    if output:
        add("--output", type=typed_path, metavar="FILE", help=f"file to write, {output}")


# --- the run


def open_run(
    folder: Path, settings: Any, arguments: argparse.Namespace, needs_data: bool = True
) -> tuple[Any, int]:
    """Return a trained run's project with the weights of a checkpoint, and the checkpoint's step.

    arguments: `checkpoint` is best or last; `weights` is trained, or averaged with the extra `ema`.
    needs_data: if False, the store may have no rows, only the metadata that the run keeps of its
    data. Raises `UserError` if the run has no valid checkpoint, or if the data are not those that
    it was trained on.
    """
    from .assemble import assemble, open_store
    from .engine.compute.distributed import Distributed
    from .engine.data.store import Store
    from .engine.run.checkpoint import Checkpoint

    distributed = Distributed()
    checkpoint = Checkpoint(folder / "checkpoints", distributed)
    saved = checkpoint.find(arguments.checkpoint)
    synthetic = Store.was_synthetic(folder)
    store = open_store(settings, synthetic) if needs_data else Store.remembered(folder)
    with checkpoint.using(saved["path"]):
        if saved["must_match"].get("data") != store.fingerprint:
            what = "the run was trained on other data"
            remedy = "set --data.path to the data of the run, or prepare the same data again"
            raise UserError(what, str(store.folder), remedy)

    project = assemble(settings, distributed, store)
    checkpoint.parts = {"model": project.model}
    checkpoint.restore(saved, ["model"])
    if arguments.weights != "trained":
        for module in discover("hooks", "load_averages"):
            module.load_averages(checkpoint, saved)
    project.wrapped.eval()  # and what it wraps; `evaluate` restores the mode of the wrapper
    return project, saved.get("step")


def load_run(run: str | Path | None = None, checkpoint: str = "best") -> Any:
    """Return the project of a trained run for your own Python, such as a notebook.

    run: name or path, by default the newest run. Its `model` is in evaluation mode. Call it in the
    project's folder.
    """
    from .config import load

    folder = find_run(run)
    settings = load(folder / CONFIG, resolved=True)
    arguments = argparse.Namespace(checkpoint=checkpoint, weights="trained")
    project, _ = open_run(folder, settings, arguments)
    return project


# --- predictions


def collected(project: Any, loader: Loader, *names: str) -> dict[str, np.ndarray]:
    """Return the predictions for all samples, and the arrays `names` of their batches.

    Arrays are (N, …), in the order of the samples. The loader is closed.
    """
    from tqdm import tqdm

    from .engine.run.evaluation import joined, predictions

    pairs = predictions(project, loader, ("index", *names))
    shown = tqdm(pairs, "predicting", len(loader), leave=False, disable=None)
    rows = joined([{**predicted, **known} for known, predicted in shown])
    loader.close()
    order = rows["index"].argsort(stable=True)  # lanes visit samples in another order
    return {name: values[order].numpy() for name, values in rows.items()}


def output_path(
    output: str | None, default: Path, *endings: str, source: str | None = None
) -> Path:
    """Return the path for predictions. A wrong path raises `UserError` before they are computed.

    source: the input of the command, which the output must not replace.
    """
    path = Path(output or default)
    if source and path.exists() and path.resolve().is_relative_to(Path(source).resolve()):
        raise UserError("this would replace the input", f"--output {path}", "name another file")
    if path.suffix not in endings or not path.parent.is_dir():
        what = f"predictions need a {' or '.join(endings)} file in a folder that exists"
        raise UserError(what, f"--output {path}", "name another file")
    return path
