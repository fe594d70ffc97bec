"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings import config
from .engine.settings.config import BelowOne, Natural, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "graph"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its days, and how they reach the device."""

    batch_size: Positive = 8
    """Days per micro-batch, each with all of its stocks: 8 days of 30 stocks are 240 windows."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
    ] = "auto"
    """Order of the training days. full: shuffle all. block: shuffle within blocks, for files larger
    than memory. time: keep the stored order. auto: full for up to 33 million days, otherwise
    block."""


class Model(Section):
    """Temporal fusion for each stock, then graph attention over the stocks of a day."""

    width: Positive = 32
    """Units that represent a stock, a multiple of `heads`. Time grows with the square of the width.
    Multiples of 8 suit tensor cores."""

    heads: Positive = 4
    """Heads of the attention over days and of the attention over stocks."""

    temporal_layers: Positive = 2
    """Layers over the days of the window. Time and memory grow linearly with their number."""

    graph_layers: Natural = 1
    """Layers over the graph. Each layer adds the neighbours of neighbours. 0 sees each stock
    alone."""

    frequencies: Natural = 3
    """Strongest frequencies of each window that the model sees separately from the remainder. 0
    uses the window as it is."""

    dropout: BelowOne = 0.1
    """Fraction of the units that dropout removes. Markets are mostly noise, so larger values help
    on few years; 0 learns fastest."""


class GraphBuilder(Section):
    """Whether training builds its own graphs."""

    use_in_training: bool = False
    """false: read the graphs that `prepare` built. true: build the same graphs again for each
    batch, to see the cost."""


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
    graph_builder: GraphBuilder
