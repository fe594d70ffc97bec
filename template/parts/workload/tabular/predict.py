"""Predict with a trained run: for a split of the prepared dataset, or for the rows of a file."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.runs import find_run
from ..prepare.splits import add_input
from ..trained import add_flags, collected, open_run, output_path, write_output

if TYPE_CHECKING:
    import numpy as np

    from ..engine.data.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    output = ".npz or .csv (default: predictions.npz in the run's folder)"
    add_flags(parser, output=output)
    title = "new rows, with or without the target"
    add_input(parser, title, required=False, times=False)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` for each row of the split or the input, and `target` if it is known.

    `row` is the number of the row in its file, from 1; of several files, in all of them together.
    In a .npz file, classes are numbers, with `probability` (N, K) and the names `classes`. In a CSV
    file, classes are names.
    """
    from ..prepare.rows import file_rows

    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.npz", ".npz", ".csv")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    split = arguments.split
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            split = "input"
            store = new_rows(Path(arguments.input), vars(arguments), project.store, temporary)
            project = replace(project, store=store)
        predicted = collected(project, project.loader(split), "target")
        rows = {"row": file_rows(project.store, split, predicted.pop("index")), **predicted}
    classes = project.store.facts["target"].get("classes", [])
    if output.suffix == ".csv":
        write_output(output, as_csv(rows, classes))
    else:
        write_output(output, {**rows, "classes": classes} if classes else rows)
    print(f"{len(rows['row']):,} predictions of step {step} written to {output}")


def new_rows(path: Path, flags: dict[str, Any], trained: Store, folder: str | Path) -> Store:
    """Write a table as a dataset into `folder`, with the metadata of the training data."""
    import numpy as np

    from ..engine.data.store import Store, StoreWriter
    from ..prepare.columns import read_table
    from ..prepare.rows import write
    from ..prepare.tables import Source

    facts = trained.facts
    kinds = {column["name"]: "number" for column in facts["features"]}
    kinds |= {column["name"]: "category" for column in facts["categories"]}
    source = Source(path, flags, trained.source)
    with StoreWriter(folder, trained.workload) as writer:
        table = read_table(writer, source, kinds=kinds)
        write(writer, table, facts, np.arange(len(table)))
        writer.splits = {"input": [0, len(table)]}
    return Store.open(folder)


def as_csv(rows: dict[str, np.ndarray], classes: list[str]) -> bytes:
    """Return the content of a CSV file, with classes by name, and their probabilities."""
    import numpy as np
    import pyarrow as pa
    from pyarrow.csv import write_csv

    columns = dict(rows)
    if classes:
        probability = columns.pop("probability")
        for name in columns.keys() & {"prediction", "target"}:
            columns[name] = np.array(classes)[columns[name]]
        for name, values in zip(classes, probability.T, strict=True):
            columns[f"probability of {name}"] = values
    sink = pa.BufferOutputStream()
    write_csv(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()
