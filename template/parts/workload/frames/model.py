"""An LSTM forecaster for one or several time frames.

Replace it with your own: the engine calls only `build_model`.

Shapes: `B` windows in a batch, `T` rows of history, `C` columns, `H` horizons, `G` target columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.interfaces import Batch, Output

if TYPE_CHECKING:
    from .settings import Settings

State = tuple[Tensor, Tensor]
FLOAT32_ON_CPU = "the LSTM"  # the start of a run in half precision on a CPU prints this name


class Encoder(nn.Module):
    """The LSTM of one time frame.

    It supports activation checkpointing, but is never compiled, because compiling gains nothing for
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
    """Encodes each frame and forecasts all horizons at once.

    The scalers are part of the model, since batches contain original units.
    """

    # The names of these layers in weights from a project with `layout: script`.
    script_names: ClassVar = {"lstm": "encoders.0.lstm", "linear": "line"}

    targets: Tensor  # (G,) columns of the first frame; for a list, each step would wait
    target_mean: Tensor  # (1, G)
    target_std: Tensor

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        frames = facts["frames"]
        self.names = [frame["name"] for frame in frames]
        self.register_buffer("targets", torch.tensor(facts["targets"]), persistent=False)
        self.horizon = facts["horizon"]  # rows
        self.subtract = sizes.subtract_last
        self.loss = sizes.loss
        self.dropout = sizes.dropout
        self.encoders = nn.ModuleList()
        dtype = getattr(torch, frames[0].get("dtype", "float32"))
        for frame in frames:
            self.register_buffer(f"mean_{frame['name']}", torch.tensor(frame["mean"], dtype=dtype))
            self.register_buffer(f"std_{frame['name']}", torch.tensor(frame["std"]))
            self.encoders.append(Encoder(len(frame["mean"]), sizes.width, sizes.depth))
        self.register_buffer("target_mean", torch.tensor(facts["target_mean"], dtype=dtype))
        self.register_buffer("target_std", torch.tensor(facts["target_std"]))
        self.head = nn.Linear(sizes.width * len(frames), self.horizon * len(self.targets))
        self.line = None
        if sizes.linear_path:
            self.line = nn.Linear(frames[0]["history"], self.horizon)

    def blocks(self) -> list[nn.Module]:
        """The encoders, which are checkpointed and sharded one by one."""
        return list(self.encoders)

    def forecast(self, batch: Batch) -> Tensor:
        """Return standardized forecasts (B, H, G), in float32 even under autocast."""
        frames = []
        for name in self.names:
            mean = getattr(self, f"mean_{name}")
            std = getattr(self, f"std_{name}")
            frames.append(((batch[name] - mean) / std).float())
        inputs = [x - x[:, -1:] for x in frames] if self.subtract else frames  # (B, T, C) each
        encoded = self.encode(inputs, batch)
        hidden = functional.dropout(encoded, self.dropout, self.training)
        forecast = self.head(hidden).float().unflatten(1, (self.horizon, len(self.targets)))

        series = frames[0][:, :, self.targets]  # (B, T, G)
        last = series[:, -1:]
        if self.line is not None:
            change = self.line((series - last).transpose(1, 2))  # (B, G, H)
            forecast = forecast + change.float().transpose(1, 2)
        if self.subtract:
            forecast = forecast + last
        return forecast

    def encode(self, inputs: list[Tensor], batch: Batch) -> Tensor:
        """Return hidden units (B, frames × width). The extra `lanes` carries a state here."""
        outputs = [encoder(x)[0] for x, encoder in zip(inputs, self.encoders, strict=True)]
        return torch.cat(outputs, 1)

    def forward(self, batch: Batch) -> Output:
        forecast = self.forecast(batch)
        target = ((batch["target"] - self.target_mean) / self.target_std).float()  # (B, H, G)
        present = batch["present"][:, None, None]
        total_weight = present.sum(dtype=torch.float32) * (self.horizon * len(self.targets))
        error = (forecast - target) * present
        loss = self.sum_losses(error) / total_weight.clamp(min=1)
        if self.training:
            return Output(loss, total_weight)
        last = (
            (batch[self.names[0]][:, -1:, self.targets] - self.target_mean) / self.target_std
        ).float()
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
    """Build the forecaster for the dataset's metadata: frames, scalers, targets and horizon."""
    return Forecaster(settings, facts)
