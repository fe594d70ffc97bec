"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings import config
from .engine.settings.config import BelowOne, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "timeseries"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its windows, and how they reach the device."""

    batch_size: Positive = 64
    """Windows per micro-batch. Larger batches use the GPU better and need more memory. Adjust the
    learning rate when you change this."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
    ] = "auto"
    """Order of the training windows. full: shuffle all. block: shuffle within blocks, for files
    larger than memory. time: keep the stored order. auto: full for up to 33 million windows,
    otherwise block."""


class Model(Section):
    """One LSTM per time frame, and a linear layer from their last outputs to all horizons."""

    width: Positive = 64
    """Hidden units of each LSTM. Memory grows linearly with the width, and time quadratically.
    Multiples of 8 suit tensor cores."""

    depth: Positive = 1
    """Layers of each LSTM. One layer is enough for most series."""

    dropout: BelowOne = 0.2
    """Fraction of the units that dropout removes before the last layer. Larger values help on short
    series; 0 learns fastest."""

    subtract_last: bool = True
    """Forecast the change from the last known value. This suits series whose level drifts."""

    linear_path: bool = True
    """Add a linear map of the history to the LSTM's forecast. On periodic series this map alone is
    hard to beat."""


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
