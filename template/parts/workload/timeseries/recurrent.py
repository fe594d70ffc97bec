"""The state that a model carries through time, from one batch of a lane to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .interfaces import Batch

State = Any
"""Nested tuples, lists and dicts of tensors, batch axis first."""


class RecurrentState:
    """What a model that is called with the batches of `data.order: lanes` remembers between them.

    A model has one as its attribute `recurrent`: then checkpoints store it. Training and evaluation
    have states of their own, so that an evaluation inside an epoch changes nothing.
    """

    def __init__(self) -> None:
        self.states: dict[bool, State] = {}  # by whether the model trains

    def apply(self, batch: Batch, training: bool) -> State | None:
        """Return the state in which a batch begins: zero in the rows that start afresh."""
        state = self.states.get(training)
        starts_sequence = batch["starts_sequence"]
        if state is None or len(tree_leaves(state)[0]) != len(starts_sequence):
            return None  # every row of the first batch of an epoch starts afresh

        def mask(values: Tensor) -> Tensor:
            rows = starts_sequence.view(-1, *[1] * (values.dim() - 1))
            # Not a product: 0 × inf would be nan.
            return torch.where(rows, torch.zeros_like(values), values)

        return tree_map(mask, state)

    def update(self, state: State, training: bool) -> None:
        """Remember the state after a batch, without its graph."""
        self.states[training] = tree_map(Tensor.detach, state)

    def state_dict(self) -> State | None:
        """Return the state of training, on the CPU."""
        if True not in self.states:
            return None
        return tree_map(Tensor.cpu, self.states[True])

    def load_state_dict(self, ranks: list[State | None], rows: slice, device: torch.device) -> None:
        """Take some rows of a state that several ranks have saved, each its own rows."""
        self.states.clear()
        if ranks[0] is None:
            return

        def take(*values: Tensor) -> Tensor:
            return torch.cat(values)[rows].clone().to(device)

        self.states[True] = tree_map(take, *ranks)
