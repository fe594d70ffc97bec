"""Shortcuts for the tests of one workload: its project, its modules, settings, stores and
batches."""

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import torch
from importing import imported
from made_up import project_of
from rendering import document
from running import Before, Result, check_run, evaluation_of, run

Batch = dict[str, torch.Tensor]


class Workload:
    """One of the choices of `workload`, or with an extra, such as `timeseries+frames`."""

    def __init__(self, name: str):
        self.name = name

    def project(self, **answers: str) -> Path:
        return project_of(self.name, **answers)

    def module(self, name: str, **answers: str) -> Any:
        return imported(self.project(**answers), name)

    def settings(self, *flags: str, **answers: str) -> Any:
        names = [flag.removeprefix("--") for flag in flags[::2]]
        # A later flag replaces an earlier one.
        overrides = dict(zip(names, flags[1::2], strict=True))
        return self.module("settings", **answers).Settings.load(overrides=overrides.items())

    def run(self, *words: str, cwd: Path, before: Before = None, **answers: str) -> Result:
        return run(self.project(**answers), *words, cwd=cwd, before=before)

    def done(self, *words: str, cwd: Path, before: Before = None, **answers: str) -> Result:
        """A command that succeeds."""
        return check_run(self.project(**answers), *words, cwd=cwd, before=before)

    def follow(self, guide: str, folder: Path) -> dict[str, Any]:
        """Run a guide's first program and its first commands; what `evaluate` left."""
        page = document(guide).read_text(encoding="utf-8")
        python, shell = re.findall(r"```(?:python|sh)\n(.*?)```", page, re.DOTALL)[:2]
        subprocess.run([sys.executable, "-c", python], cwd=folder, check=True)
        for line in shell.splitlines():
            self.done(*line.split()[3:], cwd=folder)
        return evaluation_of(folder)

    def evaluated(self, folder: Path) -> dict[str, Any]:
        self.done("evaluate", cwd=folder)
        return evaluation_of(folder)

    def predicted(self, folder: Path, *words: str) -> dict[str, Any]:
        """The arrays that `predict` writes: columns of a CSV file for tables."""
        path = folder / ("p.csv" if self.name == "tabular" else "p.npz")
        self.done("predict", *words, "--output", path.name, cwd=folder)
        if self.name == "tabular":
            columns = pyarrow.csv.read_csv(path).to_pydict()
            return {name: np.array(cells) for name, cells in columns.items()}
        with np.load(path) as file:
            return dict(file)

    def predicted_in_python(self, project: Any, table: Any, *flags: str) -> dict[str, Any]:
        """The same for a table in memory, as the page about notebooks does it."""
        predict = self.module("commands.predict")
        parser = argparse.ArgumentParser()
        predict.arguments(parser)
        with tempfile.TemporaryDirectory() as folder:
            pyarrow.parquet.write_table(pyarrow.table(table), f"{folder}/new.parquet")
            arguments = parser.parse_args(["--input", f"{folder}/new.parquet", *flags])
            return predict.predicted(arguments, dataclasses.replace(project))

    def store(self, folder: Path) -> Any:
        return self.module("engine.loading.store").Store.open(folder)

    def samples(self, store: Any, split: str, *flags: str) -> Any:
        return self.module("dataset").Samples(store, self.settings(*flags), split)

    def loader(
        self,
        store: Any,
        split: str,
        *flags: str,
        train: bool = False,
        loader: str = "memmap",
    ) -> Any:
        settings = self.settings(*flags, loader=loader)
        samples = self.samples(store, split, *flags)
        samples.training = train
        make_order = self.module("engine.training.project", loader=loader).make_order
        order = make_order(samples, settings, train=train)
        make = self.module("engine.loading.loader", loader=loader).Loader
        return make(samples, store, settings, order, torch.device("cpu"))

    def batches(self, store: Any, split: str, *flags: str, **options: Any) -> list[Batch]:
        """Those of the first epoch. options: as of `loader`."""
        loader = self.loader(store, split, *flags, **options)
        batches = []
        for batch in loader.epoch(0):
            batches.append({name: value.clone() for name, value in batch.items()})
        loader.close()
        return batches
