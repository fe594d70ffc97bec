"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from .engine.settings import config
from .engine.settings.config import BelowOne, Natural, Place, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "seq2seq"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(LoaderSettings):
    """Where the dataset is, the order of its pairs, and how they reach the device."""

    batch_size: Positive = 16
    """Pairs per micro-batch. Larger batches use the GPU better and need more memory. Adjust the
    learning rate when you change this."""

    order: Literal[
        "bucket",
        "auto",
        "full",
        "block",
        "time",
    ] = "bucket"
    """Order of the training pairs. bucket: put pairs of similar length into a batch, so that there
    is little padding. full: shuffle all. block: shuffle within `shuffle_block` pairs, for files
    larger than memory. time: keep the stored order. auto: full for up to 33 million pairs,
    otherwise block."""

    sample_pairs: int = Field(2000, ge=20)
    """Docstrings of the Python standard library to train on if nothing was prepared."""


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

    size: Literal[
        "tiny",
        "small",
        "base",
        "large",
    ] = "tiny"
    """tiny: 1.0M parameters, for a CPU. small 60M, base 223M and large 738M are T5's sizes."""

    layers: Natural = 0
    """Layers of the encoder, and also of the decoder. 0 uses the number of `size`."""

    heads: Natural = 0
    """Attention heads of a layer. 0 uses the number of `size`."""

    width: Natural = 0
    """Numbers that represent a token. Parameters and time grow with the square of the width. 0 uses
    the width of `size`."""

    hidden: Natural = 0
    """Units of each hidden layer. 0 uses the number of `size`."""

    feed_forward: Literal["relu", "gated-gelu"] = "relu"
    """relu: T5's hidden layers. gated-gelu: those of T5 v1.1, which are a little better and take a
    little more time."""

    dropout: BelowOne = 0.1
    """Fraction of the activations that dropout removes."""

    pretrained: Place = ""
    """Folder or hub name of a T5 to start from, with its own sizes. Prepare the data with its
    tokenizer: `prepare --tokenizer pretrained`. "" starts from fresh weights."""

    @property
    def shape(self) -> Size:
        """The size, with `layers`, `heads`, `width` and `hidden` replaced if they are set."""
        size = SIZES[self.size]
        for name in ("layers", "heads", "width", "hidden"):
            value = getattr(self, name)
            if value:
                size = size._replace(**{name: value})
        return size


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
