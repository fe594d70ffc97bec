"""Temporal fusion for each stock, and graph attention between stocks.

Replace it with your own: the engine calls only `build_model`. `layers.py` has the layers.

Shapes: `B` days in a batch, `K` seats for stocks, `T` days of the window, `F` features, `P`
horizons. `N` is all seats of a batch, `W` are the units of the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .engine.errors import UserError
from .engine.interfaces import Batch, Output
from .layers import GatedResidual, GraphAttention, TemporalBlock, disjoint_graph, split_frequencies
from .settings import Settings


class Forecaster(nn.Module):
    """Predicts every horizon of each stock, from its window and its neighbours.

    The scaler is part of the model, since batches contain original units. No stock has weights of
    its own, so the order of stocks has no effect, and a new listing needs no training.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        width = sizes.width
        features = facts["features"]
        targets = facts["target"]["horizons"]
        self.is_return = facts["target"]["kind"] == "return"
        self._register_scale("", features)
        self._register_scale("target_", targets)

        self.frequencies = sizes.frequencies
        inputs = 2 * len(features) if sizes.frequencies else len(features)
        self.first = nn.Linear(inputs, width)
        self.place = nn.Parameter(0.02 * torch.randn(facts["window"], width))
        self.temporal = nn.ModuleList()
        for _ in range(sizes.temporal_layers):
            self.temporal.append(TemporalBlock(width, sizes.heads, sizes.dropout))
        self.graph = nn.ModuleList()
        for _ in range(sizes.graph_layers):
            self.graph.append(GraphAttention(width, width // sizes.heads, sizes.heads))
        self.joined = nn.ModuleList()
        for _ in range(sizes.graph_layers):
            self.joined.append(GatedResidual(width, sizes.dropout))
        self.head = nn.Linear(width + len(features), len(targets))

    def _register_scale(self, prefix: str, columns: list[dict[str, Any]]) -> None:
        for name in ("mean", "std"):
            values = [column[name] for column in columns]
            self.register_buffer(prefix + name, torch.tensor(values))

    def blocks(self) -> list[nn.Module]:
        """The temporal layers, which are compiled, checkpointed and sharded one by one."""
        return list(self.temporal)

    def outputs(self, batch: Batch) -> Tensor:
        """Return outputs (B, K, P), in float32 even under autocast; ignore those of empty seats."""
        features = batch["features"]  # (B, K, T, F)
        days, seats = features.shape[:2]
        x = (features - self.mean) / self.std
        x = x.clamp(-10, 10).nan_to_num()  # an empty cell of an own column is the mean
        x = x.flatten(0, 1)  # (N, T, F)
        last_day = x[:, -1]

        # Encode the window of each stock.
        if self.frequencies:
            x = split_frequencies(x, self.frequencies)  # (N, T, 2F)
        x = self.first(x) + self.place
        for block in self.temporal:
            x = block(x)
        x = x[:, -1]  # (N, W): attention has seen the whole window

        # Add information from its neighbours.
        edges, present = disjoint_graph(batch["neighbors"])
        for attend, join in zip(self.graph, self.joined, strict=True):
            change = nn.functional.elu(attend(x, edges, present))
            x = join(x, change)
        x = torch.cat([x, last_day], 1)
        outputs = self.head(x).float()
        return outputs.view(days, seats, -1)

    def forward(self, batch: Batch) -> Output:
        prediction = self.outputs(batch)
        target = (batch["target"] - self.target_mean) / self.target_std  # (B, K, P), NaN: unknown
        known = batch["listed"].unsqueeze(2) & target.isfinite()
        total_weight = known.sum(dtype=torch.float32)
        error = torch.where(known, prediction - target, 0.0)
        squares = error.square()
        loss = squares.sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)

        absolute = error.abs()
        sums = {
            "mse": squares,
            "mae": absolute,
            "mse_original": squares * self.target_std**2,
            "mae_original": absolute * self.target_std,
        }
        metrics = {name: (value.sum(), total_weight) for name, value in sums.items()}
        if self.is_return:
            moved = known & (batch["target"] != 0)
            forecast = prediction * self.target_std + self.target_mean
            is_right = (forecast > 0) == (batch["target"] > 0)
            hits = is_right & moved
            metrics["direction_accuracy"] = (hits.sum(), moved.sum())
        return Output(loss, total_weight, metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `prediction` (B, K, P) in the target's own units, NaN for empty seats."""
        prediction = self.outputs(batch) * self.target_std + self.target_mean
        listed = batch["listed"].unsqueeze(2)
        return {"prediction": prediction.where(listed, torch.nan)}


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the network for the dataset's metadata: features, window, horizons and scaler."""
    width = settings.model.width
    heads = settings.model.heads
    if width % heads:
        what = f"a width of {width} is not divisible by {heads} heads"
        raise UserError(what, "model.width", "make it a multiple of model.heads")
    return Forecaster(settings, facts)
