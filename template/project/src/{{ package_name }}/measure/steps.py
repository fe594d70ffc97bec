"""Optimizer steps outside of a run, for `profile` and the range test of `tune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..assemble import assemble, open_store
from ..engine.compute.distributed import Distributed
from ..engine.compute.precision import mean_and_clip
from ..engine.interfaces import Batch
from ..engine.run.project import Project

if TYPE_CHECKING:
    from ..settings import Settings


class Steps:
    """The algorithm of `train.py` in one process. `waited`: seconds spent waiting for batches."""

    def __init__(self, project: Project, loader: Any):
        self.project = project
        self.loader = loader
        self.waited = 0.0
        self._batches = self._endless()

    def _endless(self) -> Iterator[tuple[Batch, float]]:
        """Yield batches, each with 0, or with the fraction of a whole step if it ends a step.

        The first batch is a step of its own, like the dry run of training, so that loaders can use
        the memory that is still free.
        """
        first = self.loader.epoch(0)
        yield next(first), 1.0
        first.close()
        accumulation = self.project.settings.training.gradient_accumulation_steps
        for epoch in count():
            for end, batch in enumerate(self.loader.epoch(epoch), start=1):
                step_fraction = 0.0
                if end % accumulation == 0 or end == len(self.loader):
                    start = (end - 1) // accumulation * accumulation
                    step_fraction = self.loader.order.step_fraction(epoch, start, end, accumulation)
                yield batch, step_fraction

    def __call__(self) -> Tensor:
        """Make one step, and return its loss per target, (), on the device."""
        precision = self.project.precision
        losses = []
        weights = []
        step_fraction = 0.0
        while not step_fraction:
            start_time = time.perf_counter()
            batch, step_fraction = next(self._batches)
            self.waited += time.perf_counter() - start_time
            with precision.autocast():
                output = self.project.wrapped(batch)
            output.loss.backward(gradient=precision.scaler.scale(output.total_weight))
            losses.append(output.loss.detach() * output.total_weight)
            weights.append(output.total_weight)

        total_weight = torch.stack(weights).sum().clamp(min=1)
        clip = self.project.settings.training.gradient_clip
        optimizer = self.project.optimizer
        precision.scaler.unscale_(optimizer)
        mean_and_clip(optimizer, total_weight / step_fraction, clip)
        precision.scaler.step(optimizer)
        precision.scaler.update()
        optimizer.zero_grad()
        return torch.stack(losses).sum() / total_weight


@contextmanager
def stepping(settings: Settings) -> Iterator[Steps]:
    """Set up a new model and its training samples, and yield its steps."""
    distributed = Distributed()
    try:
        project = assemble(settings, distributed, open_store(settings))
        loader = project.loader("train", train=True)
        yield Steps(project, loader)
        loader.close()
    finally:
        distributed.close()
