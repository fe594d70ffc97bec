"""Optimizer steps without a run around them: for `profile` and the range test of `tune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..assemble import assemble, open_store
from ..engine.distributed import Distributed
from ..engine.project import Project
from ..engine.seams import Batch

if TYPE_CHECKING:
    from ..config import Settings


class Steps:
    """The algorithm of `train.py`, in one process. `waited`: seconds for batches so far."""

    def __init__(self, project: Project, loader: Any):
        self.project = project
        self.loader = loader
        self.waited = 0.0
        self._batches = self._endless()

    def _endless(self) -> Iterator[tuple[Batch, float]]:
        """Yield batches, each with the fraction of a complete step that ends with it, or 0.

        The first is a step alone, like the dry run of a training: loaders divide the memory that it
        leaves free.
        """
        first = self.loader.epoch(0)
        yield next(first), 1.0
        first.close()
        accumulation = self.project.settings.training.gradient_accumulation_steps
        for epoch in count():
            for number, batch in enumerate(self.loader.epoch(epoch), start=1):
                share = 0.0
                if number % accumulation == 0 or number == len(self.loader):
                    start = (number - 1) // accumulation * accumulation
                    share = self.loader.order.share(epoch, start, number, accumulation)
                yield batch, share

    def __call__(self) -> Tensor:
        """Make one step. Returns its loss per target: (), on the device."""
        precision = self.project.precision
        losses = []
        weights = []
        share = 0.0
        while not share:
            # A stall is a wait for the GPU's earlier steps, not for data.
            start_time = time.perf_counter() - self.loader.stall_seconds
            batch, share = next(self._batches)
            self.waited += time.perf_counter() - self.loader.stall_seconds - start_time
            with precision.autocast():
                output = self.project.wrapped(batch)
            output.loss.backward(gradient=precision.scale(output.weight))
            losses.append(output.loss.detach() * output.weight)
            weights.append(output.weight)

        targets = torch.stack(weights).sum().clamp(min=1)
        clip = self.project.settings.training.gradient_clip
        precision.step(self.project.optimizer, clip, targets / share)
        return torch.stack(losses).sum() / targets


@contextmanager
def stepping(settings: Settings) -> Iterator[Steps]:
    """Prepare a new model and its training samples for steps."""
    distributed = Distributed()
    try:
        project = assemble(settings, distributed, open_store(settings))
        loader = project.loader("train", train=True)
        yield Steps(project, loader)
        loader.close()
    finally:
        distributed.close()
