"""The settings of your model and of your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .engine.config import BatchSize, LoaderSettings, Section, defaults

WORKLOAD = "timeseries"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it stands here."""


class Data(LoaderSettings):
    """Where the series lie, in which order the windows come and how they reach the device."""

    batch_size: BatchSize = 64
    order: Literal["time", "block", "full", "lanes"] = Field(
        "full", description="order of the training windows; lanes carries the hidden state on through time"
    )


class Model(Section):
    """An LSTM for each time frame, and one linear layer from their last outputs to all horizons."""

    width: int = Field(64, ge=1, description="hidden units of each LSTM")
    depth: int = Field(1, ge=1, description="layers of each LSTM")
    dropout: float = Field(0.2, ge=0, lt=1, description="share of the units dropped before the last layer")
    subtract_last: bool = Field(True, description="forecast the change against the last known value")
    linear_path: bool = Field(True, description="add a linear map of the history, shared by all targets")


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
