"""An LSTM forecaster for one or several time frames. Replace it with your own: `build_model` is all that
the engine calls.

Shapes: `B` windows in a batch, `T` rows of history, `C` columns, `H` horizons, `G` target columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .engine.seams import Batch, Output

if TYPE_CHECKING:
    from .settings import Sections

State = tuple[Tensor, Tensor]
FLOAT32_ON_CPU = "the LSTM"  # says so at the start of a run in half precision


class Encoder(nn.Module):
    """The LSTM of one time frame. Recomputed if asked to, never compiled: that gains nothing for cuDNN's.

    Under bf16 torch's autocast casts cuDNN's RNNs to float16, whatever else it is set to (AutocastRNN.cpp):
    the numbers inside are small enough for its range; losses, weights and the head do not pass through it.
    On a CPU it computes in float32 under any precision, because few CPUs have an LSTM in half precision.
    """

    def __init__(self, columns: int, width: int, depth: int):
        super().__init__()
        self.lstm = nn.LSTM(columns, width, depth, batch_first=True)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, T, C) and a state of twice (depth, B, width), to the last output (B, width) and a new state."""
        with torch.autocast("cpu", enabled=False):
            outputs, state = self.lstm(x.float(), state)
        return outputs[:, -1].float(), state


class Forecaster(nn.Module):
    """Frames to encoders to all horizons at once. The scalers are part of it: batches hold original units.

    A state is carried through the frames whose history is no longer than the step of a lane: a longer
    one would meet the same rows twice.
    """

    # What `layout: script` calls layers, for weights of its runs.
    script_names: ClassVar = {"lstm": "encoders.0.lstm", "linear": "line"}

    target_mean: Tensor  # (1, G)
    target_std: Tensor

    def __init__(self, settings: Sections, facts: dict[str, Any]):
        super().__init__()
        sizes, frames = settings.model, facts["frames"]
        self.names = [frame["name"] for frame in frames]
        self.targets, self.horizon = facts["targets"], facts["horizon"]  # columns of the first frame, rows
        self.subtract, self.dropout = sizes.subtract_last, sizes.dropout
        for frame in frames:
            self.register_buffer(f"mean_{frame['name']}", torch.tensor(frame["mean"]))
            self.register_buffer(f"std_{frame['name']}", torch.tensor(frame["std"]))
        self.register_buffer("target_mean", torch.tensor(facts["target_mean"]))
        self.register_buffer("target_std", torch.tensor(facts["target_std"]))
        columns = [len(frame["mean"]) for frame in frames]
        self.encoders = nn.ModuleList(Encoder(count, sizes.width, sizes.depth) for count in columns)
        self.head = nn.Linear(sizes.width * len(columns), self.horizon * len(self.targets))
        self.line = nn.Linear(frames[0]["history"], self.horizon) if sizes.linear_path else None
        lengths = [frame["history"] * frame["step"] for frame in frames]
        self.carried = [settings.data.order == "lanes" and length <= lengths[0] for length in lengths]

    def blocks(self) -> list[nn.Module]:
        """The encoders, for recomputation and sharding one by one."""
        return list(self.encoders)

    def forecast(self, batch: Batch) -> tuple[Tensor, dict[str, State]]:
        """(B, H, G) float32 in standard deviations, also under autocast, and the states to carry on."""
        known: Any = batch.get("carry", {})
        encoded, carry = [], dict[str, State]()
        frames = [self._standardised(name, batch[name]) for name in self.names]
        for name, x, encoder, carried in zip(self.names, frames, self.encoders, self.carried, strict=True):
            if self.subtract:
                x = x - x[:, -1:]  # (B, T, C)
            output, state = encoder(x, _turned(known[name]) if name in known else None)
            encoded.append(output)
            if carried:
                carry[name] = _turned(state)
        hidden = functional.dropout(torch.cat(encoded, 1), self.dropout, self.training)
        forecast = self.head(hidden).float().unflatten(1, (self.horizon, len(self.targets)))
        series = frames[0][:, :, self.targets]  # (B, T, G)
        last = series[:, -1:]
        if self.line is not None:
            change = self.line((series - last).transpose(1, 2))  # (B, G, H)
            forecast = forecast + change.float().transpose(1, 2)
        return forecast + last if self.subtract else forecast, carry

    def _standardised(self, name: str, values: Tensor) -> Tensor:
        return (values - getattr(self, f"mean_{name}")) / getattr(self, f"std_{name}")

    def forward(self, batch: Batch) -> Output:
        forecast, carry = self.forecast(batch)
        target = (batch["target"] - self.target_mean) / self.target_std  # (B, H, G)
        present = batch["present"]
        weight = present.sum(dtype=torch.float32) * (self.horizon * len(self.targets))
        error = (forecast - target) * present[:, None, None]
        squares = error.square()
        loss = squares.sum() / weight.clamp(min=1)
        if self.training:
            return Output(loss, weight, carry=carry or None)
        sums = {
            "mse": squares.sum(),
            "mae": error.abs().sum(),
            "mse_original": (squares * self.target_std**2).sum(),
            "mae_original": (error.abs() * self.target_std).sum(),
        }
        return Output(loss, weight, {name: (value, weight) for name, value in sums.items()}, carry or None)

    def predict(self, batch: Batch) -> dict[str, Any]:
        """`prediction` (B, H, G) in the targets' own units, and `carry` where a state is carried on."""
        forecast, carry = self.forecast(batch)
        known: dict[str, Any] = {"carry": carry} if carry else {}
        return known | {"prediction": forecast * self.target_std + self.target_mean}


def _turned(state: State) -> State:
    """(depth, B, width) to (B, depth, width), so that the engine can mask lanes and shard; and back."""
    hidden, cell = (part.float().transpose(0, 1).contiguous() for part in state)
    return hidden, cell


def build_model(settings: Sections, facts: dict[str, Any]) -> nn.Module:
    """The forecaster that fits the data's facts: their frames, scalers, targets and horizon."""
    return Forecaster(settings, facts)
