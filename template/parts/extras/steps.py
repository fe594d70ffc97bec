"""Optimizer steps without a run around them: for `profile` and the range test of `tune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..assemble import Project, assemble, open_store
from ..engine.distributed import Distributed
from ..engine.progress import RecurrentState
from ..engine.seams import Batch

if TYPE_CHECKING:
    from ..config import Settings


class Steps:
    """The algorithm of `train.py`, in one process. `waited`: seconds for batches so far."""

    def __init__(self, project: Project, loader: Any):
        self.project, self.loader = project, loader
        self.state = RecurrentState()
        self.waited = 0.0
        self._batches = self._endless()

    def _endless(self) -> Iterator[tuple[Batch, float]]:
        """Batches of training, and the share of a whole step that the optimizer takes behind them, or 0.

        First one by itself, as before a run: loaders divide the memory that it leaves free.
        """
        first = self.loader.epoch(0)
        yield next(first), 1.0
        first.close()
        accumulation = self.project.settings.training.gradient_accumulation_steps
        for epoch in count():
            self.state.state = None
            for number, batch in enumerate(self.loader.epoch(epoch), start=1):
                begun = (number - 1) // accumulation * accumulation
                closes = number % accumulation == 0 or number == len(self.loader)
                yield batch, self.loader.order.share(epoch, begun, number, accumulation) if closes else 0.0

    def __call__(self) -> Tensor:
        """One step. Returns its loss per target: (), on the device."""
        precision, losses, weights, share = self.project.precision, [], [], 0.0
        while not share:
            asked = time.perf_counter() - self.loader.stall_seconds
            batch, share = next(self._batches)
            self.waited += time.perf_counter() - self.loader.stall_seconds - asked
            self.state.attach(batch)
            with precision.autocast():
                output = self.project.wrapped(batch)
            output.loss.backward(gradient=precision.scale(output.weight))
            self.state.keep(output)
            losses.append(output.loss.detach() * output.weight)
            weights.append(output.weight)
        targets = torch.stack(weights).sum().clamp(min=1)
        clip = self.project.settings.training.gradient_clip
        precision.step(self.project.optimizer, clip, targets / share)
        return torch.stack(losses).sum() / targets


@contextmanager
def stepping(settings: Settings) -> Iterator[Steps]:
    """A fresh model and its training samples, ready to step."""
    distributed = Distributed()
    try:
        project = assemble(settings, distributed, open_store(settings))
        loader = project.loader("train", train=True)
        yield Steps(project, loader)
        loader.close()
    finally:
        distributed.close()
