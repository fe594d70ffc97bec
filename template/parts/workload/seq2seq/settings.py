"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from .engine.settings.config import BatchSize, BelowOne, LoaderSettings, Natural, Section, defaults

WORKLOAD = "seq2seq"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

LEARNING_RATE = 1e-3
"""The default of optimizer.learning_rate for new weights, which depends on the model."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its pairs, and how they reach the device."""

    batch_size: BatchSize = 16
    order: Literal["bucket", "auto", "full", "block", "time"] = "bucket"
    sample_pairs: int = Field(2000, ge=20)


class Size(NamedTuple):
    """Layers of encoder and decoder each, heads, width, width of a head, units of hidden layers."""

    layers: int
    heads: int
    width: int
    head: int
    hidden: int


# T5's sizes (Raffel et al. 2020): 60.5, 222.9 and 737.7 million parameters.
SIZES = {
    "tiny": Size(2, 4, 128, 32, 512),
    "small": Size(6, 8, 512, 64, 2048),
    "base": Size(12, 12, 768, 64, 3072),
    "large": Size(24, 16, 1024, 64, 4096),
}


class Model(Section):
    """A T5: an encoder and a decoder with relative positions."""

    size: Literal["tiny", "small", "base", "large"] = "tiny"
    layers: Natural = 0
    heads: Natural = 0
    width: Natural = 0
    hidden: Natural = 0
    feed_forward: Literal["relu", "gated-gelu"] = "relu"
    dropout: BelowOne = 0.1
    pretrained: str = ""
    allow_pickle: bool = False

    @property
    def shape(self) -> Size:
        """The size, with `layers`, `heads`, `width` and `hidden` replaced if they are set."""
        size = SIZES[self.size]
        for name in ("layers", "heads", "width", "hidden"):
            value = getattr(self, name)
            if value:
                size = size._replace(**{name: value})
        return size


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
