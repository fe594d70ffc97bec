"""The training loop in plain PyTorch, readable from top to bottom."""

from __future__ import annotations

from torch import Tensor

from .engine.compute.precision import mean_and_clip
from .engine.training.run import Run
from .optimizer import learning_rate


def train(run: Run) -> None:
    """Train to the end, or until a limit or a signal stops the run."""
    if run.evaluation_due:  # a signal interrupted the last evaluation
        run.evaluate()
    while not run.should_stop:
        run.call_hooks("before_step")
        rate = learning_rate(run.step, run.num_steps, run.settings)
        norm = take_step(run, rate)
        run.end_step(norm)

        if run.log_due:
            run.write_record(rate)  # waits for the GPU
        run.call_hooks("after_step")
        if run.evaluation_due:
            run.evaluate()
        if run.save_due:
            run.save()


def take_step(run: Run, rate: float) -> Tensor:
    """Update the weights once; return the norm () of the gradients. Nothing waits for the GPU."""
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
        output.loss.backward(gradient=scaler.scale(output.total_weight))
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
