"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .engine.settings.config import (
    BatchSize,
    BelowOne,
    LoaderSettings,
    Natural,
    Positive,
    Section,
    defaults,
)

WORKLOAD = "graph"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

LEARNING_RATE = 1e-3
"""The default of optimizer.learning_rate, which depends on the model."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its days, and how they reach the device."""

    batch_size: BatchSize = 8
    order: Literal["auto", "full", "block", "time"] = "auto"


class Model(Section):
    """Temporal fusion for each stock, then graph attention over the stocks of a day."""

    width: Positive = 32
    heads: Positive = 4
    temporal_layers: Positive = 2
    graph_layers: Natural = 1
    frequencies: Natural = 3
    dropout: BelowOne = 0.1

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        if self.width % self.heads:
            what = f"a width of {self.width} is not divisible by {self.heads} heads"
            yield what, ["model.width", "model.heads"], "make model.width a multiple of model.heads"


class GraphBuilder(Section):
    """Whether training builds its own graphs."""

    use_in_training: bool = False


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
    graph_builder: GraphBuilder = defaults(GraphBuilder)
