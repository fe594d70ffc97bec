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
    add = parser.add_argument
    text = "new images, as for `prepare`, but without labels; or one image (default: --split)"
    add("--input", type=typed_path, metavar="PATH", help=text)
    text = "folder that the paths in a table are relative to (default: that of the table)"
    add("--root", type=typed_path, metavar="FOLDER", help=text)
    text = "leave damaged images out, and name them"
    add("--skip-damaged", action="store_true", help=text)


def main(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write a CSV file with the `file`, `prediction` and `probability` of each image.

    A split has `target`, too. If images have several labels, each label has a column with its
    probability.
    """
    import pyarrow as pa
    from pyarrow.csv import write_csv

    folder, project, step = open_run(arguments, load, needs_data=not arguments.input)
    output = output_path(arguments, folder, ".csv")
    columns = predicted(arguments, project)
    with replacing(output) as file:
        write_csv(pa.table(columns), file)
    print(f"{len(columns['file']):,} predictions of step {step} written to {output}")


def predicted(arguments: argparse.Namespace, project: Any) -> dict[str, Any]:
    """Return the columns of the file."""
    from ..prepare.labels import label_texts

    with prediction_loader(arguments, project, write_new) as loader:
        values = collected(project, loader, "target")
        store = project.store
        first, last = store.splits[arguments.split]
        names = store.arrays["name"].rows()[first:last].tolist()
    # A name that is not UTF-8 keeps the rest of its letters.
    columns: dict[str, Any] = {"file": [name.decode(errors="replace") for name in names]}
    classes = store.facts["classes"]
    for name in ("target", "prediction"):
        if name in values:
            columns[name] = label_texts(values[name], classes)
    probability = values["probability"]
    if store.facts["multilabel"]:
        for name, column in zip(classes, probability.T, strict=True):
            columns[f"probability of {name}"] = column
    else:
        columns["probability"] = probability.max(1)
    return columns


def write_new(path: Path, flags: dict[str, Any], trained: Store, folder: Path) -> None:
    """Write images as a dataset into `folder`, with the metadata of the training data."""
    import numpy as np

    from ..engine.loading.store import StoreWriter
    from ..prepare.images import DAMAGED, ImageWriter
    from ..prepare.sources import open_images

    flags = {**trained.source, **flags}
    source = open_images(path, flags, labelled=False)
    with StoreWriter(folder, trained.workload) as writer:
        images = ImageWriter(writer, source, trained.facts, flags)
        images.write({"input": np.arange(len(source))})
    for image in images.notes[DAMAGED]:
        print(f"note: left out: {image}")
