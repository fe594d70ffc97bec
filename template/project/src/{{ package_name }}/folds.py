"""Trains and evaluates a model for each fold of the data, in subfolders of one run.

The prepared dataset has arrays and metadata of its own for each fold (`prepare/folds.py`).
"""

from __future__ import annotations

import argparse
import gc
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.csv import write_csv

from .assemble import open_store
from .engine.errors import UserError
from .engine.files import read_json, replacing, write_json, write_text
from .engine.loading.folds import fold_of
from .engine.monitoring.folds import fold_folders, fold_table, with_spread, write_reports
from .engine.runs import CONFIG, check_processes, find_run, is_run
from .engine.training.evaluation import evaluate
from .trained import collected, open_run

if TYPE_CHECKING:
    from .engine.compute.distributed import Distributed
    from .engine.training.run import Run
    from .settings import Settings


def train_folds(
    folder: Path,
    settings: Settings,
    distributed: Distributed,
    train_run: Callable[..., Run],
    fold: int | str = "all",
    **options: Any,
) -> Run:
    """Train a fold, or all that are not finished, in folders of their own; return the last run.

    options: of each fold's `Session`.
    """
    is_new = not is_run(folder)
    try:
        if "trial" in options:
            raise UserError("each fold has its own number of steps", "--minutes", "remove it")
        store = distributed.on_all_ranks(lambda: open_store(settings), main_first=True)
        numbers = [fold]
        if fold == "all":
            numbers = [*range(1, len(store.facts.get("folds", [])) + 1)] or [1]
        fold_of(store, numbers[-1])
        if distributed.is_main and (is_new or options["changes"]):
            write_text(folder / CONFIG, settings.to_yaml())

        for number in numbers:
            gc.unfreeze()  # lets go of the model of the fold before
            subfolder = folder / f"fold-{number}"
            status = read_json(subfolder / "status.json")
            is_finished = distributed.gather_objects(status.get("state"))[0] == "finished"
            if is_finished and not options["changes"] and number != numbers[-1]:
                continue
            subfolder.mkdir(exist_ok=True)
            of_fold = settings.replaced({"data.fold": number}, "--fold")
            run = train_run(subfolder, of_fold, distributed, **options)
            if not run.is_done:
                break
        if distributed.is_main:
            write_reports(folder)
            evaluation = f"`evaluate {shlex.quote(folder.name)}` measures the held-out rows"
            print(f"folds so far: {folder / 'report.md'}; {evaluation}")
    except UserError:
        if distributed.is_main and is_new and not any(folder.glob("fold-*")):
            shutil.rmtree(folder)
        raise
    return run


def evaluate_folds(arguments: argparse.Namespace, load: Callable[..., Any]) -> bool:
    """Evaluate each fold of a run on its held-out rows; return whether the run has folds.

    Print the metrics, with mean and standard deviation, and write them to `evaluation.json`. The
    predictions of all held-out rows become one file.
    """
    folder = find_run(arguments.run)
    folds = fold_folders(folder)
    if not folds:
        return False
    from .prepare.rows import prediction_columns

    check_processes("evaluate of folds")
    metrics = {}
    tables = []
    for path in folds:
        arguments.run = path
        _, project, _ = open_run(arguments, load)
        loader = project.loader("validation")
        metrics[path.name] = evaluate(project, loader, "validation")
        predicted = collected(project, loader, "target")
        columns = pa.table(prediction_columns(project.store, "validation", predicted))
        tables.append(columns.append_column("fold", [[path.name] * len(columns)]))

    metrics = with_spread(metrics)
    print("\n".join(fold_table(f"Held-out rows of {len(folds)} folds", metrics)))
    write_json(folder / "evaluation.json", {"metrics": metrics})
    output = folder / "predictions.csv"
    with replacing(output) as file:
        write_csv(pa.concat_tables(tables).sort_by("row"), file)
    print(f"predictions of the held-out rows written to {output}")
    return True
