"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from .engine.errors import UserError
from .engine.settings import config
from .engine.settings.config import Auto, BelowOne, Natural, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "llm"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(LoaderSettings):
    """Where the dataset is, how it is cut into blocks, and how they reach the device."""

    batch_size: Positive = 32
    """Blocks per micro-batch. Larger batches use the GPU better and need more memory. Adjust the
    learning rate when you change this."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
        "random_start",
    ] = "auto"
    """Order of the training blocks. full: shuffle all. random_start: also cut the text into other
    blocks in each epoch. block: shuffle within `shuffle_block` blocks, for files larger than
    memory. time: keep the stored order. auto: full for up to 33 million blocks, otherwise block."""

    block_size: Positive = 128
    """Tokens that the model sees at once. The time of attention grows with its square. A change
    needs no new `prepare`."""

    sample_mb: float = Field(12.0, gt=0)
    """MB of the Python standard library's source text to train on if nothing was prepared."""


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

    size: Literal[
        "tiny",
        "small",
        "medium",
        "large",
    ] = "tiny"
    """tiny: 0.8M parameters, for a CPU. small 124M, medium 355M and large 774M are GPT-2's sizes;
    its paper calls the first two 117M and 345M."""

    layers: Natural = 0
    """Transformer blocks. 0 uses the number of `size`."""

    heads: Natural = 0
    """Attention heads of a block. They divide the width evenly, and 64 numbers per head suit tensor
    cores. 0 uses the number of `size`."""

    width: Natural = 0
    """Numbers that represent a token. Parameters and time grow with the square of the width. 0 uses
    the width of `size`."""

    positions: Literal["rotary", "learned"] = "rotary"
    """rotary: angles, for texts of any length. learned: GPT-2's table of positions, for up to
    `context` tokens."""

    context: Positive = 1024
    """Rows of the table of positions: the largest `block_size` that the model can ever have. No
    effect on rotary."""

    norm: Literal["layer", "rms"] = "layer"
    """layer: LayerNorm. rms: RMSNorm, which does not subtract the mean."""

    bias: bool = False
    """Biases in linear layers and norms, as in GPT-2. Without them the model is a little faster and
    no worse."""

    dropout: BelowOne = 0.0
    """Fraction of the activations that dropout removes. 0 is best while no text repeats, 0.1 to 0.2
    for many epochs."""

    vocabulary: Natural = 0
    """Tokens that the model distinguishes, rounded up to a multiple of 64. 0 uses the number in the
    data."""

    chunked_loss: bool | Auto = "auto"
    """Compute the logits of a large vocabulary in chunks, which saves gigabytes of memory. auto:
    unless the head is compiled; the compiler saves most of that memory in less time."""

    @property
    def shape(self) -> Size:
        """The size, with `layers`, `heads` and `width` replaced if they are set.

        Raises `UserError` if the heads do not divide the width.
        """
        size = SIZES[self.size]
        for name in size._fields:
            value = getattr(self, name)
            if value:
                size = size._replace(**{name: value})
        of_head, remainder = divmod(size.width, size.heads)
        where = "model.heads, model.width"
        if remainder:
            what = f"a width of {size.width} is not divisible by {size.heads} heads"
            raise UserError(what, where, f"choose a multiple of {size.heads} as width")
        if self.positions == "rotary" and of_head % 2:
            what = f"rotary positions need pairs, but a head has {of_head} numbers"
            raise UserError(what, where, "choose an even width per head")
        return size


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
