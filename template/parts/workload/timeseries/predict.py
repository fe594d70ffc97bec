"""Forecast with a trained run: a split of the prepared data, or new data, with a plot of some windows."""

from __future__ import annotations

import argparse
import io
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UserError
from ..engine.files import replacing
from ..engine.runs import find_run
from .evaluate import open_run
from .prepare import new_store

if TYPE_CHECKING:
    import numpy as np

    from ..assemble import Project
    from ..engine.store import Store

PANELS = 4


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--split", default="test", metavar="SPLIT", help="train, validation or test (default: test)")
    add("--input", metavar="FILE", help="new data; the last window of a series forecasts what comes after it")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add("--output", metavar="FILE", help=".npz (default: in the run folder); a .png goes beside it")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes `prediction` of N windows, `target` where known, and `time` of a series' last known row."""
    folder = find_run(arguments.run)
    output = Path(arguments.output or folder / "predictions.npz")
    if output.suffix != ".npz":
        raise UserError(f"cannot write a '{output.suffix}' file", f"--output {output}", "use .npz")
    if not output.parent.is_dir():
        raise UserError("there is no such folder", f"--output {output}", "make it first")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments.checkpoint, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            store = new_store(Path(arguments.input), project, Path(temporary))
            found, picture = predict(project, store, "input")
        else:
            found, picture = predict(project, project.store, arguments.split)
    import numpy as np

    npz = io.BytesIO()
    np.savez(npz, allow_pickle=False, **found)
    drawing = output.with_suffix(".png")
    try:
        for path, content in ((output, npz.getvalue()), (drawing, picture)):
            with replacing(path) as file:
                file.write(content)
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", f"--output {output}") from error
    print(f"{len(found['prediction']):,} forecasts of step {step} are in {output}, some drawn in {drawing}")


def predict(project: Project, store: Store, split: str) -> tuple[dict[str, np.ndarray], bytes]:
    """What `model.predict` gives for every window of the split, and a picture of some."""
    import torch
    from tqdm import tqdm

    from ..dataset import Samples
    from ..engine.loader import Loader
    from ..engine.progress import RecurrentState

    samples = Samples(store, project.settings, split)
    if not len(samples):
        raise UserError("no window fits", f"{split} split of {store.folder}", "give more rows")
    loader = Loader(samples, store, project.settings, project.device, train=False)
    drawn = torch.linspace(0, len(samples) - 1, min(PANELS, len(samples))).long().tolist()
    histories: dict[int, np.ndarray | None] = dict.fromkeys(drawn)
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    recurrent = RecurrentState()  # of lanes, as evaluation has it
    with torch.no_grad():
        for batch in tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None):
            recurrent.attach(batch)
            with project.precision.autocast():
                found = project.model.predict(batch)
            recurrent.state = found.pop("carry", None)
            found |= {name: batch[name] for name in ("index", "target") if name in batch}
            for key, value in found.items():
                parts[key].append(value.to("cpu", copy=True))  # the loader reuses the batch's memory
            history = samples.history(batch)
            for place, number in enumerate(batch["index"].tolist()):
                if number in histories and history is not None:
                    histories[number] = history[place].to("cpu", copy=True).numpy()
    loader.close()
    values = {key: torch.cat(tensors).numpy() for key, tensors in parts.items()}
    order = values["index"].argsort(kind="stable")  # lanes visit windows in another order
    order = order[values.pop("index")[order] >= 0]
    values = {key: value[order] for key, value in values.items()}
    if "time" in store.arrays:
        values["time"] = store.arrays["time"].rows()[samples.first - 1 :][: len(samples)]
    return values, plot(values, histories, samples.title)


def plot(found: dict[str, np.ndarray], histories: dict[int, np.ndarray | None], title: str) -> bytes:
    """Some windows: the first target's history where it is known, what came and what was forecast."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (9, 2.4 * len(histories))
    figure, axes = pyplot.subplots(len(histories), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, (number, past) in zip(axes[:, 0], histories.items(), strict=True):
        if past is not None:
            axis.plot(range(1 - len(past), 1), past, color="0.5", label="history")
        for name, color, label in (("target", "black", "came"), ("prediction", "tab:orange", "forecast")):
            if name in found:
                values = found[name][number].reshape(len(found[name][number]), -1)[:, 0]
                axis.plot(range(1, len(values) + 1), values, color=color, label=label)
        axis.set_title(f"{title}, window {number}", loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    pyplot.close(figure)
    return file.getvalue()
