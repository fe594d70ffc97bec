"""The position of a run, and what is restored with it: random states, carried states, hooks."""

from __future__ import annotations

import os
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..errors import UserError
from ..plugins import discover

if TYPE_CHECKING:
    from ..compute.distributed import Distributed
    from ..data.order import Order
    from ..interfaces import Hook
    from ..log.meter import Meter


@dataclass
class Progress:
    """The position of a run, always between two optimizer steps, and its best evaluation."""

    step: int = 0
    evaluated: int = 0  # step of the last complete evaluation
    best_loss: float = float("inf")
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best one

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def judge(self, loss: float) -> bool:
        """Count a complete evaluation; return whether it is the best one."""
        self.evaluated = self.step
        is_best = loss < self.best_loss
        if is_best:
            self.best_loss = loss
            self.best_step = self.step
            self.without_gain = 0
        else:
            self.without_gain += 1
        return is_best


@dataclass
class RankStates:
    """Random state, unread metrics and carried state of every rank, as one part of a checkpoint.

    Another number of processes can resume a run if a step keeps its number of samples. Then the
    same samples follow and carried states find their lanes, but random numbers are different.
    """

    distributed: Distributed
    progress: Progress
    meter: Meter
    recurrent: Any  # what the model carries through time, or None
    order: Order
    steps_per_epoch: int

    def state_dict(self) -> dict[str, Any]:
        """Gather the states of all ranks; call it on every rank."""
        mine = {"random": random_state(), "meter": self.meter.state_dict()}
        if self.recurrent is not None:
            mine["carry"] = self.recurrent.state_dict()
        ranks = self.distributed.gather_objects(mine)
        return {"ranks": ranks, "batch_size_all_ranks": self.order.batch_size_all_ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's states; the progress must be restored before.

        Raises `UserError` if the position does not exist with this batch size.
        """
        ranks = state["ranks"]
        size = state["batch_size_all_ranks"]
        if size == self.order.batch_size_all_ranks:
            if self.recurrent is not None:
                carries = [rank.get("carry") for rank in ranks]
                self.recurrent.load_state_dict(carries, self.order, self.distributed.device)
        elif self.order.by_width and self.progress.step % self.steps_per_epoch > 0:
            kind = self.order.kind
            what = f"in an epoch of the order {kind}, a batch must have {size} samples"
            remedy = f"make data.batch_size × {self.distributed.world} processes equal {size}"
            raise UserError(what, "--resume", remedy)
        if len(ranks) == self.distributed.world:
            ranks = [ranks[self.distributed.rank]]
            set_random_state(ranks[0]["random"])
        else:
            seed_everything((torch.initial_seed() + self.progress.step) % 2**32)
            if not self.distributed.is_main:  # rank 0 takes the metrics of all
                ranks = []
        for saved in ranks:
            self.meter.load_state_dict(saved["meter"])


class Hooks:
    """The hooks in `hooks/`, by name; checkpoints store the states of hooks that have one.

    trial: leave out hooks that take no part in trials.
    """

    def __init__(self, trial: bool):
        self.all: dict[str, Hook] = {}
        for module in discover("hooks", "Hook"):
            hook = module.Hook()
            if not trial or getattr(hook, "trials", True):
                self.all[module.__name__.rpartition(".")[2]] = hook

    def state_dict(self) -> dict[str, Any]:
        """Collect the hooks' states on every rank. Those of rank 0 are saved; no tensor is cut.

        Raises `UserError` for a value that `torch.load(weights_only=True)` would reject on resume.
        """
        with_state = {name: hook for name, hook in self.all.items() if hasattr(hook, "state_dict")}
        states = {name: hook.state_dict() for name, hook in with_state.items()}
        plain_types = (bool, int, float, str, type(None))
        for value in tree_leaves(states):
            if not isinstance(value, Tensor) and type(value) not in plain_types:
                what = f"a hook's state holds a {type(value).__name__}"
                where = f"hooks/, {', '.join(states)}"
                raise UserError(what, where, "keep only plain values and tensors in it")
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the hooks; one that is new starts without a state."""
        for name in state.keys() & self.all.keys():
            self.all[name].load_state_dict(state[name])


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, PyTorch and CUDA.

    PYTHONHASHSEED has an effect on child processes only.
    """
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # all CUDA devices too


def random_state() -> dict[str, Any]:
    """Return the state of all random generators, in types that `weights_only=True` can load.

    Of the CUDA generators, only that of the device in use is in it.
    """
    name, keys, *others = cast(Any, np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *others),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the random generators."""
    random.setstate(state["python"])
    name, keys, *others = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *others))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
