"""An LSTM forecaster for one or several time frames.

Replace it with your own: `build_model` is all that the engine calls.

Shapes: `B` windows in a batch, `T` rows of history, `C` columns, `H` horizons, `G` target columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.interfaces import Batch, Output
from .engine.recurrent import RecurrentState

if TYPE_CHECKING:
    from .settings import Sections

State = tuple[Tensor, Tensor]
FLOAT32_ON_CPU = "the LSTM"  # named at the start of a run in half precision


class Encoder(nn.Module):
    """The LSTM of one time frame.

    Recomputed if asked to, never compiled: that gains nothing for cuDNN's.
    Under bf16 torch's autocast casts cuDNN's RNNs to float16, whatever else it is set to
    (AutocastRNN.cpp): the numbers inside are small enough for its range; losses, weights and the
    head do not pass through it. On a CPU it computes in float32 under any precision, because few
    CPUs have an LSTM in half precision.
    """

    def __init__(self, columns: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(columns, width, depth, batch_first=True)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, T, C) to the last output (B, width) and a new state, twice (depth, B, width)."""
        with torch.autocast("cpu", enabled=False):
            outputs, state = self.lstm(x.float(), state)
        return outputs[:, -1].float(), state


class Forecaster(nn.Module):
    """Frames to encoders to all horizons at once.

    The scalers are part of it: batches hold original units.

    A state is carried through the frames whose history is no longer than the step of a lane: a
    longer one would meet the same rows twice.
    """

    # What `layout: script` calls layers, for weights of its runs.
    script_names: ClassVar = {"lstm": "encoders.0.lstm", "linear": "line"}

    target_mean: Tensor  # (1, G)
    target_std: Tensor

    def __init__(self, settings: Sections, facts: dict[str, Any]):
        super().__init__()
        sizes = settings.model
        frames = facts["frames"]
        self.names = [frame["name"] for frame in frames]
        self.targets = facts["targets"]  # columns of the first frame
        self.horizon = facts["horizon"]  # rows
        self.subtract = sizes.subtract_last
        self.dropout = sizes.dropout
        self.encoders = nn.ModuleList()
        for frame in frames:
            self.register_buffer(f"mean_{frame['name']}", torch.tensor(frame["mean"]))
            self.register_buffer(f"std_{frame['name']}", torch.tensor(frame["std"]))
            self.encoders.append(Encoder(len(frame["mean"]), sizes.width, sizes.depth))
        self.register_buffer("target_mean", torch.tensor(facts["target_mean"]))
        self.register_buffer("target_std", torch.tensor(facts["target_std"]))
        self.head = nn.Linear(sizes.width * len(frames), self.horizon * len(self.targets))
        self.line = None
        if sizes.linear_path:
            self.line = nn.Linear(frames[0]["history"], self.horizon)

        in_lanes = settings.data.order == "lanes"
        self.recurrent = RecurrentState() if in_lanes else None
        seconds = [frame["history"] * frame["step"] for frame in frames]
        self.carried = [in_lanes and length <= seconds[0] for length in seconds]

    def blocks(self) -> list[nn.Module]:
        """The encoders, for recomputation and sharding one by one."""
        return list(self.encoders)

    def forecast(self, batch: Batch) -> Tensor:
        """(B, H, G) float32 in standard deviations, also under autocast."""
        frames = []
        for name in self.names:
            mean = getattr(self, f"mean_{name}")
            std = getattr(self, f"std_{name}")
            frames.append((batch[name] - mean) / std)
        encoded = self._encode(frames, batch)
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

    def _encode(self, frames: list[Tensor], batch: Batch) -> Tensor:
        """(B, frames × width), from the state that is carried and on to the next batch's."""
        states: dict[str, State] = {}
        if self.recurrent is not None:
            states = self.recurrent.apply(batch, self.training) or {}
        outputs = []
        carry: dict[str, State] = {}
        for place, name in enumerate(self.names):
            x = frames[place]
            if self.subtract:
                x = x - x[:, -1:]  # (B, T, C)
            state = _turned(states[name]) if name in states else None
            output, state = self.encoders[place](x, state)
            outputs.append(output)
            if self.carried[place]:
                carry[name] = _turned(state)
        if self.recurrent is not None:
            self.recurrent.update(carry, self.training)
        return torch.cat(outputs, 1)

    def forward(self, batch: Batch) -> Output:
        forecast = self.forecast(batch)
        target = (batch["target"] - self.target_mean) / self.target_std  # (B, H, G)
        present = batch["present"]
        total_weight = present.sum(dtype=torch.float32) * (self.horizon * len(self.targets))
        error = (forecast - target) * present[:, None, None]
        squares = error.square()
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

    def predict(self, batch: Batch) -> dict[str, Any]:
        """`prediction` (B, H, G) in the targets' own units."""
        forecast = self.forecast(batch)
        return {"prediction": forecast * self.target_std + self.target_mean}


def _turned(state: State) -> State:
    """(depth, B, width) to (B, depth, width) and back: the engine masks lanes and shards by B."""
    hidden, cell = (values.float().transpose(0, 1).contiguous() for values in state)
    return hidden, cell


def build_model(settings: Sections, facts: dict[str, Any]) -> nn.Module:
    """The forecaster that fits the data's facts: their frames, scalers, targets and horizon."""
    return Forecaster(settings, facts)
