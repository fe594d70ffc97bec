"""The settings that you own, such as those of data and model, and the list of all sections.

The text below a setting is its description in `config.yaml` and in `train --help`; `OptimizerName`
brings its own. The settings of the engine, and those that extras add, are in `engine/settings.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from .engine.settings import (
    Auto,
    BelowOne,
    EngineData,
    EngineEvaluation,
    EngineSettings,
    Factor,
    Natural,
    OptimizerName,
    Place,
    Positive,
    Section,
    UpToOne,
)

WORKLOAD = "seq2seq"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(EngineData):
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


class Optimizer(Section):
    """How weights change at each step."""

    name: OptimizerName = "adamw"

    learning_rate: UpToOne | Auto = "auto"
    """Peak learning rate of the schedule. auto: 1e-3 for fresh weights, 2e-5 for pretrained ones,
    2e-4 for LoRA. T5 often learns faster with more: 1e-4 to 3e-4 for all of its pretrained
    weights."""

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
        "loss_per_byte",
        "token_accuracy",
        "exact_match",
    ] = "loss"
    """Metric that decides which checkpoint is the best, and when a run stops early: loss,
    loss_per_byte, token_accuracy or exact_match."""

    higher_is_better: ClassVar = ("token_accuracy", "exact_match")  # a lower value of the others


class Settings(EngineSettings):
    """All settings of a run, by section. Add a line for each section that you write."""

    data: Data
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation
