"""An LSTM forecaster.

Replace it with your own: the engine calls only `build_model`.

Shapes: `B` windows in a batch, `T` rows of history, `C` columns, `H` horizons, `G` target columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .engine.interfaces import Batch, Output

if TYPE_CHECKING:
    from .settings import Settings

State = tuple[Tensor, Tensor]
FLOAT32_ON_CPU = "the LSTM"  # the start of a run in half precision on a CPU prints this name


class Encoder(nn.Module):
    """The LSTM, a block that supports activation checkpointing.

    It is never compiled, because compiling gains nothing for
    cuDNN's LSTM. Autocast runs cuDNN's RNNs in float16, even under bf16 (AutocastRNN.cpp). The
    standardized values inside fit its range; losses, weights and the head are not affected. On a
    CPU, the LSTM computes in float32 with any precision, because few CPUs support half precision.
    """

    def __init__(self, columns: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(columns, width, depth, batch_first=True)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the last output (B, width) for x (B, T, C), and the LSTM's new state."""
        with torch.autocast("cpu", enabled=False):
            outputs, state = self.lstm(x.float(), state)
        return outputs[:, -1].float(), state


class Forecaster(nn.Module):
    """Forecasts all horizons at once.

    The scaler is part of the model, since batches contain original units.
    """

    # The names of these layers in weights from a project with `layout: script`.
    script_names: ClassVar = {"lstm": "encoder.lstm"}

    targets: Tensor  # (G,) columns; for a list, each step would wait
    mean: Tensor  # (C,)
    std: Tensor
    target_mean: Tensor  # (1, G)
    target_std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        frame = facts["frames"][0]
        num_columns = len(frame["mean"])
        num_targets = len(facts["targets"])
        self.horizon = facts["horizon"]  # rows
        self.subtract = sizes.subtract_last
        self.loss = sizes.loss
        self.register_buffer("targets", torch.tensor(facts["targets"]), persistent=False)
        dtype = getattr(torch, frame.get("dtype", "float32"))
        self.register_buffer("mean", torch.tensor(frame["mean"], dtype=dtype))
        self.register_buffer("std", torch.tensor(frame["std"]))
        self.encoder = Encoder(num_columns, sizes.width, sizes.depth)
        self.register_buffer("target_mean", torch.tensor(facts["target_mean"], dtype=dtype))
        self.register_buffer("target_std", torch.tensor(facts["target_std"]))
        self.dropout = nn.Dropout(sizes.dropout)
        self.head = nn.Linear(sizes.width, self.horizon * num_targets)
        self.linear = nn.Linear(frame["history"], self.horizon) if sizes.linear_path else None

    def blocks(self) -> list[nn.Module]:
        """The encoder, which is checkpointed and sharded."""
        return [self.encoder]

    def forecast(self, batch: Batch) -> Tensor:
        """Return standardized forecasts (B, H, G), in float32 even under autocast."""
        history = ((batch["rows"] - self.mean) / self.std).float()
        last = history[:, -1:]
        changes = history - last
        hidden = self.dropout(self.encode(changes if self.subtract else history, batch))
        forecast = self.head(hidden).float().unflatten(1, (self.horizon, -1))
        if self.linear is not None:
            change = self.linear(changes[:, :, self.targets].transpose(1, 2))  # (B, G, H)
            forecast = forecast + change.float().transpose(1, 2)
        if self.subtract:
            forecast = forecast + last[:, :, self.targets]
        return forecast

    def encode(self, inputs: Tensor, batch: Batch) -> Tensor:
        """Return hidden units (B, width). The extra `lanes` carries a state here."""
        return self.encoder(inputs)[0]

    def forward(self, batch: Batch) -> Output:
        forecast = self.forecast(batch)
        target = ((batch["target"] - self.target_mean) / self.target_std).float()  # (B, H, G)
        present = batch["present"][:, None, None]
        total_weight = present.sum(dtype=torch.float32) * (self.horizon * len(self.targets))
        error = (forecast - target) * present
        loss = self.sum_losses(error) / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)
        last = ((batch["rows"][:, -1:, self.targets] - self.target_mean) / self.target_std).float()
        squares = error.square()
        sums = {
            "mse": squares.sum(),
            "mae": error.abs().sum(),
            "mse_original": (squares * self.target_std**2).sum(),
            "mae_original": (error.abs() * self.target_std).sum(),
            "loss_of_last": self.sum_losses((target - last) * present),
            "loss_of_mean": self.sum_losses(target * present),
        }
        metrics = {name: (value, total_weight) for name, value in sums.items()}
        return Output(loss, total_weight, metrics)

    def sum_losses(self, error: Tensor) -> Tensor:
        """Return the sum of the losses of standardized errors."""
        losses = error.abs() if self.loss == "mae" else error.square()
        return losses.sum()

    def predict(self, batch: Batch) -> dict[str, Any]:
        """Return `prediction` (B, H, G) in the targets' own units."""
        forecast = self.forecast(batch)
        return {"prediction": forecast * self.target_std + self.target_mean}


def build_model(settings: Settings, facts: dict[str, Any]) -> nn.Module:
    """Build the forecaster for the dataset's metadata: scaler, targets and horizon."""
    return Forecaster(settings, facts)
