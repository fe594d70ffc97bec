"""The forecaster of `data.order: lanes`: it carries the LSTMs' states from batch to batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .engine.interfaces import Batch
from .engine.training.recurrent import RecurrentState
from .model import Forecaster, State

if TYPE_CHECKING:
    from .settings import Settings


class LaneForecaster(Forecaster):
    """Carries the state of frames whose history fits into the step of a lane.

    A longer history would see the same rows twice.
    """

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__(settings, facts)
        stride = settings.data.stride or facts["frames"][0]["history"]
        self.recurrent: RecurrentState | None = RecurrentState(stride)
        seconds = [frame["history"] * frame["step"] for frame in facts["frames"]]
        self.carried = [length <= seconds[0] for length in seconds]

    def encode(self, inputs: list[Tensor], batch: Batch) -> Tensor:
        """Return hidden units (B, frames × width); apply and update the carried state."""
        states: dict[str, State] = {}
        if self.recurrent is not None:
            states = self.recurrent.apply(batch, self.training) or {}
        outputs = []
        carry: dict[str, State] = {}
        for name, x, encoder, carried in zip(
            self.names, inputs, self.encoders, self.carried, strict=True
        ):
            state = _swap_batch_axis(states[name]) if name in states else None
            output, state = encoder(x, state)
            outputs.append(output)
            if carried:
                carry[name] = _swap_batch_axis(state)
        if self.recurrent is not None:
            self.recurrent.update(batch, carry, self.training)
        return torch.cat(outputs, 1)


def _swap_batch_axis(state: State) -> State:
    """Swap (depth, B, width) and (B, depth, width): the engine masks and splits states along B."""
    hidden, cell = (values.float().transpose(0, 1).contiguous() for values in state)
    return hidden, cell
