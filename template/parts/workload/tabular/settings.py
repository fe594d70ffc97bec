"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings.config import BelowOne, LoaderSettings, Positive, Section, defaults

WORKLOAD = "tabular"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

LEARNING_RATE = 1e-3
"""The default of optimizer.learning_rate, which depends on the model."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its rows, and how they reach the device."""

    order: Literal["auto", "full", "block", "time"] = "auto"


class Model(Section):
    """A multi-layer perceptron with residual blocks."""

    width: Positive = 64
    depth: Positive = 3
    dropout: BelowOne = 0.1
    category_width: Positive = 8


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
