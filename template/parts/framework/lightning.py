"""The training loop, run by Lightning's Trainer.

To Lightning, a batch is one optimizer step: its number, since the run has its micro-batches.
Precision, order, checkpoints and signals are the project's own. Lightning's resume is not used: it
repeats the order of epoch 0 and restores no random state. So optimization is manual, and there is
no logger, no checkpoint callback, no sampler and no second copy to the device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import Tensor

from .engine.compute.precision import mean_and_clip
from .engine.training.run import Run
from .optimizer import learning_rate


class Steps:
    """The remaining steps of a run. Without a length, Lightning would fetch a step ahead."""

    def __init__(self, run: Run):
        self.run = run

    def __len__(self) -> int:
        return self.run.num_steps - self.run.step

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.run.step


class Module(lightning.LightningModule):
    """Trains by manual optimization: a step reads as in a hand-written loop."""

    def __init__(self, run: Run):
        super().__init__()
        self.automatic_optimization = False
        self.run = run
        self.model = run.project.wrapped

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the name of Lightning's current hook directly.

        Lightning sets it 34 times a step, and nn.Module would look for weights each time.
        """
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def cpu(self) -> Any:
        """Stay on the device: Lightning calls this after its `fit`, but the run still uses it."""
        return self

    def configure_optimizers(self) -> Any:
        return self.run.project.optimizer

    def train_dataloader(self) -> Any:
        return Steps(self.run)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch  # the loader has already moved it

    def on_train_start(self) -> None:
        self.run.signals.listen()  # Lightning has just installed its own signal handlers

    def training_step(self, batch: int, step_idx: int) -> None:
        run = self.run
        run.call_hooks("before_step")
        rate = learning_rate(run.step, run.num_steps, run.settings)
        norm = take_step(run, rate, self.manual_backward)
        run.end_step(norm)

        if run.log_due:
            run.write_record(rate)  # waits for the GPU
        run.call_hooks("after_step")
        if run.evaluation_due:
            run.evaluate()
        if run.save_due:
            run.save()
        self.trainer.should_stop = run.should_stop


def train(run: Run) -> None:
    """Train to the end, or until a limit or a signal stops the run."""
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
        max_epochs=1,
        precision="32-true",  # the project sets the precision itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        deterministic=None,  # already set
    )
    trainer.fit(Module(run))


def take_step(run: Run, rate: float, backward: Callable[..., None] = Tensor.backward) -> Tensor:
    """Update the weights once; return the norm () of the gradients. Nothing waits for the GPU.

    backward: Lightning's in a training; by default PyTorch's own.
    """
    model = run.project.wrapped
    optimizer = run.project.optimizer
    precision = run.project.precision
    scaler = precision.scaler  # without fp16, it does nothing

    # Forward and backward. The gradients of the micro-batches add up.
    for batch, is_last in run.next_batches():
        # Ranks exchange the sum, so only the last backward of a step exchanges.
        run.project.distributed.exchange_gradients(is_last)
        with precision.autocast():
            output = model(batch)
        # These are gradients of `loss * total_weight`: a mean loss times its targets is a sum. So
        # all targets of a step have the same weight; `loss / accumulation` would be right only if
        # all micro-batches had as many targets.
        backward(output.loss, gradient=scaler.scale(output.total_weight))
        run.meter.add(output)

    # Update: unscale, divide by the number of targets and clip, step, clear.
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_factor", 1.0)
    scaler.unscale_(optimizer)
    norm = mean_and_clip(optimizer, run.divisor(), run.settings.training.gradient_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm
