"""An LSTM over windows. Replace it with your own: the engine calls only `build_model`.

Shapes: `B` windows in a batch, `T` rows of a window, `F` features, `H` horizons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.interfaces import Batch, Output

if TYPE_CHECKING:
    from .settings import Settings

FLOAT32_ON_CPU = "the LSTM"  # the start of a run in half precision on a CPU prints this name


class Encoder(nn.Module):
    """An LSTM.

    It supports activation checkpointing, but is never compiled, because compiling gains nothing for
    cuDNN's LSTM. Autocast runs cuDNN's RNNs in float16, even under bf16 (AutocastRNN.cpp). The
    standardized values inside fit its range; losses, weights and the head are not affected. On a
    CPU, the LSTM computes in float32 with any precision, because few CPUs support half precision.
    """

    def __init__(self, features: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(features, width, depth, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last output (B, width) for x (B, T, F)."""
        with torch.autocast("cpu", enabled=False):
            outputs, _ = self.lstm(x.float())
        return outputs[:, -1].float()


class Forecaster(nn.Module):
    """Forecasts all horizons of a window at once.

    The scalers are part of the model, since batches contain original units.
    """

    # The names of these layers in weights from a project with `layout: script`.
    script_names: ClassVar = {"lstm": "encoder.lstm"}

    mean: Tensor  # (F,)
    std: Tensor
    target_mean: Tensor  # (H,)
    target_std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        for name in ("mean", "std", "target_mean", "target_std"):
            self.register_buffer(name, torch.tensor(facts[name]))
        self.dropout = sizes.dropout
        self.encoder = Encoder(len(facts["mean"]), sizes.width, sizes.depth)
        self.head = nn.Linear(sizes.width, len(facts["target_mean"]))

    def blocks(self) -> list[nn.Module]:
        """The encoder, which is checkpointed and sharded."""
        return [self.encoder]

    def forecast(self, batch: Batch) -> Tensor:
        """Return standardized forecasts (B, H), in float32 even under autocast."""
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
        """Return `prediction` (B, H) in the targets' own units."""
        forecast = self.forecast(batch)
        return {"prediction": forecast * self.target_std + self.target_mean}


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the forecaster for the dataset's metadata: features, scalers and horizon."""
    return Forecaster(settings, facts)
