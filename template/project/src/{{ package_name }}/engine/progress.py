"""Where a run stands, and what it must find again: random numbers, carried states, those of its hooks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .config import found
from .errors import UserError

if TYPE_CHECKING:
    from .distributed import Distributed
    from .order import Order
    from .run import Run
    from .seams import Batch, Output

State = Any
"""A nest of tuples, lists and dicts of tensors, batch axis first; or None."""


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
        vars(self).update({name: state[name] for name in vars(self)})

    def advance(self, batch: int, batches: int) -> None:
        """Counts the step that closed with micro-batch `batch` (from 1) of an epoch of `batches`."""
        self.step += 1
        self.batch = batch
        if batch >= batches:  # normalised: an epoch's end is the next one's beginning
            self.epoch, self.batch = self.epoch + 1, 0

    def judge(self, loss: float, patience: int) -> bool:
        """Counts a whole evaluation; returns whether it is the best. After `patience` others it stops."""
        self.evaluated, better = self.step, loss < self.best_loss
        self.without_gain = 0 if better else self.without_gain + 1
        if better:
            self.best_loss, self.best_step = loss, self.step
        self.stopped_early = 0 < patience <= self.without_gain
        return better

    def next_phase(self) -> None:
        self.phase, self.phase_start = self.phase + 1, self.step
        self.epoch, self.batch, self.without_gain, self.stopped_early = 0, 0, 0, False
        self.best_loss = float("inf")  # another phase, perhaps other data: losses do not compare


class RecurrentState:
    """State that a model hands from one batch of a lane to the next, cut off from the graph."""

    def __init__(self) -> None:
        self.state: State = None

    def attach(self, batch: Batch) -> None:
        """Puts the last state into `batch["carry"]`, zero where a lane starts afresh."""
        if self.state is None:
            return
        goes_on = ~batch["fresh"]

        def masked(state: Tensor) -> Tensor:  # `where`, because 0 × inf would be nan
            return torch.where(goes_on.view(-1, *[1] * (state.dim() - 1)), state, torch.zeros_like(state))

        batch["carry"] = each(masked, self.state)

    def keep(self, output: Output) -> None:
        """Remembers the state. It fits the next batch, because all batches are full."""
        if output.carry is not None:
            self.state = each(Tensor.detach, output.carry)


def each(function: Callable[..., Tensor], *states: State) -> State:
    """The nest whose tensors are `function` of those of one nest, or of several alike; None stays None."""
    return tree_map(lambda *leaves: None if leaves[0] is None else function(*leaves), *states)


@dataclass
class Ranks:
    """Random state and carried state of every rank, as one part of a checkpoint.

    Other processes than those that saved may go on, if a step has as many samples: then the same samples
    follow, carried states find their lanes, and random numbers are new ones.
    """

    distributed: Distributed
    progress: Progress
    recurrent: RecurrentState
    order: Order
    accumulation: int

    def state_dict(self) -> dict[str, Any]:
        """Collective: every rank calls it."""
        carry = each(Tensor.cpu, self.recurrent.state)
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
            if order.by_width:
                what = f"inside an epoch of the order {order.kind} a batch must stay {slots} wide"
                remedy = f"data.batch_size × {world} processes must be {slots}"
                raise UserError(what, "--resume", remedy)
            self.progress.batch = self.progress.batch * slots // order.slots
        rank, size, carry = self.distributed.rank, order.batch_size, None
        if slots == order.slots and ranks[0]["carry"] is not None:
            whole = each(lambda *lanes: torch.cat(lanes), *(saved["carry"] for saved in ranks))
            carry = each(lambda state: state[rank * size : (rank + 1) * size].clone(), whole)
        self.recurrent.state = each(lambda state: state.to(self.distributed.device), carry)
        if len(ranks) == world:
            set_random_state(ranks[rank]["random"])
        else:
            seed_everything((torch.initial_seed() + self.progress.step) % 2**32)


class Hooks:
    """The watchers in `hooks/`, by name; the states of those that have one are a part of the checkpoints.

    trial: without those that take no part in trials. notes: gets a line for each hook whose state is not in
    a checkpoint, and for each state whose hook is not there.
    """

    def __init__(self, trial: bool, notes: list[str]):
        modules = {module.__name__.rpartition(".")[2]: module for module in found("hooks", "class Hook")}
        hooks: dict[str, Any] = {name: module.Hook() for name, module in modules.items()}
        self.all = {name: hook for name, hook in hooks.items() if not trial or getattr(hook, "trials", True)}
        self.with_state = {name: hook for name, hook in self.all.items() if hasattr(hook, "state_dict")}
        self.notes = notes

    def tell(self, moment: str, run: Run, *facts: object) -> list[Any]:
        """Calls that method of each hook that has it, in the order of names; returns what they say."""
        methods = [getattr(hook, moment, None) for hook in self.all.values()]
        return [method(run, *facts) for method in methods if method is not None]

    def state_dict(self) -> dict[str, Any]:
        """Every rank's hooks give one; rank 0's is kept, and of a sharded tensor all of it.

        Raises `UserError` for what `torch.load(weights_only=True)` would refuse when all depends on it.
        """
        states = {name: hook.state_dict() for name, hook in self.with_state.items()}
        for value in tree_leaves(states):
            if not (isinstance(value, Tensor) or type(value) in (bool, int, float, str, type(None))):
                what = f"a hook's state holds a {type(value).__name__}"
                raise UserError(what, f"hooks/, {', '.join(states)}", "keep plain values and tensors in it")
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, hook in self.with_state.items():
            if name in state:
                hook.load_state_dict(state[name])
            else:
                self.notes.append(f"hook {name} starts fresh: the checkpoint has no state of it")
        for name in sorted(state.keys() - self.with_state.keys()):
            self.notes.append(f"the checkpoint's state of hook {name} is passed over: there is no such hook")


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy, PyTorch and CUDA; PYTHONHASHSEED for children, as it changes nothing in here."""
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # all CUDA devices too


def random_state() -> dict[str, Any]:
    """State of all generators, CUDA's of the device in use, in types that `weights_only=True` loads."""
    version, internal, gauss = random.getstate()
    name, keys, *rest = cast(Any, np.random.get_state(legacy=True))
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts the generators back; CUDA's from what older versions saved only where as many devices are seen."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(saved := state["cuda"]) in (1, torch.cuda.device_count()):
        torch.cuda.set_rng_state(saved[torch.cuda.current_device() % len(saved)])
