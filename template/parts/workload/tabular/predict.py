"""Predict with a trained run: for a split of the prepared data, or for new rows of a CSV file."""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.runs import find_run
from ..splits import add_input
from .evaluate import add_flags, collected, new_loader, open_run, output_path, predictions, write_output
from .prepare import MISSING, read_table

if TYPE_CHECKING:
    import numpy as np

    from ..engine.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add_flags(parser, ".npz or .csv", "predictions.npz")
    add_input(parser, "new rows, with or without the target", required=False)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Writes `prediction` for each row, in the order of the rows, and `target` where it is known.

    Classes are numbers, with `probability` (N, K) and their names `classes`; in CSV they stand by name.
    """
    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.npz", ".npz", ".csv")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            new_rows(Path(arguments.input), vars(arguments), project.store, Path(temporary))
            loader = new_loader(project, Path(temporary))
        else:
            loader = project.loader(arguments.split)
        found = collected(predictions(project, loader), "target")
    del found["index"]
    classes = project.store.facts["target"].get("classes")
    arrays = {**found, "classes": classes} if classes else found
    write_output(output, as_csv(found, classes) if output.suffix == ".csv" else arrays)
    print(f"{len(found['prediction']):,} predictions of step {step} written to {output}")


def new_rows(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Writes a table as a store into `folder`, with the facts and the dtype of the training data."""
    import numpy as np

    from ..dataset import write
    from ..engine.store import StoreWriter
    from ..tables import Source

    facts, arrays, kinds = trained.facts, trained.arrays, {}
    of = {f"{name} {part}": name for name, parts in facts.get("times", {}).items() for part in parts}
    for name in (column["name"] for column in facts["features"]):
        kinds[of.get(name, name)] = facts["times"][of[name]] if name in of else "number"
    known = {column["name"]: column["values"] for column in facts["categories"]}
    with StoreWriter(folder, trained.workload) as writer:
        kinds |= dict.fromkeys(known, "category")
        blocks = Source(path, MISSING, flags, trained.source).blocks("reading")
        table = read_table(writer, blocks, kinds, "", 0, known)
        dtype = arrays["features"].dtype if "features" in arrays else "float32"
        write(writer, table, facts, np.arange(len(table)), dtype)
        writer.splits = {"input": [0, len(table)]}


def as_csv(found: dict[str, np.ndarray], classes: list[str] | None) -> bytes:
    """Lines, `row` counting from 1; classes by name, with a column of probabilities for each."""
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
