"""The position of a run, and what is restored with it: random states and hooks."""

from __future__ import annotations

import os
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import UserError
from ..interfaces import Hook
from ..plugins import discover

if TYPE_CHECKING:
    from ..compute.distributed import Distributed
    from ..monitoring.meter import Meter


@dataclass
class Progress:
    """The position of a run, always between two optimizer steps, and its best evaluation."""

    step: int = 0
    evaluated: int = 0  # step of the last complete evaluation
    metric: str = "loss"  # the one that decides
    best_cost: float = float("inf")  # its best value, where lower is better
    best_loss: float = float("inf")  # of the best evaluation
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best one
    skipped: int = 0  # steps in a row, up to the last record

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        sum({**state, "metric": 0}.values())  # raises TypeError for one that is no number

    def is_better(self, cost: float) -> bool:
        """Whether an evaluation of this cost, which is finite, would be the best one."""
        return float("-inf") < cost < self.best_cost

    def judge(self, loss: float, cost: float) -> bool:
        """Count a complete evaluation; return whether it is the best one."""
        self.evaluated = self.step
        self.without_gain += 1
        if self.is_better(cost):
            self.best_cost = cost
            self.best_loss = loss
            self.best_step = self.step
            self.without_gain = 0
        return self.without_gain == 0

    def compare_by(self, metric: str) -> None:
        """Begin a new comparison, in which another metric decides.

        The best step stays until an evaluation is better, and with it the best checkpoint.
        """
        self.metric = metric
        self.best_cost = self.best_loss = float("inf")
        self.without_gain = 0


@dataclass
class RankStates:
    """Random state and unread metrics of every rank, as one part of a checkpoint.

    Another number of processes can resume a run if a step keeps its number of samples. Then the
    same samples follow, but random numbers are different.
    """

    distributed: Distributed
    meter: Meter

    def state_dict(self) -> dict[str, Any]:
        """Gather the states of all ranks; call it on every rank."""
        mine = {"random": random_state(), "meter": self.meter.state_dict()}
        return {"ranks": self.distributed.gather_objects(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's states."""
        ranks = state["ranks"]
        if len(ranks) == self.distributed.world:
            ranks = [ranks[self.distributed.rank]]
            set_random_state(ranks[0]["random"])
        elif not self.distributed.is_main:  # rank 0 takes the metrics of all
            ranks = []
        for saved in ranks:
            self.meter.load_state_dict(saved["meter"])


class Hooks:
    """The hooks in `hooks/`, by name; checkpoints store the states of hooks that have one.

    trial: leave out hooks that take no part in trials. Raises `UserError` if a hook has a method
    that nothing calls.
    """

    def __init__(self, trial: bool):
        self.all: dict[str, Hook[Any]] = {}
        for module in discover("hooks", "Hook"):
            hook = module.Hook()
            name = module.__name__.rpartition(".")[2]
            # All methods are optional, so a misspelt one would otherwise have no effect and no
            # error.
            for method, value in vars(module.Hook).items():
                if method[0] != "_" and callable(value) and not hasattr(Hook, method):
                    remedy = "correct its name (see engine/interfaces.py), or begin it with _"
                    what = f"nothing calls the hook's method '{method}'"
                    raise UserError(what, f"hooks/{name}.py", remedy)
            if not trial or getattr(hook, "trials", True):
                self.all[name] = hook

    def state_dict(self) -> dict[str, Any]:
        """Collect the hooks' states on every rank. Those of rank 0 are saved; no tensor is cut."""
        hooks = self.all.items()
        return {name: hook.state_dict() for name, hook in hooks if hasattr(hook, "state_dict")}

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
    of_numpy: Any = np.random.get_state()
    name, keys, *others = of_numpy
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *others),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the random generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
