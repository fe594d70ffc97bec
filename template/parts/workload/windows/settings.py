"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings import config
from .engine.settings.config import BelowOne, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "windows"
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
    """An LSTM, and a linear layer from its last output to all horizons."""

    width: Positive = 64
    """Hidden units of the LSTM. Memory grows linearly with the width, and time quadratically.
    Multiples of 8 suit tensor cores."""

    depth: Positive = 1
    """Layers of the LSTM."""

    dropout: BelowOne = 0.2
    """Fraction of the units that dropout removes before the last layer. Larger values help if there
    are few windows; 0 learns fastest."""


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
