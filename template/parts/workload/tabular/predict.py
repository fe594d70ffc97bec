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
from .evaluate import add_flags, collected, new_loader, open_run, output_path, predictions, write_output
from .prepare import Source, read_table

if TYPE_CHECKING:
    import numpy as np

    from ..engine.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add_flags(parser, ".npz or .csv", "predictions.npz")
    add = parser.add_argument
    add("--input", metavar="FILE", help="CSV file of new rows, with or without the target")
    add("--delimiter", default=",", choices=[",", ";", "|", "tab"], help="between cells (default: comma)")


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
            delimiter = "\t" if arguments.delimiter == "tab" else arguments.delimiter
            new_rows(Source(Path(arguments.input), delimiter), project.store, Path(temporary))
            loader = new_loader(project, Path(temporary))
        else:
            loader = project.loader(arguments.split)
        found = collected(predictions(project, loader), "target")
    del found["index"]
    classes = project.store.facts["target"].get("classes")
    arrays = {**found, "classes": classes} if classes else found
    write_output(output, as_csv(found, classes) if output.suffix == ".csv" else arrays)
    print(f"{len(found['prediction']):,} predictions of step {step} written to {output}")


def new_rows(source: Source, trained: Store, folder: Path) -> None:
    """Writes a CSV file as a store into `folder`, with the facts and the dtype of the training data."""
    import numpy as np

    from ..dataset import write

    facts, arrays = trained.facts, trained.arrays
    kinds = {column["name"]: "number" for column in facts["features"]}
    known = {column["name"]: column["values"] for column in facts["categories"]}
    table = read_table(source, kinds | dict.fromkeys(known, "category"), "", 0, known)
    dtype = arrays["features"].dtype if "features" in arrays else "float32"
    write(folder, table, facts, {"input": np.arange(len(table))}, dtype, {})


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
