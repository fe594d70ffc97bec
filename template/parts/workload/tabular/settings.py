"""The settings of your model and your data; change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .engine.config import BatchSize, LoaderSettings, Section, defaults

WORKLOAD = "tabular"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it is here."""


class Data(LoaderSettings):
    """Where the rows lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 32
    order: Literal["auto", "full", "block", "time"] = Field(
        "auto", description="order of the training samples; evaluation always runs in time order"
    )


class Model(Section):
    """A multi-layer perceptron with residual blocks."""

    width: int = Field(64, ge=1, description="units in a hidden layer")
    depth: int = Field(3, ge=1, description="hidden layers; all but the first are residual blocks")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="share of a block's units dropped in training"
    )
    category_width: int = Field(8, ge=1, description="numbers that stand for one category")


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)


OLDER = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
ALIASES = {f"train.batch.{name}": f"data.{name}" for name in OLDER}
"""Another spelling, of older projects, accepted in files and as flags → the setting.

Yours to delete.
"""
