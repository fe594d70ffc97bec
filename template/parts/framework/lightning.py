"""The training loop as Lightning runs it; step, order, checkpoints and signals are the project's own.

Lightning's own resume repeats epoch 0's order and restores no random state, so it is left out: manual
optimization, no logger, no checkpoint callback, no sampler, no second copy to the device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import Tensor

from .engine.distributed import LIGHTNING
from .engine.seams import Batch
from .engine.session import Session


class RestOfEpoch:
    """What is left of the current epoch. It has a length, else Lightning would fetch one batch ahead."""

    def __init__(self, session: Session):
        self.session, self.progress = session, session.progress

    def __len__(self) -> int:
        return len(self.session.loader) - self.progress.batch

    def __iter__(self) -> Iterator[Batch]:
        return self.session.monitor.timed(self.session.loader.epoch(self.progress.epoch, self.progress.batch))


class Module(lightning.LightningModule):
    """Hands each batch to the step and asks the session what is due after it."""

    def __init__(self, session: Session):
        super().__init__()
        self.automatic_optimization = False
        self.session, self.model = session, session.project.wrapped
        self.first = 0  # first micro-batch of the open group
        self.number = 0  # micro-batches of this epoch so far

    def __setattr__(self, name: str, value: Any) -> None:
        """Lightning notes 34 times a step which hook it is in; nn.Module would look for weights in each."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_optimizers(self) -> Any:
        return self.session.project.optimizer

    def train_dataloader(self) -> Any:
        return RestOfEpoch(self.session)

    def transfer_batch_to_device(self, batch: Batch, device: Any, dataloader_idx: int) -> Batch:
        return batch  # the loader has put it there

    def on_train_start(self) -> None:
        step = self.session.step
        step.optimizer = self.optimizers()  # Lightning's wrapper counts its global_step
        step.backward = self._backward
        self.session.listen()  # Lightning has just put its own signal handlers in place

    def _backward(self, loss: Tensor, gradient: Tensor) -> None:
        self.manual_backward(loss, gradient=gradient)

    def on_train_epoch_start(self) -> None:
        self.first = self.number = self.session.progress.batch

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        session = self.session
        self.number += 1
        closes = self.number % session.accumulation == 0 or self.number == len(session.loader)
        session.step(batch, closes)
        if not closes:
            return
        session.advance((self.first, self.number))
        self.first = self.number
        if session.evaluation_due:
            session.evaluate()
        if session.save_due:
            session.save()
        self.trainer.should_stop = session.over


def fit(session: Session) -> None:
    """Trains the session's current phase to its end, or to a stop."""
    if session.evaluation_due:  # a signal inside an evaluation left it undone
        session.evaluate()
    if session.over:  # Lightning would train one more step
        return
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings(
        "ignore", module="lightning"
    )  # advice on loaders and loggers that are not Lightning's here
    trainer = lightning.Trainer(
        accelerator="gpu" if session.project.device.type == "cuda" else "cpu",
        **LIGHTNING,
        plugins=LightningEnvironment(),  # not Slurm's: it would count processes and requeue by itself
        max_epochs=-1,
        precision="32-true",  # the step's own precision does the rest
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        deterministic=None,  # already set
    )
    trainer.fit(Module(session))
