"""The settings of your model and your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.config import BatchSize, Decay, LoaderSettings, Positive, Section, defaults

WORKLOAD = "windows"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it is here."""


class Data(LoaderSettings):
    """Where the windows lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 64
    order: Literal["auto", "full", "block", "time"] = "auto"


class Model(Section):
    """An LSTM, and one linear layer from its last output to all horizons."""

    width: Positive = 64
    depth: Positive = 1
    dropout: Decay = 0.2


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
