"""Predict with a trained run: for a split of the prepared dataset, or for new images."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import replacing
from ..engine.runs import typed_path
from ..trained import add_flags, collected, open_run, output_path, prediction_loader

if TYPE_CHECKING:
    from ..engine.loading.store import Store


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `predict`."""
    add_flags(parser, output=".csv (default: predictions.csv in the run's folder)")
    text = "folder of new images, with or without folders in it (default: --split)"
    parser.add_argument("--input", type=typed_path, metavar="FOLDER", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a CSV file with the prediction for each image, and the probability of each class.

    `image` is the path in the folder, or the number of the image in its split.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow.csv import write_csv

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".csv")
    with prediction_loader(arguments, project, write_new) as loader:
        predicted = collected(project, loader, "target")
        names = project.store.source.get("names")

    classes = np.array(project.store.facts["classes"])
    columns = {"image": names or predicted["index"]}
    for name in ("target", "prediction"):
        if name in predicted and predicted[name].ndim > 1:
            columns[name] = ["|".join(classes[row.astype(bool)]) for row in predicted[name]]
        elif name in predicted:
            columns[name] = classes[predicted[name]]
    for name, column in zip(classes, predicted["probability"].T, strict=True):
        columns[f"probability of {name}"] = column
    with replacing(output) as file:
        write_csv(pa.table(columns), file)
    print(f"{len(predicted['index']):,} predictions of step {step} written to {output}")


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write images as a dataset into `folder`, with the metadata of the training data."""
    import numpy as np

    from ..engine.loading.store import StoreWriter
    from ..prepare.images import from_folder, write

    source = from_folder(path)
    source.labels = []
    with StoreWriter(folder, trained.workload) as writer:
        write(writer, source, {"input": np.arange(len(source))}, trained.facts)
        writer.source = {"names": list(source.names)}
