"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pydantic import Field

from .engine.settings.config import (
    BatchSize,
    BelowOne,
    LoaderSettings,
    Natural,
    Positive,
    Section,
    defaults,
)

WORKLOAD = "llm"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""

LEARNING_RATE = 1e-3
"""The default of optimizer.learning_rate, which depends on the model; 6e-4 suits `small`."""


class Data(LoaderSettings):
    """Where the dataset is, how it is cut into blocks, and how they reach the device."""

    batch_size: BatchSize = 32
    order: Literal["auto", "full", "block", "time", "random_start"] = "auto"
    block_size: Positive = 128
    sample_mb: float = Field(12.0, gt=0)


class Size(NamedTuple):
    """The number of layers, the number of attention heads, and the width of a model."""

    layers: int
    heads: int
    width: int


# GPT-2's sizes: 124, 355 and 774 million parameters. Its paper called the first two 117M and 345M.
SIZES = {
    "tiny": Size(4, 4, 128),
    "small": Size(12, 12, 768),
    "medium": Size(24, 16, 1024),
    "large": Size(36, 20, 1280),
}


class Model(Section):
    """A decoder-only transformer."""

    size: Literal["tiny", "small", "medium", "large"] = "tiny"
    layers: Natural = 0
    heads: Natural = 0
    width: Natural = 0
    positions: Literal["rotary", "learned"] = "rotary"
    context: Positive = 1024
    norm: Literal["layer", "rms"] = "layer"
    bias: bool = False
    dropout: BelowOne = 0.0
    vocabulary: Natural = 0
    chunked_loss: bool = True

    @property
    def shape(self) -> Size:
        """The size, with `layers`, `heads` and `width` replaced if they are set."""
        size = SIZES[self.size]
        for name in size._fields:
            value = getattr(self, name)
            if value:
                size = size._replace(**{name: value})
        return size

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        """Yield combinations of values that do not fit together."""
        _, heads, width = self.shape
        if width % heads:
            remedy = f"choose a multiple of {heads}, or another number of heads"
            yield f"model.width {width} is not divisible by {heads} heads", _given(self), remedy
        elif self.positions == "rotary" and width // heads % 2:
            what = f"rotary positions need pairs, but a head has {width // heads} numbers"
            yield what, [*_given(self), "model.positions"], "choose an even width per head"


def _given(model: Model) -> list[str]:
    return [
        f"model.{name}" for name in ("size", "heads", "width") if name in model.model_fields_set
    ]


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
