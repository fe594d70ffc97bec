"""The settings that you own, such as those of data and model, and the list of all sections.

The text below a setting is its description in `config.yaml` and in `train --help`; `OptimizerName`
brings its own. The settings of the engine, and those that extras add, are in `engine/settings.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

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

WORKLOAD = "tabular"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(EngineData):
    """Where the dataset is, the order of its rows, and how they reach the device."""

    batch_size: Positive = 32
    """Rows per micro-batch. 32 suits thousands of rows. For millions of rows, use 1024 and a higher
    learning rate, which also use a GPU better."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
    ] = "auto"
    """Order of the training rows. full: shuffle all. block: shuffle within blocks, for files larger
    than memory. time: keep the stored order. auto: full for up to 33 million rows, otherwise
    block."""

    balance: Literal[
        "none",
        "weights",
        "sampling",
    ] = "none"
    """How rare classes count in training. weights: each row by the inverse frequency of its class.
    sampling: draw each class equally often, rare rows several times an epoch. Both make predicted
    probabilities higher for rare classes than their frequency."""


class Model(Section):
    """A multi-layer perceptron with residual blocks."""

    width: Positive = 64
    """Units of a hidden layer. Time and memory grow with the square of the width. Multiples of 8
    suit tensor cores."""

    depth: Positive = 3
    """Hidden layers. All but the first are residual blocks, so that deep networks train as well."""

    dropout: BelowOne = 0.1
    """Fraction of a block's units that dropout removes. Larger values help on small tables; 0
    learns fastest."""

    category_width: Positive = 8
    """Numbers that represent one category. Larger values distinguish categories better and overfit
    rare ones."""


class Optimizer(Section):
    """How weights change at each step."""

    name: OptimizerName = "adamw"

    learning_rate: UpToOne = 1e-3
    """Peak learning rate of the schedule. A value that is too high diverges, and one that is too
    low wastes epochs. If you double the batch, try 1.4× this value."""

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
        "log_loss",
        "mse",
        "mae",
        "mse_original",
        "mae_original",
        "accuracy",
        "balanced_accuracy",
        "roc_auc",
        "pr_auc",
        "r2",
    ] = "loss"
    """Metric that decides which checkpoint is the best, and when a run stops early: loss, log_loss,
    mse, mae, mse_original, mae_original, accuracy, balanced_accuracy, roc_auc, pr_auc or r2."""

    # A lower value of the others is better.
    higher_is_better: ClassVar = ("accuracy", "balanced_accuracy", "roc_auc", "pr_auc", "r2")


class Settings(EngineSettings):
    """All settings of a run, by section. Add a line for each section that you write."""

    data: Data
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation
