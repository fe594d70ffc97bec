"""What a run that failed tells its user: the cause, and the settings to change, in one line."""

from __future__ import annotations

from typing import Any

import torch

from .errors import UserError
from .monitor import NonFinite
from .order import Order


def explain(error: BaseException | None, settings: Any, loader: Any = None) -> UserError | None:
    """The line for a failure that a setting can mend; None for any other error.

    loader: of training; None where the failure came before there was one.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return out_of_memory(settings)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return out_of_memory(settings, host=True)
    if isinstance(error, NonFinite):
        return non_finite(error, loader.order)
    if type(error).__module__ == "torch.distributed" or "gloo" in str(error):
        remedy = "its own last words say why; `train --resume` goes on from the newest checkpoint"
        return UserError("another process of this run is gone", str(error).partition("\n")[0], remedy)
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        first = str(error).strip().partition("\n")[0]
        remedy = "--compile.enabled false, or --compile.fullgraph false to compile the parts that can be"
        return UserError(f"a block could not be compiled ({first})", "compile.enabled", remedy)
    if isinstance(error, RuntimeError) and "deterministic implementation" in str(error):
        operation = str(error).partition(" does not have")[0]
        remedy = "replace the operation, or DETERMINISTIC=0"
        return UserError(f"{operation} cannot be deterministic", "reproducibility.deterministic", remedy)
    return None


def non_finite(error: NonFinite, order: Order) -> UserError:
    """Names the training samples of the step where the loss went bad."""
    order.rank = error.rank  # of the process where it happened
    numbers = order.epoch(error.epoch)[0][slice(*error.batches)].ravel()
    shown = ", ".join(map(str, numbers[numbers >= 0][:64]))
    remedy = "look at them; lower optimizer.learning_rate, longer schedule.warmup_steps, or precision fp32"
    return UserError(str(error), f"epoch {error.epoch + 1}, training samples {shown}", remedy)


def out_of_memory(settings: Any, host: bool = False) -> UserError:
    """The ladder of settings to try, mildest first. host: the machine's own memory, not the GPU's."""
    batch = settings.data.batch_size
    steps = []
    if batch > 1:
        halved, accumulation = batch // 2, settings.training.gradient_accumulation_steps * 2
        steps.append(
            f"--data.batch_size {halved} --training.gradient_accumulation_steps {accumulation} (same result)"
        )
    if not settings.training.gradient_checkpointing:
        steps.append("--training.gradient_checkpointing true (half of the activations, a fifth more time)")
    if settings.data.chunk_size_gb != "auto":
        steps.append(f"--data.chunk_size_gb {settings.data.chunk_size_gb * 0.8:.2f}")
    steps.append("--profile low_memory")
    remedy = "try, in this order: " + "; ".join(steps)
    if host:
        return UserError("out of memory", "this machine", remedy)
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    where = f"{torch.cuda.get_device_name()}, {free:.1f} of {total:.1f} GB free"
    return UserError("out of GPU memory", where, remedy)
