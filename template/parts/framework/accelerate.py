"""The training loop with Hugging Face Accelerate around the model and backward.

Precision, order, checkpoints and signals are the project's own. Accelerate would split batches over
processes again, step a schedule once per process, and choose a precision of its own. Its
`accumulate` divides by the number of micro-batches, which is wrong if they have different numbers
of targets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor

from .engine.compute.precision import mean_and_clip
from .engine.training.run import Run
from .optimizer import learning_rate

# The variables by which launchers say how many processes there are.
LAUNCHERS = ("LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def prepare(run: Run) -> Accelerator:
    """Let Accelerate wrap what the loop calls: the model and backward."""
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
    # What an earlier launch left there would let Accelerate wait for other processes.
    environment = dict(os.environ)
    if project.distributed.world == 1:
        for name in environment:
            if name in LAUNCHERS or name.startswith("ACCELERATE_"):
                del os.environ[name]
    accelerator = Accelerator(**options)
    os.environ.update(environment)
    # For evaluation, Accelerate does not wrap the model for several processes. The project has done
    # that already, and two wrappers would average twice.
    project.wrapped = accelerator.prepare_model(project.wrapped, evaluation_mode=True)
    return accelerator


def train(run: Run) -> None:
    """Train to the end, or until a limit or a signal stops the run."""
    accelerator = prepare(run)
    if run.evaluation_due:  # a signal interrupted the last evaluation
        run.evaluate()
    while not run.should_stop:
        run.call_hooks("before_step")
        rate = learning_rate(run.step, run.num_steps, run.settings)
        norm = take_step(run, rate, accelerator.backward)
        run.end_step(norm)

        if run.log_due:
            run.write_record(rate)  # waits for the GPU
        run.call_hooks("after_step")
        if run.evaluation_due:
            run.evaluate()
        if run.save_due:
            run.save()


def take_step(run: Run, rate: float, backward: Callable[..., None] = Tensor.backward) -> Tensor:
    """Update the weights once; return the norm () of the gradients. Nothing waits for the GPU.

    backward: Accelerate's in a training; by default PyTorch's own.
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
