"""Predictions for a table in Python, such as in a notebook, with the project of `load_run`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import write_table

from .commands import predict as command

if TYPE_CHECKING:
    from .engine.training.project import Project


def predict(project: Project, table: Any, *flags: str) -> dict[str, np.ndarray]:
    """Return the arrays that the command `predict` writes for new data, by name.

    table: a DataFrame, or else columns by name. flags: further ones of the command, such as
    "--missing", "-999".
    """
    parser = argparse.ArgumentParser("predict")
    command.arguments(parser)
    with TemporaryDirectory() as folder:
        path = f"{folder}/table.parquet"
        write_table(pa.table(table), path)
        arguments = parser.parse_args(["--input", path, *flags])
        predicted = command.predicted(arguments, replace(project))
    return {name: np.asarray(values) for name, values in predicted.items()}
