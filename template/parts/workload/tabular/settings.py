"""The settings of your model and your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.config import BatchSize, Decay, LoaderSettings, Positive, Section, defaults

WORKLOAD = "tabular"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it is here."""


class Data(LoaderSettings):
    """Where the rows lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 32
    order: Literal["auto", "full", "block", "time"] = "auto"


class Model(Section):
    """A multi-layer perceptron with residual blocks."""

    width: Positive = 64
    depth: Positive = 3
    dropout: Decay = 0.1
    category_width: Positive = 8


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
