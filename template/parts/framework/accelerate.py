"""The training loop with Hugging Face Accelerate around model and optimizer.

Precision, order, checkpoints and signals are the project's own. Accelerate would split batches over
processes again, step a schedule once per process, and choose a precision of its own. Its
`accumulate` divides by the number of micro-batches, which is wrong if they have different numbers
of targets.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor

from .engine.evaluation import sum_of_weights
from .engine.run import Run


def prepare(run: Run) -> tuple[Any, Accelerator]:
    """Let Accelerate wrap what the loop calls: the model, the optimizer, backward."""
    project = run.project
    options: dict[str, Any] = {
        "cpu": project.device.type == "cpu",
        "device_placement": False,  # everything is already on the device
        # The project sets precision and compilation, whatever `accelerate launch` says.
        "mixed_precision": "no",
        "dynamo_backend": "no",
        # The loop accumulates by weight. `accelerate launch` cannot override a plugin.
        "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=1),
    }
    accelerator = Accelerator(**options)
    # For evaluation, Accelerate does not wrap the model for several processes. The project has done
    # that already, and two wrappers would average twice.
    project.wrapped = accelerator.prepare_model(project.wrapped, evaluation_mode=True)
    return accelerator.prepare_optimizer(project.optimizer), accelerator


def fit(run: Run) -> None:
    """Train the run's current phase to its end, or to a stop."""
    optimizer, accelerator = prepare(run)
    if run.evaluation_due:  # a signal interrupted the last evaluation
        run.evaluate()
    while not run.should_stop:
        train_epoch(run, optimizer, accelerator)


def train_epoch(run: Run, optimizer: Any, accelerator: Accelerator) -> None:
    """Train the remaining batches of the current epoch."""
    project = run.project
    model = project.wrapped
    precision = project.precision

    epoch = run.progress.epoch
    first = run.progress.batch  # first micro-batch of the open group
    losses: list[tuple[Tensor, Tensor]] = []  # (loss, total_weight) of each micro-batch
    batches = run.monitor.count_waits(run.loader.epoch(epoch, first))
    for end, batch in enumerate(batches, start=first + 1):
        # forward and backward
        is_last_of_group = end % run.accumulation == 0 or end == len(run.loader)
        if not losses:
            run.call_hooks("before_step")
        with nullcontext() if is_last_of_group else project.distributed.no_sync():
            with precision.autocast():
                output = model(batch)
            # loss × total_weight makes a group of micro-batches one mean over all of its targets;
            # `loss / accumulation` would do so only if all had the same number of targets.
            accelerator.backward(output.loss, gradient=precision.scale(output.total_weight))
        run.monitor.add_metrics(output.metrics)
        losses.append((output.loss.detach(), output.total_weight))
        if not is_last_of_group:
            continue

        take_step(run, optimizer, epoch, first, end, losses)
        if run.should_stop:
            break
        first = end
        losses = []


def take_step(
    run: Run,
    optimizer: Any,
    epoch: int,
    first: int,
    end: int,
    losses: list[tuple[Tensor, Tensor]],
) -> None:
    """Update the weights with the gradients of a group of micro-batches; log, evaluate, save.

    The group is the micro-batches [first, end) of its epoch.
    """
    project = run.project
    distributed = project.distributed
    monitor = run.monitor

    # An incomplete last step: its gradient is scaled by its fraction of the samples, before
    # clipping.
    step_fraction = run.loader.order.step_fraction(epoch, first, end, run.accumulation)
    # Gradients are averaged over the ranks; × world turns the average into a sum again.
    total_weight = distributed.sum_over_ranks(sum_of_weights(losses)).clamp(min=1)
    total_weight = total_weight / (distributed.world * step_fraction)
    # Unscale, divide and clip the gradients in one pass; then step and clear them.
    norm = project.precision.step(optimizer, run.settings.training.gradient_clip, total_weight)
    step = run.advance(end)

    # log
    monitor.add_losses(step, epoch, (first, end), losses)
    if monitor.due(step):
        monitor.log(step, epoch, norm / total_weight, run.schedule.learning_rate)  # host sync
    run.schedule.set(run.step_of_phase)
    run.call_hooks("after_step")

    # evaluate and save
    if run.evaluation_due:
        run.evaluate()
    if run.save_due:
        run.save()
