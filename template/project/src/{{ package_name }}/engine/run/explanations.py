"""Lines for failures that a setting or an installation can fix."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UserError
from ..plugins import PACKAGE, names

if TYPE_CHECKING:
    from ..settings.config import Settings

# torch's class by its name, because torch is not imported for this; the words of CUDA, cuBLAS and
# cuDNN.
GPU_MEMORY = ("OutOfMemoryError", "error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")


def explain(
    error: BaseException | None, settings: Settings | None = None, command: str = "train"
) -> UserError | None:
    """Return the line for a failure that a user can fix; None for any other error.

    settings: of a training. The extra `diagnose` knows more failures, by the words of libraries.
    """
    memory = missing_memory(error)
    if memory:
        return out_of_memory(memory, settings, command)
    explained: UserError | None = None
    group = sys.modules.get(f"{PACKAGE}.engine.compute.group")  # of several processes
    if group is not None:
        explained = group.explain(error)
    if explained is None and "remedies" in names("engine.run"):
        remedies = import_module(f"{PACKAGE}.engine.run.remedies")
        explained = remedies.explain(error, command)
    if explained is not None:
        return explained
    if isinstance(error, OSError) and error.strerror and not isinstance(error, BrokenPipeError):
        remedy = "check the path, its permissions and the free space"
        return UserError(str(error), command, remedy)
    if isinstance(error, ImportError) and PACKAGE not in str(error.name):
        remedy = "`make setup` installs it if pyproject.toml lists it"
        return UserError(f"{error.name} cannot be loaded", str(error), remedy)
    return None


def missing_memory(error: BaseException | None) -> str:
    """Return which memory was too small: `GPU memory`, `memory`, or nothing for another error."""
    said = f"{type(error).__name__}: {error}"
    if any(words in said for words in GPU_MEMORY):
        return "GPU memory"
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return "memory"
    return ""


def out_of_memory(memory: str, settings: Settings | None, command: str = "train") -> UserError:
    """Return the settings to try, mildest first."""
    what = f"out of {memory}"
    if settings is None:
        remedy = "smaller batches: --evaluation.batch_size, --data.batch_size"
        return UserError(what, command, f"{remedy}; or stop other processes")

    training = settings.training
    steps = []
    batch_size = settings.data.batch_size
    if batch_size > 1:
        accumulation = 2 * training.gradient_accumulation_steps
        same = f"--training.gradient_accumulation_steps {accumulation}"
        steps.append(f"--data.batch_size {batch_size // 2} {same} (same result)")
    if not training.gradient_checkpointing:
        cost = "(half of the activations, forward runs twice)"
        steps.append(f"--training.gradient_checkpointing true {cost}")
    if memory == "GPU memory" and hasattr(settings.data, "chunk_size_gb"):
        steps.append("--data.chunk_size_gb with 60 % of the GPU's memory (auto takes up to 75 %)")
    steps.append("--profile low_memory")
    if settings.optimizer.name != "adafactor":
        steps.append("--optimizer.name adafactor (other updates)")
    return UserError(what, command, f"try, in this order: {'; '.join(steps)}; a smaller model")


def advice(settings: Settings, precision: str) -> str:
    """Return what to change in this run, best first. precision: the one in use, never `auto`."""
    remedy = f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"
    remedy += f"; or raise schedule.warmup_steps ({settings.schedule.warmup_steps})"
    clip = settings.training.gradient_clip
    change = f"lower training.gradient_clip ({clip:g})" if clip else "set training.gradient_clip 1"
    remedy += f"; or {change}"
    if precision != "fp32":
        remedy += f"; or set training.precision fp32 ({precision})"
    return remedy
