"""Forward, backward, accumulation, clipping and the optimizer: one step for every framework.

Accumulation goes by weight. `loss` is a mean over `weight` targets, so a micro-batch contributes
loss × weight, and the sum is divided by all targets of the group on all ranks. `loss / accumulation`
is right only when every micro-batch has the same number of targets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .precision import Precision
from .seams import Batch, Output


class Carry:
    """State that a model hands from one batch of a lane to the next, cut off from the graph."""

    def __init__(self) -> None:
        self.state: Any = None

    def into(self, batch: Batch) -> None:
        """Puts the last state into `batch["carry"]`, zero where a lane starts afresh."""
        if self.state is not None:
            keep = ~batch["fresh"]
            batch["carry"] = each(self.state, lambda state: _masked(state, keep))

    def keep(self, output: Output) -> None:
        """Remembers the state. It fits the next batch, because all batches are full."""
        if output.carry is not None:
            self.state = each(output.carry, Tensor.detach)

    def drop(self) -> None:
        """At an epoch's end."""
        self.state = None


class Step:
    """One micro-batch at a time; the optimizer steps when a group closes.

    backward, no_sync: the framework's own, because under DDP a plain `.backward()` may bypass it.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        precision: Precision,
        distributed: Any,
        clip: float,
        backward: Callable[..., None] = Tensor.backward,
        no_sync: Callable[[], Any] = nullcontext,
    ):
        self.model, self.optimizer, self.precision, self.distributed = (
            model,
            optimizer,
            precision,
            distributed,
        )
        self.clip, self.backward, self.no_sync = clip, backward, no_sync
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.carry = Carry()
        self.group: list[
            tuple[Tensor, Tensor]
        ] = []  # (loss, weight) of the last group's micro-batches, detached
        self._norm = self._divisor = torch.tensor(1.0)
        self._open = False

    def __call__(self, batch: Batch, closes: bool) -> Output:
        """Runs a micro-batch; `closes` says that it is the last one of its group. No host sync."""
        if not self._open:
            self.group, self._open = [], True
        self.carry.into(batch)
        with nullcontext() if closes else self.no_sync():
            with self.precision.autocast():
                output = self.model(batch)
            # Starting backward from the weight is loss × weight without the extra multiplication.
            self.backward(output.loss, gradient=self.precision.scale(output.weight))
        self.carry.keep(output)
        self.group.append((output.loss.detach(), output.weight))
        if closes:
            self._close()
        return output

    def _close(self) -> None:
        weight = (
            self.group[0][1] if len(self.group) == 1 else torch.stack([part[1] for part in self.group]).sum()
        )
        # DDP and FSDP average gradients over the ranks: × world makes a sum of them again.
        self._divisor = self.distributed.sum(weight).clamp(min=1)
        if self.distributed.world > 1:
            self._divisor = self._divisor / self.distributed.world
        self._norm = self.precision.step(self.optimizer, self.parameters, self.clip, self._divisor)
        self._open = False

    @property
    def last(self) -> dict[str, Tensor]:
        """Loss per target over all ranks and gradient norm of the group that closed last, on the device."""
        loss = torch.stack([loss * weight for loss, weight in self.group]).sum()
        weight = torch.stack([weight for _, weight in self.group]).sum()
        both = self.distributed.sum(torch.stack([loss, weight]))
        return {"loss": both[0] / both[1].clamp(min=1), "gradient_norm": self._norm / self._divisor}

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carry.state = state["carry"]


def _masked(state: Tensor, keep: Tensor) -> Tensor:
    """Zero where a lane is fresh; `where`, because 0 × inf would be nan."""
    return torch.where(keep.view(-1, *[1] * (state.dim() - 1)), state, torch.zeros_like(state))


def each(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Applies `function` to every tensor of a nest of tuples, lists and dicts; None stays None."""
    if isinstance(state, Tensor):
        return function(state)
    if state is None:
        return None
    if isinstance(state, dict):
        return {key: each(value, function) for key, value in state.items()}
    return type(state)(each(value, function) for value in state)
