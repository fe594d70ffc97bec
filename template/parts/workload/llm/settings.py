"""The settings that you own, such as those of data and model, and the list of all sections.

The text below a setting is its description in `config.yaml` and in `train --help`; `OptimizerName`
brings its own. The settings of the engine, and those that extras add, are in `engine/settings.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from .engine.errors import UserError
from .engine.settings import (
    Auto,
    BelowOne,
    EngineData,
    EngineEvaluation,
    EngineSettings,
    Factor,
    Natural,
    OptimizerName,
    Positive,
    Section,
    UpToOne,
)

WORKLOAD = "llm"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(EngineData):
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


class Optimizer(Section):
    """How weights change at each step."""

    name: OptimizerName = "adamw"

    learning_rate: UpToOne | Auto = "auto"
    """Peak learning rate of the schedule. 1e-3 suits tiny, 6e-4 small, 3e-4 medium, 2.5e-4 large.
    auto: 1e-3 for fresh weights, 2e-5 for other weights that a run starts from, 2e-4 for LoRA."""

    weight_decay: Factor = 0.01
    """Pulls weight matrices towards zero at each step. Biases and norms are excluded. 0 turns it
    off."""

    beta1: BelowOne = 0.9
    """Decay of the running mean of gradients. 0.9 averages over about 10 steps. No effect on
    adafactor."""

    beta2: BelowOne = 0.999
    """Decay of the running mean of squared gradients. 0.999 averages over about 1,000 steps; 0.95
    reacts faster. No effect on adafactor."""

    epsilon: UpToOne = 1e-8
    """Added to the denominator of the update. Larger values damp updates of weights with tiny
    gradients. No effect on adafactor."""

    fused: bool = True
    """Update all weights in one kernel instead of several kernels per weight. The mathematics is
    the same, but the rounding differs. No effect on adafactor."""


class Schedule(Section):
    """How the learning rate moves over the run."""

    name: Literal[
        "cosine",
        "onecycle",
        "linear",
        "wsd",
        "constant",
    ] = "cosine"
    """Shape after the warm-up: cosine, linear or constant. onecycle: rise to the peak, then fall to
    almost 0. wsd: stay at the peak, then decay. A resume can make runs with wsd and constant
    longer."""

    warmup_steps: Natural | Auto = "auto"
    """Optimizer steps from 0 to the peak learning rate. More steps are safer for high rates. auto:
    100 steps, or a tenth of the run if that is shorter; 30 % of the run for onecycle."""

    decay_steps: Natural | Auto = "auto"
    """Optimizer steps of the decay at the end of a run with wsd. auto: a fifth of the run; 10 to
    20 % reach the loss of cosine (arXiv 2405.18392). No effect with other schedules."""

    final_factor: Factor = 0.1
    """Final learning rate as a fraction of the peak. No effect with constant and onecycle."""


class Evaluation(EngineEvaluation):
    """When the validation samples are measured, and which metric decides."""

    # Add metrics that your model returns, or `finish` in dataset.py.
    metric: Literal[
        "loss",
        "bits_per_byte",
        "perplexity",
    ] = "loss"
    """Metric that decides which checkpoint is the best, and when a run stops early: loss,
    bits_per_byte or perplexity."""

    higher_is_better: ClassVar = ()  # a lower value of each metric is better


class Settings(EngineSettings):
    """All settings of a run, by section. Add a line for each section that you write."""

    data: Data
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation
