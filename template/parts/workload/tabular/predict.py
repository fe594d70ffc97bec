"""Predict with a trained run: for a split of the prepared dataset, or for the rows of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import replacing
from ..prepare.splits import add_input
from ..trained import add_flags, collected, open_run, output_path, prediction_loader

if TYPE_CHECKING:
    import numpy as np

    from ..engine.loading.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    add_flags(parser, output=".csv (default: predictions.csv in the run's folder)")
    title = "new rows, with or without the target"
    add_input(parser, title, required=False)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a CSV file with the `prediction` for each row of the split or the input.

    `row` is the number of the row in its file, from 1; of several files, in all of them together.
    A split has `target`, too. Classes are names, and each has a column with its probability.
    """
    import pyarrow as pa
    from pyarrow.csv import write_csv

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".csv")
    columns = predicted(arguments, project)
    with replacing(output) as file:
        write_csv(pa.table(columns), file)
    print(f"{len(columns['row']):,} predictions of step {step} written to {output}")


def predicted(arguments: argparse.Namespace, project: Any) -> dict[str, np.ndarray]:
    """Return the columns of the file."""
    from ..prepare.rows import prediction_columns

    with prediction_loader(arguments, project, write_new) as loader:
        values = collected(project, loader, "target")
        return prediction_columns(project.store, arguments.split, values)


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write a table as a dataset into `folder`, with the metadata of the training data."""
    import numpy as np

    from ..engine.loading.store import StoreWriter
    from ..prepare.columns import read_table
    from ..prepare.dates import PARTS
    from ..prepare.partition import take_keys
    from ..prepare.rows import write
    from ..prepare.tables import Source

    facts = trained.facts
    keys = {"id": facts.get("id", "")}
    dates = dict(trained.source.get("dates", {}))
    was = trained.source.get("time_format")
    for name, date_format in dates.items():
        if was in (None, date_format):  # others were detected next to the given format
            dates[name] = flags.get("time_format") or date_format
    numbers = facts["features"][len(PARTS) * len(dates) :]
    kinds = dict.fromkeys(filter(None, keys.values()), "category") | dates
    kinds |= {column["name"]: "number" for column in numbers}
    kinds |= {column["name"]: "category" for column in facts["categories"]}
    with StoreWriter(folder, trained.workload) as writer:
        source = Source(path, flags | keys, trained.source)
        table = read_table(writer, [source], kinds=kinds, known=facts["categories"])
        table, _ = take_keys(table, keys)
        write(writer, table, facts, np.arange(len(table)))
        writer.facts = facts
        writer.splits = {"input": [0, len(table)]}
