"""The training loop, run by Lightning's Trainer.

Precision, order, checkpoints and signals are the project's own. Lightning's resume is not used: it
repeats the order of epoch 0 and restores no random state. So optimization is manual, and there is
no logger, no checkpoint callback, no sampler and no second copy to the device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import lightning
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import Tensor

from .engine.evaluation import sum_of_weights
from .engine.interfaces import Batch
from .engine.run import Run


class RestOfEpoch:
    """The remaining batches of an epoch. Without a length, Lightning would fetch a batch ahead."""

    def __init__(self, run: Run):
        self.run = run
        self.progress = run.progress

    def __len__(self) -> int:
        return len(self.run.loader) - self.progress.batch

    def __iter__(self) -> Iterator[Batch]:
        batches = self.run.loader.epoch(self.progress.epoch, self.progress.batch)
        return self.run.monitor.count_waits(batches)


class Module(lightning.LightningModule):
    """Trains by manual optimization: a step reads as in a hand-written loop."""

    def __init__(self, run: Run):
        super().__init__()
        self.automatic_optimization = False
        self.run = run
        self.model = run.project.wrapped
        self.first = 0  # first micro-batch of the open group
        self.end = 0  # micro-batches of this epoch so far
        # (loss, total_weight) of each micro-batch
        self.losses: list[tuple[Tensor, Tensor]] = []

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the name of Lightning's current hook directly.

        Lightning sets it 34 times a step, and nn.Module would look for weights each time.
        """
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def cpu(self) -> Any:
        """Stay on the device: Lightning calls this after `fit`, but the run still uses it."""
        return self

    def configure_optimizers(self) -> Any:
        return self.run.project.optimizer

    def train_dataloader(self) -> Any:
        return RestOfEpoch(self.run)

    def transfer_batch_to_device(self, batch: Batch, device: Any, dataloader_idx: int) -> Batch:
        return batch  # the loader has already moved it

    def on_train_start(self) -> None:
        self.run.signals.listen()  # Lightning has just installed its own signal handlers

    def on_train_epoch_start(self) -> None:
        self.first = self.end = self.run.progress.batch

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        run = self.run
        precision = run.project.precision

        # forward and backward
        self.end += 1
        is_last_of_group = self.end % run.accumulation == 0 or self.end == len(run.loader)
        if not self.losses:
            run.call_hooks("before_step")
        with nullcontext() if is_last_of_group else run.project.distributed.no_sync():
            with precision.autocast():
                output = self.model(batch)
            # loss × total_weight makes a group of micro-batches one mean over all of its targets;
            # `loss / accumulation` would do so only if all had the same number of targets.
            self.manual_backward(output.loss, gradient=precision.scale(output.total_weight))
        run.monitor.add_metrics(output.metrics)
        self.losses.append((output.loss.detach(), output.total_weight))
        if not is_last_of_group:
            return

        self.take_step(run.progress.epoch, self.first, self.end)
        self.trainer.should_stop = run.should_stop
        self.first = self.end
        self.losses = []

    def take_step(self, epoch: int, first: int, end: int) -> None:
        """Update the weights with the gradients of a group of micro-batches; log, evaluate, save.

        The group is the micro-batches [first, end) of its epoch.
        """
        run = self.run
        precision = run.project.precision
        distributed = run.project.distributed
        monitor = run.monitor

        # An incomplete last step: its gradient is scaled by its fraction of the samples, before
        # clipping.
        step_fraction = run.loader.order.step_fraction(epoch, first, end, run.accumulation)
        # Gradients are averaged over the ranks; × world turns the average into a sum again.
        total_weight = distributed.sum_over_ranks(sum_of_weights(self.losses)).clamp(min=1)
        total_weight = total_weight / (distributed.world * step_fraction)
        # Unscale, divide and clip the gradients in one pass; then step and clear them. Lightning's
        # wrapper counts its global_step.
        norm = precision.step(self.optimizers(), run.settings.training.gradient_clip, total_weight)
        step = run.advance(end)

        # log
        monitor.add_losses(step, epoch, (first, end), self.losses, norm)
        if monitor.due(step):
            monitor.log(step, epoch, norm / total_weight, run.schedule.learning_rate)  # host sync
        run.schedule.set(run.step_of_phase)
        run.call_hooks("after_step")

        # evaluate and save
        if run.evaluation_due:
            run.evaluate()
        if run.save_due:
            run.save()


def fit(run: Run) -> None:
    """Train the run's current phase to its end, or to a stop."""
    if run.evaluation_due:  # a signal interrupted the last evaluation
        run.evaluate()
    if run.should_stop:  # Lightning would train one more step
        return
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Its warnings are about loaders and loggers, which are not Lightning's own here.
    warnings.filterwarnings("ignore", module="lightning")
    device = run.project.device
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        # For Lightning, each rank is a run of one process.
        devices=1 if device.index is None else [device.index],
        # Its environment for Slurm would count processes and requeue by itself.
        plugins=LightningEnvironment(),
        max_epochs=-1,
        precision="32-true",  # the project sets the precision itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        deterministic=None,  # already set
    )
    trainer.fit(Module(run))
