"""The forecaster of `data.order: lanes`: it carries the LSTM's state from batch to batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .engine.interfaces import Batch
from .engine.training.recurrent import RecurrentState
from .model import Forecaster, State

if TYPE_CHECKING:
    from .settings import Settings


class LaneForecaster(Forecaster):
    """Carries the state of the LSTM from each batch to the next."""

    def __init__(self, settings: Settings, facts: dict[str, Any]):
        super().__init__(settings, facts)
        stride = settings.data.stride or facts["frames"][0]["history"]
        self.recurrent: RecurrentState | None = RecurrentState(stride)

    def encode(self, inputs: Tensor, batch: Batch) -> Tensor:
        """Return hidden units (B, width); apply and update the carried state."""
        if self.recurrent is None:
            return super().encode(inputs, batch)
        state = self.recurrent.apply(batch, self.training)
        if state is not None:
            state = _swap_batch_axis(state)
        output, state = self.encoder(inputs, state)
        self.recurrent.update(batch, _swap_batch_axis(state), self.training)
        return output


def _swap_batch_axis(state: State) -> State:
    """Swap (depth, B, width) and (B, depth, width): the engine masks and splits states along B."""
    hidden, cell = (values.float().transpose(0, 1).contiguous() for values in state)
    return hidden, cell
