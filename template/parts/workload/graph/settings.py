"""The settings of your model and of your data; change them with model.py and dataset.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from .engine.config import BatchSize, LoaderSettings, Section, defaults

WORKLOAD = "graph"
"""What the data in a store are for; another project refuses them."""

LEARNING_RATE = 1e-3
"""Default of optimizer.learning_rate; it belongs to the model, so it stands here."""


class Data(LoaderSettings):
    """Where the days lie, in which order they come and how they reach the device."""

    batch_size: BatchSize = 8
    order: Literal["auto", "full", "block", "time"] = Field(
        "auto", description="order of the training days; evaluation always runs in time order"
    )


class Model(Section):
    """Temporal fusion for each stock, then graph attention over the stocks of a day."""

    width: int = Field(32, ge=1, description="units that stand for a stock; a multiple of heads")
    heads: int = Field(4, ge=1, description="heads of both attentions")
    temporal_layers: int = Field(2, ge=1, description="layers over the days of the window")
    graph_layers: int = Field(
        1, ge=0, description="graph attention layers; 0 sees each stock alone"
    )
    frequencies: int = Field(3, ge=0, description="frequencies told apart from the rest; 0 is off")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of units dropped in training")

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        if self.width % self.heads:
            what = f"a width of {self.width} cannot be shared by {self.heads} heads"
            yield what, ["model.width", "model.heads"], "make model.width a multiple of model.heads"


class GraphBuilder(Section):
    """Where graphs come from."""

    use_in_training: bool = Field(
        False,
        description="rebuild the same graphs for each batch instead of reading those of `prepare`",
    )


class Sections(Section):
    """The sections of config.yaml that belong to this workload."""

    data: Data = defaults(Data)
    model: Model = defaults(Model)
    graph_builder: GraphBuilder = defaults(GraphBuilder)
