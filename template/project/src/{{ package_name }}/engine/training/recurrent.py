"""The state that a model carries through time, from one batch of a lane to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..interfaces import Batch
from ..loading.order import Order

State = Any
"""Nested tuples, lists and dicts of tensors, batch axis first."""


class RecurrentState:
    """The hidden state of a recurrent model between the batches of `data.order: lanes`.

    Assign it to the model's attribute `recurrent`, so that checkpoints store it. Training and
    evaluation have separate states, so that an evaluation during an epoch changes nothing.

    stride: rows between two samples of a lane.
    """

    def __init__(self, stride: int):
        self.stride = stride
        # The indices and the state of the last batch; the key is `training`.
        self.states: dict[bool, tuple[Tensor, State]] = {}

    def apply(self, batch: Batch, training: bool) -> State | None:
        """Return the state before a batch, with zeros in the rows that start a sequence."""
        index = batch["index"]
        if training not in self.states or len(self.states[training][0]) != len(index):
            return None
        last_index, state = self.states[training]
        continues = (last_index >= 0) & (index == last_index + self.stride)

        def mask(values: Tensor) -> Tensor:
            rows = continues.view(-1, *[1] * (values.dim() - 1))
            # A product would turn inf into nan.
            return torch.where(rows, values, torch.zeros_like(values))

        return tree_map(mask, state)

    def update(self, batch: Batch, state: State, training: bool) -> None:
        """Keep the state after a batch, detached from the graph."""
        self.states[training] = (batch["index"], tree_map(Tensor.detach, state))

    def state_dict(self) -> State | None:
        """Return the training state, on the CPU."""
        if True not in self.states:
            return None
        return tree_map(Tensor.cpu, self.states[True])

    def load_state_dict(
        self, ranks: list[State | None], order: Order, device: torch.device
    ) -> None:
        """Load the rows of this rank's lanes from the concatenated states that the ranks saved."""
        self.states.clear()
        if ranks[0] is None:
            return
        first = order.rank * order.batch_size
        rows = slice(first, first + order.batch_size)

        def take(*values: Tensor) -> Tensor:
            return torch.cat(values)[rows].clone().to(device)

        self.states[True] = tree_map(take, *ranks)
