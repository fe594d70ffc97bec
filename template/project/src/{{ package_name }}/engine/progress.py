"""Where a run stands, and what each of its processes must find again when it goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from .errors import UserError
from .order import Order
from .reproducibility import random_state, seed_everything, set_random_state
from .step import Step, each


@dataclass
class Progress:
    """Where a run stands. The unit is the optimizer step: it is never inside an accumulation group."""

    phase: int = 0
    phase_start: int = 0  # step at which the phase began
    epoch: int = 0
    batch: int = 0  # micro-batches of this epoch that are done; 0 after its last one
    step: int = 0
    evaluated: int = 0  # step of the last whole evaluation
    best_loss: float = float("inf")
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best one
    stopped_early: bool = False

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for field in fields(self):
            setattr(self, field.name, state[field.name])

    def next_phase(self) -> None:
        self.phase, self.phase_start = self.phase + 1, self.step
        self.epoch, self.batch, self.without_gain, self.stopped_early = 0, 0, 0, False
        self.best_loss = float("inf")  # another phase, perhaps other data: losses do not compare


class Ranks:
    """Random state and carried state of every rank, as one part of a checkpoint.

    Other processes than those that saved may go on, if a step has as many samples: then the same samples
    follow, carried states find their lanes, and random numbers are new ones.
    """

    def __init__(self, distributed: Any, progress: Progress, step: Step, order: Order, accumulation: int):
        self.distributed, self.progress, self.step = distributed, progress, step
        self.order, self.accumulation = order, accumulation

    def state_dict(self) -> dict[str, Any]:
        """Collective: every rank calls it."""
        carry = each(self.step.carry.state, torch.Tensor.cpu)
        ranks = self.distributed.gather({"random": random_state(), "carry": carry})
        return {"ranks": ranks, "slots": self.order.slots, "accumulation": self.accumulation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes after the progress. Raises `UserError` where the checkpoint's place is none of this run."""
        ranks, slots, order, world = state["ranks"], state["slots"], self.order, self.distributed.world
        samples = slots * state["accumulation"]
        if samples != order.slots * self.accumulation:
            what = f"a step had {samples} samples (on {len(ranks)} processes), and would have"
            remedy = f"data.batch_size × gradient_accumulation_steps × {world} processes must be {samples}"
            raise UserError(f"{what} {order.slots * self.accumulation} on {world}", "--resume", remedy)
        if slots != order.slots and self.progress.batch:
            if order.kind in ("lanes", "bucket"):  # these lay an epoch out by the width of a batch
                what = f"inside an epoch of the order {order.kind} a batch must stay {slots} wide"
                remedy = f"data.batch_size × {world} processes must be {slots}"
                raise UserError(what, "--resume", remedy)
            self.progress.batch = self.progress.batch * slots // order.slots
        rank, size, carry = self.distributed.rank, order.batch_size, None
        if slots == order.slots and ranks[0]["carry"] is not None:
            whole = _joined([saved["carry"] for saved in ranks])
            carry = each(whole, lambda state: state[rank * size : (rank + 1) * size].clone())
        self.step.carry.state = each(carry, lambda state: state.to(self.distributed.device))
        if len(ranks) == world:
            set_random_state(ranks[rank]["random"])
        else:
            seed_everything((torch.initial_seed() + self.progress.step) % 2**32)


def _joined(states: list[Any]) -> Any:
    """The same nest of tensors of several ranks as one, one rank's lanes behind another's."""
    if isinstance(states[0], torch.Tensor):
        return torch.cat(states)
    if isinstance(states[0], dict):
        return {key: _joined([state[key] for state in states]) for key in states[0]}
    return type(states[0])(_joined(list(parts)) for parts in zip(*states, strict=True))
