"""The settings of your model and of your data; change them with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from .engine.config import BatchSize, LoaderSettings, Section, defaults

WORKLOAD = "seq2seq"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate for fresh weights; it belongs to the model."""


class Data(LoaderSettings):
    """Where the pairs lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 16
    order: Literal["bucket", "full", "block", "time"] = Field(
        "bucket",
        description="order of the training pairs; bucket puts pairs of like length into a batch",
    )
    sample_pairs: int = Field(
        2000,
        ge=20,
        description="docstrings of Python itself to train on where nothing was prepared",
    )


class Size(NamedTuple):
    """Layers of encoder and decoder, heads, width, numbers of a head, units of a hidden layer."""

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
    """A T5: encoder, decoder, relative positions."""

    size: Literal["tiny", "small", "base", "large"] = Field(
        "tiny", description="tiny for a CPU; T5's small 60M, base 223M, large 738M"
    )
    layers: int = Field(0, ge=0, description="of the encoder and of the decoder; 0 is the size's")
    heads: int = Field(0, ge=0, description="attention heads of a layer; 0 is the size's")
    width: int = Field(0, ge=0, description="numbers that stand for a token; 0 is the size's")
    hidden: int = Field(0, ge=0, description="units of a hidden layer; 0 is the size's")
    feed_forward: Literal["relu", "gated-gelu"] = Field(
        "relu", description="hidden layers of T5, or those of T5 v1.1"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="share of activations dropped in training")
    pretrained: str = Field(
        "",
        description="folder or hub name of a T5 to start from, with its own sizes;"
        " empty is fresh weights",
    )
    allow_pickle: bool = Field(
        False,
        description="also load pretrained weights from a pickle, which can run code of its author",
    )

    @property
    def shape(self) -> Size:
        """The size with what `layers`, `heads`, `width` and `hidden` replace."""
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
