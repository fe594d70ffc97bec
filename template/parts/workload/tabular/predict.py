"""Predict with a trained run: for a split of the prepared data, or for new rows of a CSV file."""

from __future__ import annotations

import argparse
import csv
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
from .prepare import Source, read_table

if TYPE_CHECKING:
    import numpy as np


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add = parser.add_argument
    add("--run", metavar="RUN", help="name or path of the run (default: the newest)")
    add("--split", choices=["train", "validation", "test"], default="test", help="(default: test)")
    add("--input", metavar="FILE", help="CSV file of new rows, with or without the target")
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")
    add("--checkpoint", choices=["best", "last"], default="best", help="(default: best)")
    add("--output", metavar="FILE", help=".npz or .csv (default: predictions.npz in the run folder)")


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes one prediction for each row, in the order of the rows."""
    folder = find_run(arguments.run)
    output = Path(arguments.output or folder / "predictions.npz")
    if output.suffix not in (".npz", ".csv"):
        raise UserError(f"cannot write a '{output.suffix}' file", f"--output {output}", "use .npz or .csv")
    if not output.parent.is_dir():
        raise UserError("there is no such folder", f"--output {output}", "make it first")
    project, step = open_run(folder, load(folder / "config.resolved.yaml"), arguments.checkpoint)
    if arguments.input:
        source = Source(Path(arguments.input), "\t" if arguments.delimiter == "tab" else arguments.delimiter)
        with tempfile.TemporaryDirectory() as temporary:
            found = predict(project, new_rows(source, project, Path(temporary)))
    else:
        found = predict(project, project.loader(arguments.split))
    try:
        with replacing(output) as file:
            convert = as_csv if output.suffix == ".csv" else as_npz
            file.write(convert(found, project.store.facts))
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", f"--output {output}") from error
    print(f"{len(found['prediction']):,} predictions of step {step} written to {output}")


def new_rows(source: Source, project: Any, folder: Path) -> Any:
    """A loader over a CSV file, by way of a store in `folder` with the facts of the training data."""
    import numpy as np

    from ..dataset import Samples, write
    from ..engine.loader import Loader
    from ..engine.store import Store

    facts, arrays = project.store.facts, project.store.arrays
    kinds = {column["name"]: "number" for column in facts["features"]}
    known = {column["name"]: column["values"] for column in facts["categories"]}
    table = read_table(source, kinds | dict.fromkeys(known, "category"), known=known)
    if not len(table):
        raise UserError("no rows under the header", str(source.path), "there is nothing to predict")
    dtype = arrays["features"].dtype if "features" in arrays else "float32"
    write(folder, table, facts, {"input": np.arange(len(table))}, dtype)
    store = Store.open(folder)
    samples = Samples(store, project.settings, "input")
    return Loader(samples, store, project.settings, project.device, train=False)


def predict(project: Any, loader: Any) -> dict[str, np.ndarray]:
    """What `model.predict` gives for every sample of the loader, and `target` where there is one."""
    import torch
    from tqdm import tqdm

    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    with torch.no_grad():
        for batch in tqdm(loader.epoch(0), "predicting", len(loader), leave=False, disable=None):
            with project.precision.autocast():
                found = project.model.predict(batch)
            found |= {name: batch[name] for name in ("index", "target") if name in batch}
            for name, value in found.items():
                parts[name].append(value.to("cpu", copy=True))  # the loader reuses the batch's memory
    loader.close()
    values = {name: torch.cat(tensors).numpy() for name, tensors in parts.items()}
    present = values.pop("index") >= 0
    return {name: value[present] for name, value in values.items()}


def as_npz(found: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """Arrays `prediction`, `target` (N,); of classes also `probability` (N, K) and their names `classes`."""
    import numpy as np

    arrays: dict[str, Any] = dict(found)
    if "probability" in found:
        arrays["classes"] = np.array(facts["target"]["classes"])
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def as_csv(found: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """The same as lines, `row` counting from 1; classes by name, with a column of probabilities for each."""
    classes = facts["target"].get("classes", [])
    columns = {name: value.astype(str).tolist() for name, value in found.items() if value.ndim == 1}
    if classes:
        columns = {name: [classes[int(number)] for number in numbers] for name, numbers in columns.items()}
        shares = found["probability"].T.astype(str).tolist()
        columns |= {f"probability of {name}": share for name, share in zip(classes, shares, strict=True)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *columns])
    writer.writerows(zip(range(1, len(found["prediction"]) + 1), *columns.values(), strict=True))
    return text.getvalue().encode()
