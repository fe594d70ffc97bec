"""The settings of your model and your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.config import BatchSize, Decay, LoaderSettings, Natural, Positive, Section, defaults

WORKLOAD = "timeseries"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it is here."""


class Data(LoaderSettings):
    """Where the series lie, in which order the windows come and how they reach the device."""

    batch_size: BatchSize = 64
    order: Literal["auto", "full", "block", "time", "lanes"] = "auto"
    stride: Natural = 0


class Model(Section):
    """An LSTM for each time frame, and one linear layer from their last outputs to all horizons."""

    width: Positive = 64
    depth: Positive = 1
    dropout: Decay = 0.2
    subtract_last: bool = True
    linear_path: bool = True


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
