"""Lines for failures that a setting or an installation can fix."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UserError
from ..plugins import PACKAGE, names

if TYPE_CHECKING:
    from ..settings.config import Settings

# torch's class by its name, because torch is not imported for this; the words of CUDA, cuBLAS and
# cuDNN.
GPU_MEMORY = ("OutOfMemoryError", "error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")

# What needs less memory in a training, mildest first.
LESS_MEMORY = (
    "halve --data.batch_size and double --training.gradient_accumulation_steps (same result); "
    "--training.gradient_checkpointing true (half of the activations, forward runs twice); "
    "--profile low_memory"
)


def explain(error: BaseException | None, command: str = "train") -> UserError | None:
    """Return the line for a failure that a user can fix; None for any other error.

    The extra `diagnose` knows more failures, by the words of libraries.
    """
    memory = missing_memory(error)
    if memory:
        return out_of_memory(memory, command)
    if "remedies" in names("engine.run"):
        remedies = import_module(f"{PACKAGE}.engine.run.remedies")
        explained: UserError | None = remedies.explain(error, command)
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


def out_of_memory(memory: str, command: str = "train") -> UserError:
    """Return the line for memory that was too small, with what to try."""
    remedy = "smaller batches: --evaluation.batch_size, --data.batch_size; or stop other processes"
    if command == "train":
        remedy = f"try, in this order: {LESS_MEMORY}"
    return UserError(f"out of {memory}", command, remedy)


def advice(settings: Settings, precision: str) -> str:
    """Return what to change in this run, best first. precision: the one in use, never `auto`."""
    remedy = f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"
    if not settings.training.gradient_clip:
        remedy += "; or set training.gradient_clip 1"
    if precision != "fp32":
        remedy += f"; or set training.precision fp32 ({precision})"
    return remedy
