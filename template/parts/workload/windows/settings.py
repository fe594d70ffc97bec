"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings.config import BatchSize, BelowOne, LoaderSettings, Positive, Section, defaults

WORKLOAD = "windows"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

LEARNING_RATE = 1e-3
"""The default of optimizer.learning_rate, which depends on the model."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its windows, and how they reach the device."""

    batch_size: BatchSize = 64
    order: Literal["auto", "full", "block", "time"] = "auto"


class Model(Section):
    """An LSTM, and a linear layer from its last output to all horizons."""

    width: Positive = 64
    depth: Positive = 1
    dropout: BelowOne = 0.2


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
