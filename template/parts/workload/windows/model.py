"""An LSTM over windows. Replace it with your own: `build_model` is all that the engine calls.

Shapes: `B` windows in a batch, `T` rows of a window, `F` features, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.interfaces import Batch, Output

if TYPE_CHECKING:
    from .settings import Sections

FLOAT32_ON_CPU = "the LSTM"  # says so at the start of a run in half precision


class Encoder(nn.Module):
    """The LSTM. Recomputed if asked to, never compiled: that gains nothing for cuDNN's.

    Under bf16 torch's autocast casts cuDNN's RNNs to float16, whatever else it is set to
    (AutocastRNN.cpp): the numbers inside are small enough for its range; losses, weights and the
    head do not pass through it. On a CPU it computes in float32 under any precision, because few
    CPUs have an LSTM in half precision.
    """

    def __init__(self, features: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(features, width, depth, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, F) to the last output (B, width)."""
        with torch.autocast("cpu", enabled=False):
            outputs, _ = self.lstm(x.float())
        return outputs[:, -1].float()


class Forecaster(nn.Module):
    """A window to all horizons at once. The scalers are part of it: batches hold original units."""

    mean: Tensor  # (F,)
    std: Tensor
    target_mean: Tensor  # (H,)
    target_std: Tensor

    def __init__(self, settings: Sections, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        for name in ("mean", "std", "target_mean", "target_std"):
            self.register_buffer(name, torch.tensor(facts[name]))
        self.dropout = sizes.dropout
        self.encoder = Encoder(len(facts["mean"]), sizes.width, sizes.depth)
        self.head = nn.Linear(sizes.width, len(facts["target_mean"]))

    def blocks(self) -> list[nn.Module]:
        """The encoder, for recomputation and sharding."""
        return [self.encoder]

    def forecast(self, batch: Batch) -> Tensor:
        """(B, H) float32 in standard deviations, also under autocast."""
        hidden = self.encoder((batch["features"] - self.mean) / self.std)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        return self.head(hidden).float()

    def forward(self, batch: Batch) -> Output:
        present = batch["present"]
        target = (batch["target"] - self.target_mean) / self.target_std
        error = (self.forecast(batch) - target) * present[:, None]
        squares = error.square()
        total_weight = present.sum(dtype=torch.float32) * error.shape[1]
        loss = squares.sum() / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)
        sums = {
            "mse": squares.sum(),
            "mae": error.abs().sum(),
            "mse_original": (squares * self.target_std**2).sum(),
            "mae_original": (error.abs() * self.target_std).sum(),
        }
        metrics = {name: (value, total_weight) for name, value in sums.items()}
        return Output(loss, total_weight, metrics)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`prediction` (B, H) in the targets' own units."""
        forecast = self.forecast(batch)
        return {"prediction": forecast * self.target_std + self.target_mean}


def build_model(settings: Sections, facts: dict[str, Any]) -> nn.Module:
    """The forecaster that fits the data's facts: their features, scalers and horizon."""
    return Forecaster(settings, facts)
