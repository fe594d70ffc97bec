"""The training loop with Hugging Face Accelerate around model and optimizer.

Precision, order, checkpoints and signals are the project's own: Accelerate would cut batches over processes
again, step a schedule once per process, and choose a number format of its own. Its `accumulate` divides by
the number of micro-batches, which is wrong where they have unequal numbers of targets.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor

from .engine.distributed import ACCELERATE
from .engine.precision import total
from .engine.run import Run


def prepare(run: Run) -> tuple[Any, Any, Accelerator]:
    """Lets Accelerate wrap what the loop calls: the model, the optimizer, backward."""
    project = run.project
    options: dict[str, Any] = {
        "cpu": project.device.type == "cpu",
        "device_placement": False,  # all of it is there
        "mixed_precision": "no",  # the project's own precision does it, whatever `accelerate launch` says
        # The loop accumulates by weight. As a plugin: `accelerate launch` outranks the number alone.
        "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=1),
    }
    accelerator = Accelerator(**options | ACCELERATE)
    # As if to evaluate: several processes are the project's own matter, and wrapped twice is averaged twice.
    project.wrapped = accelerator.prepare_model(project.wrapped, evaluation_mode=True)
    return project.wrapped, accelerator.prepare_optimizer(project.optimizer), accelerator


def fit(run: Run) -> None:
    """Trains the run's current phase to its end, or to a stop."""
    model, optimizer, accelerator = prepare(run)
    project, loader, progress, precision = run.project, run.loader, run.progress, run.project.precision
    distributed, recurrent, monitor = project.distributed, run.recurrent, run.monitor
    clip = run.settings.training.gradient_clip
    if run.evaluation_due:  # a signal inside an evaluation left it undone
        run.evaluate()
    while not run.should_stop:
        epoch, first = progress.epoch, progress.batch
        losses: list[tuple[Tensor, Tensor]] = []  # (loss, targets) of the open group, on the device
        batches = monitor.timed(loader.epoch(epoch, first))
        for number, batch in enumerate(batches, start=first + 1):
            closes = number % run.accumulation == 0 or number == len(loader)
            if not losses:
                run.call_hooks("before_step")
            recurrent.attach(batch)
            with nullcontext() if closes else distributed.no_sync():
                with precision.autocast():
                    output = model(batch)
                # loss × targets: a group of unequal micro-batches is one mean over all of its targets,
                # which `loss / accumulation` is only where all have as many.
                accelerator.backward(output.loss, gradient=precision.scale(output.weight))
            recurrent.keep(output)
            monitor.keep(output.metrics)
            losses.append((output.loss.detach(), output.weight))
            if not closes:
                continue
            # A step that an epoch has too few samples for moves the weights by its share.
            share = loader.order.share(epoch, first, number, run.accumulation)
            # Gradients are averaged over the ranks: × world makes a sum of them again.
            targets = distributed.sum(total(losses)).clamp(min=1) / (distributed.world * share)
            norm = precision.step(optimizer, clip, targets)  # unscale, divide, clip, step, clear: one pass
            step = run.advance(number)
            monitor.note(step, epoch, (first, number), losses)
            if monitor.due(step):
                monitor.log(step, epoch, norm / targets, run.schedule.learning_rate)  # host sync
            run.schedule.set(run.step_of_phase)
            run.call_hooks("after_step")
            first, losses = number, []
            if run.evaluation_due:
                run.evaluate()
            if run.save_due:
                run.save()
            if run.should_stop:
                break
