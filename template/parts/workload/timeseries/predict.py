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
from .prepare import is_hdf5, windows_of

if TYPE_CHECKING:
    import numpy as np

PANELS = 4


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--split", default="test", metavar="SPLIT", help="train, validation or test (default: test)")
    add(
        "--input",
        metavar="FILE",
        help="new data, CSV or HDF5; the last window forecasts what comes after them",
    )
    add("--datasets", default="features", metavar="NAME", help="of HDF5 (default: features)")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add(
        "--output",
        metavar="FILE",
        help=".npz (default: predictions.npz in the run folder); a .png goes beside it",
    )


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes `prediction` (N, H, G) of N windows, `target` where known, and `time` of the last known row."""
    folder = find_run(arguments.run)
    output = Path(arguments.output or folder / "predictions.npz")
    if output.suffix != ".npz":
        raise UserError(f"cannot write a '{output.suffix}' file", f"--output {output}", "use .npz")
    if not output.parent.is_dir():
        raise UserError("there is no such folder", f"--output {output}", "make it first")
    project, step = open_run(folder, load(folder / "config.resolved.yaml"), arguments.checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            store = new_store(Path(arguments.input), arguments.datasets, project, Path(temporary))
            found = predict(project, store, "input")
        else:
            found = predict(project, project.store, arguments.split)
    import numpy as np

    history = found.pop("history")
    npz, picture = io.BytesIO(), plot(found, history, project.store.facts)
    np.savez(npz, allow_pickle=False, **found)
    try:
        for path, content in ((output, npz.getvalue()), (output.with_suffix(".png"), picture)):
            with replacing(path) as file:
                file.write(content)
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", f"--output {output}") from error
    count = len(found["prediction"])
    print(
        f"{count:,} forecasts of step {step} written to {output}, some drawn in {output.with_suffix('.png')}"
    )


def new_store(path: Path, datasets: str, project: Any, folder: Path) -> Any:
    """A store of new data with the scaler, columns and frames of the training data."""
    from ..dataset import write_series
    from ..engine.store import Store, StoreWriter
    from ..series import Source, resample

    facts, origin = project.store.facts, project.store.source
    if is_hdf5(path) != (facts["kind"] == "windows"):
        expected = "HDF5" if facts["kind"] == "windows" else "CSV"
        raise UserError(
            "the model was trained on data of the other kind", str(path), f"give a {expected} file"
        )
    if is_hdf5(path):
        (features,) = windows_of(path, datasets, ("features",))
        expected_shape = facts["frames"][0]["history"], len(facts["columns"])
        if features.shape[1:] != expected_shape:
            what = f"windows of {features.shape[1:]} where the model was trained on {expected_shape}"
            raise UserError(what, str(path), "give windows of that shape")
        with StoreWriter(folder, project.store.workload) as writer:
            writer.refer("features", features)
            writer.facts, writer.splits = facts, {"input": [0, features.shape[0]]}
        return Store.open(folder)
    source = Source(path, origin.get("delimiter", ","))
    series = source.series(origin.get("time_column"), [], "last", facts["columns"])
    frames = {}
    for frame in facts["frames"]:
        same = frame["step"] == series.step or frame["name"] == "rows"
        bars = series if same else resample(series, frame["step"], origin.get("aggregate", {}))
        frames[frame["name"]] = bars, frame["history"]
    base = frames[facts["frames"][0]["name"]][0]
    history, step = (facts["frames"][0][name] for name in ("history", "step"))
    if len(base) < history:  # before its step, which a single row does not tell
        what = f"{len(series)} rows are shorter than a window of {history}"
        raise UserError(what, str(path), "give more history")
    if base.step != step:
        what = f"rows are {base.step} s apart, the model was trained on {step} s"
        raise UserError(what, str(path), "give data of the same step")
    first = project.store.arrays[facts["frames"][0]["name"]]
    splits = {"input": [0, len(base)]}
    write_series(folder, frames, splits, facts["targets"], facts["horizon"], first.dtype, known=facts)
    return Store.open(folder)


def predict(project: Any, store: Any, split: str) -> dict[str, np.ndarray]:
    """What `model.predict` gives for every window of the split; `history` of the windows that are drawn."""
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
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    histories: dict[int, torch.Tensor] = {}
    name, carry = store.facts["frames"][0]["name"], RecurrentState()  # of lanes, as evaluation has it
    with torch.no_grad():
        for batch in tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None):
            carry.attach(batch)
            with project.precision.autocast():
                found = project.model.predict(batch)
            carry.state = found.pop("carry", None)
            found |= {name: batch[name] for name in ("index", "target") if name in batch}
            for place, number in enumerate(batch["index"].tolist()):
                if number in drawn:
                    histories[number] = batch[name][place].to("cpu", copy=True)
            for key, value in found.items():
                parts[key].append(value.to("cpu", copy=True))  # the loader reuses the batch's memory
    loader.close()
    values = {key: torch.cat(tensors).numpy() for key, tensors in parts.items()}
    order = values["index"].argsort(kind="stable")  # lanes visit windows in another order
    order = order[values.pop("index")[order] >= 0]
    values = {key: value[order] for key, value in values.items()}
    if "time" in store.arrays:
        values["time"] = store.arrays["time"].rows()[samples.first - 1 :][: len(samples)]
    values["history"] = torch.stack([histories[number] for number in drawn]).numpy()
    return values


def plot(found: dict[str, np.ndarray], history: np.ndarray, facts: dict[str, Any]) -> bytes:
    """Some windows, evenly spaced: the first target's history, what came and what was forecast."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    drawn = np.linspace(0, len(found["prediction"]) - 1, len(history)).astype(int)
    figure, axes = pyplot.subplots(
        len(drawn), 1, figsize=(9, 2.4 * len(drawn)), squeeze=False, layout="constrained"
    )
    for axis, number, past in zip(axes[:, 0], drawn, history, strict=True):
        ahead = np.arange(facts["horizon"]) + 1
        if facts["targets"] is not None:
            past = past[:, facts["targets"][0]]
            axis.plot(np.arange(len(past)) - len(past) + 1, past, color="0.5", label="history")
        if "target" in found:
            axis.plot(ahead, found["target"][number, :, 0], color="black", label="came")
        axis.plot(ahead, found["prediction"][number, :, 0], color="tab:orange", label="forecast")
        name = "target 0" if facts["targets"] is None else facts["columns"][facts["targets"][0]]
        axis.set_title(f"{name}, window {number}", loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    pyplot.close(figure)
    return file.getvalue()
