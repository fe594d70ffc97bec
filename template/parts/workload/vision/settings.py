"""The settings that you own, such as those of data and model, and the list of all sections.

The text below a setting is its description in `config.yaml` and in `train --help`; `OptimizerName`
brings its own. The settings of the engine, and those that extras add, are in `engine/settings.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

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

WORKLOAD = "vision"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(EngineData):
    """Where the dataset is, the order of its images, and how they reach the device."""

    batch_size: Positive = 256
    """Images per micro-batch. Batch norm sees one micro-batch, so small ones train worse. Adjust
    the learning rate when you change this."""

    order: Literal[
        "auto",
        "full",
        "block",
        "time",
    ] = "auto"
    """Order of the training images. full: shuffle all. block: shuffle within blocks, for files
    larger than memory. time: keep the stored order. auto: full for up to 33 million images,
    otherwise block."""

    image_size: Natural = 0
    """Sides of the images that the model sees, in pixels. Training crops them from the stored ones
    at random, anything else from the center. 0: the stored size."""


class Augment(Section):
    """How training images and their classes vary. Every draw follows from seed, epoch and image."""

    shift: Natural = 1
    """Largest shift, in pixels, to each side; the border is mirrored. 0 turns it off."""

    flip: bool = True
    """Mirror half of the images. Evaluation then averages over an image and its mirror image, which
    takes twice as long. false: where left and right differ, as in digits."""

    crop: UpToOne = 1.0
    """Smallest area of a random crop, as a fraction of the image; the crop is enlarged to the whole
    image. 0.35 suits photos; 1 turns it off."""

    color: BelowOne = 0.0
    """Largest relative change of brightness, contrast and saturation. 0.4 suits photos; 0 turns it
    off."""

    cutout: BelowOne = 0.0
    """Side of a square that is hidden, as a fraction of the image's side. 0 turns it off."""

    mixup: Factor = 0.0
    """Fraction of the images that are blended with another image. It helps in long trainings. 0
    turns it off."""

    cutmix: Factor = 0.0
    """Fraction of the images in which a rectangle shows another image. It helps in long trainings.
    0 turns it off."""

    label_smoothing: BelowOne = 0.1
    """Probability that the training loss moves from the true class to all classes. 0 turns it
    off."""

    @model_validator(mode="after")
    def check_mix(self) -> Self:
        """Refuse more mixed images than there are."""
        if self.mixup + self.cutmix > 1:
            raise ValueError("mixup and cutmix together are more than 1")
        return self


class Model(Section):
    """A convolutional network for small images, or one of timm's."""

    width: Positive = 24
    """Channels of the first group of convolutions; the others have twice as many. 24 suits a CPU,
    64 a GPU. No effect on a network of timm."""

    depth: Natural = 0
    """Groups of two convolutions. Each halves the sides of the image. 0: until fewer than 6 pixels
    are left. No effect on a network of timm."""

    timm: str = ""
    """Name of a network of the package timm, such as resnet50, which replaces the one in model.py.
    "" uses that one."""

    timm_weights: Place = "download"
    """Weights that a network of timm starts from. download: those of timm, from the internet. none:
    fresh weights. Or name a file of weights."""

    channels_last: bool = True
    """Keep the channels of a pixel together in memory. Convolutions are then faster, also on a
    CPU."""

    @property
    def pretrained(self) -> bool:
        """Whether training starts from trained weights."""
        return self.timm != "" and self.timm_weights != "none"


class Optimizer(Section):
    """How weights change at each step."""

    name: OptimizerName = "adamw"

    learning_rate: UpToOne | Auto = "auto"
    """Peak learning rate of the schedule. A value that is too high diverges, and one that is too
    low wastes epochs. If you double the batch, try 1.4× this value. auto: 0.012 for the network in
    model.py, 0.0005 for one of timm."""

    weight_decay: Factor = 0.05
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
        "accuracy",
        "accuracy_top5",
        "exact_match",
        "balanced_accuracy",
        "roc_auc",
        "pr_auc",
    ] = "loss"
    """Metric that decides which checkpoint is the best, and when a run stops early: loss, accuracy,
    accuracy_top5, exact_match, balanced_accuracy, roc_auc or pr_auc."""

    # A lower value of the loss is better.
    higher_is_better: ClassVar = (
        "accuracy",
        "accuracy_top5",
        "exact_match",
        "balanced_accuracy",
        "roc_auc",
        "pr_auc",
    )


class Settings(EngineSettings):
    """All settings of a run, by section. Add a line for each section that you write."""

    data: Data
    augment: Augment
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    evaluation: Evaluation

    def usual_learning_rate(self) -> float:
        """Return what `optimizer.learning_rate auto` stands for."""
        return 5e-4 if self.model.timm else 1.2e-2
