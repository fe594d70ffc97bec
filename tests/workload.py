"""Shortcuts for the tests of one workload: its project, its modules, settings, stores and
batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from importing import imported
from rendering import render
from running import Result, run

Batch = dict[str, torch.Tensor]


class Workload:
    def __init__(self, name: str):
        self.name = name

    def project(self, **answers: str) -> Path:
        return render(workload=self.name, **answers)

    def module(self, name: str, **answers: str) -> Any:
        return imported(self.project(**answers), name)

    def settings(self, *flags: str) -> Any:
        names = [flag.removeprefix("--") for flag in flags[::2]]
        return self.module("config").load(overrides=zip(names, flags[1::2], strict=True))

    def run(self, *words: str, cwd: Path, before: Callable[[], Any] | None = None) -> Result:
        return run(self.project(), *words, cwd=cwd, before=before)

    def done(self, *words: str, cwd: Path, before: Callable[[], Any] | None = None) -> Result:
        """A command that succeeds."""
        result = self.run(*words, cwd=cwd, before=before)
        assert result.code == 0, (words, result.err[-2000:])
        return result

    def store(self, folder: Path) -> Any:
        return self.module("engine.store").Store.open(folder)

    def samples(self, store: Any, split: str, *flags: str) -> Any:
        return self.module("dataset").Samples(store, self.settings(*flags), split)

    def loader(
        self,
        store: Any,
        split: str,
        *flags: str,
        train: bool = False,
        loader: str = "memmap",
        ranks: tuple[int, int] = (0, 1),
    ) -> Any:
        """ranks: this one, of how many."""
        settings = self.settings(*flags)
        samples = self.samples(store, split, *flags)
        samples.training = train
        order = self.module("engine.order", loader=loader).make_order(
            samples, settings, *ranks, train=train
        )
        make = self.module("engine.loader", loader=loader).Loader
        return make(samples, store, settings, order, torch.device("cpu"))

    def batches(self, store: Any, split: str, *flags: str, **options: Any) -> list[Batch]:
        """Those of the first epoch. options: as of `loader`."""
        loader = self.loader(store, split, *flags, **options)
        batches = []
        for batch in loader.epoch(0):
            batches.append({name: value.clone() for name, value in batch.items()})
        loader.close()
        return batches
