"""The training loop in plain PyTorch, readable from top to bottom."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from .engine.evaluation import sum_of_weights
from .engine.run import Run


def fit(run: Run) -> None:
    """Train the run's current phase to its end, or to a stop."""
    if run.evaluation_due:  # a signal interrupted the last evaluation
        run.evaluate()
    while not run.should_stop:
        train_epoch(run)


def train_epoch(run: Run) -> None:
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
            output.loss.backward(gradient=precision.scale(output.total_weight))
        run.monitor.add_metrics(output.metrics)
        losses.append((output.loss.detach(), output.total_weight))
        if not is_last_of_group:
            continue

        take_step(run, epoch, first, end, losses)
        if run.should_stop:
            break
        first = end
        losses = []


def take_step(
    run: Run, epoch: int, first: int, end: int, losses: list[tuple[Tensor, Tensor]]
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
    norm = project.precision.step(
        project.optimizer, run.settings.training.gradient_clip, total_weight
    )
    step = run.advance(end)

    # log
    monitor.add_losses(step, epoch, (first, end), losses, norm)
    if monitor.due(step):
        monitor.log(step, epoch, norm / total_weight, run.schedule.learning_rate)  # host sync
    run.schedule.set(run.step_of_phase)
    run.call_hooks("after_step")

    # evaluate and save
    if run.evaluation_due:
        run.evaluate()
    if run.save_due:
        run.save()
