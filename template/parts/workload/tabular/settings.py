"""The settings of your model and your data. Change them together with model.py and dataset.py."""

from __future__ import annotations

from typing import Literal

from .engine.settings import config
from .engine.settings.config import BelowOne, Positive, Section
from .engine.settings.loader import LoaderSettings

WORKLOAD = "tabular"
"""Stored in each prepared dataset; a project with another workload rejects the dataset."""


class Data(LoaderSettings):
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


class Sections(config.Settings):
    """The sections of config.yaml that belong to this workload."""

    data: Data
    model: Model
