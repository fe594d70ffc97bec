"""The training loop as Lightning runs it; precision, order, checkpoints and signals are the project's own.

Lightning's own resume repeats epoch 0's order and restores no random state, so it is left out: manual
optimization, no logger, no checkpoint callback, no sampler, no second copy to the device.
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

from .engine.distributed import LIGHTNING
from .engine.precision import total
from .engine.run import Run
from .engine.seams import Batch


class RestOfEpoch:
    """What is left of the current epoch. It has a length, else Lightning would fetch one batch ahead."""

    def __init__(self, run: Run):
        self.run, self.progress = run, run.progress

    def __len__(self) -> int:
        return len(self.run.loader) - self.progress.batch

    def __iter__(self) -> Iterator[Batch]:
        return self.run.monitor.timed(self.run.loader.epoch(self.progress.epoch, self.progress.batch))


class Module(lightning.LightningModule):
    """Trains by manual optimization: a step reads as in a loop of one's own."""

    def __init__(self, run: Run):
        super().__init__()
        self.automatic_optimization = False
        self.run, self.model = run, run.project.wrapped
        self.first = 0  # first micro-batch of the open group
        self.number = 0  # micro-batches of this epoch so far
        self.losses: list[tuple[Tensor, Tensor]] = []  # (loss, targets) of the open group, on the device

    def __setattr__(self, name: str, value: Any) -> None:
        """Lightning notes 34 times a step which hook it is in; nn.Module would look for weights in each."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_optimizers(self) -> Any:
        return self.run.project.optimizer

    def train_dataloader(self) -> Any:
        return RestOfEpoch(self.run)

    def transfer_batch_to_device(self, batch: Batch, device: Any, dataloader_idx: int) -> Batch:
        return batch  # the loader has put it there

    def on_train_start(self) -> None:
        self.run.signals.listen()  # Lightning has just put its own signal handlers in place

    def on_train_epoch_start(self) -> None:
        self.first = self.number = self.run.progress.batch

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        run, project, monitor = self.run, self.run.project, self.run.monitor
        precision, distributed, epoch = project.precision, project.distributed, run.progress.epoch
        self.number += 1
        closes = self.number % run.accumulation == 0 or self.number == len(run.loader)
        if not self.losses:
            run.call_hooks("before_step")
        run.recurrent.attach(batch)
        with nullcontext() if closes else distributed.no_sync():
            with precision.autocast():
                output = self.model(batch)
            # loss × targets: a group of unequal micro-batches is one mean over all of its targets,
            # which `loss / accumulation` is only where all have as many.
            self.manual_backward(output.loss, gradient=precision.scale(output.weight))
        run.recurrent.keep(output)
        monitor.keep(output.metrics)
        self.losses.append((output.loss.detach(), output.weight))
        if not closes:
            return
        # A step that an epoch has too few samples for moves the weights by its share.
        share = run.loader.order.share(epoch, self.first, self.number, run.accumulation)
        # Gradients are averaged over the ranks: × world makes a sum of them again.
        targets = distributed.sum(total(self.losses)).clamp(min=1) / (distributed.world * share)
        # Lightning's wrapper counts its global_step; unscale, divide, clip, step, clear: one pass.
        norm = precision.step(self.optimizers(), run.settings.training.gradient_clip, targets)
        step = run.advance(self.number)
        monitor.note(step, epoch, (self.first, self.number), self.losses)
        if monitor.due(step):
            monitor.log(step, epoch, norm / targets, run.schedule.learning_rate)  # host sync
        run.schedule.set(run.step_of_phase)
        run.call_hooks("after_step")
        self.first, self.losses = self.number, []
        if run.evaluation_due:
            run.evaluate()
        if run.save_due:
            run.save()
        self.trainer.should_stop = run.should_stop


def fit(run: Run) -> None:
    """Trains the run's current phase to its end, or to a stop."""
    if run.evaluation_due:  # a signal inside an evaluation left it undone
        run.evaluate()
    if run.should_stop:  # Lightning would train one more step
        return
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings(
        "ignore", module="lightning"
    )  # advice on loaders and loggers that are not Lightning's here
    trainer = lightning.Trainer(
        accelerator="gpu" if run.project.device.type == "cuda" else "cpu",
        **LIGHTNING,
        plugins=LightningEnvironment(),  # not Slurm's: it would count processes and requeue by itself
        max_epochs=-1,
        precision="32-true",  # the project's own precision does the rest
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        deterministic=None,  # already set
    )
    trainer.fit(Module(run))
