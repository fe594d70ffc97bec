"""Lines for failures that a setting or an installation can fix, from the words of libraries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from ..settings.config import Settings

PACKAGE = __package__.partition(".")[0]
# torch's class by its name, because torch is not imported for this; the words of CUDA, cuBLAS and
# cuDNN.
GPU_MEMORY = ("OutOfMemoryError", "error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")

KNOWN = {
    r"^torch\._(dynamo|inductor).*(Cxx|C compiler)": (  # in words of Inductor or Triton
        "no working C++ compiler found: compile.enabled: "
        "install one, such as g++, or --compile.enabled false"
    ),
    r"^torch\._(dynamo|inductor)": (
        "a block could not be compiled ({first}): compile.enabled: "
        "--compile.enabled false, or --compile.fullgraph false to compile what can be"
    ),
    r"^torch\.distributed|gloo": (
        "another process of this run is gone: {first}: "
        "its own output says why; `train --resume` continues from the newest checkpoint"
    ),
    "operations that require placement changes": (  # DTensor's words
        "this optimizer cannot update sharded weights: optimizer.name: "
        "choose adamw, or run `copier update --defaults -r :current: -d distributed=ddp`"
    ),
    # In words of the operating system, or of torch.
    "No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed": (
        "a file could not be written ({first}): {command}: free some space"
    ),
    "Permission denied|Read-only file system|Not a directory": (
        "a file or folder cannot be used ({first}): {command}: check the path, "
        "change its permissions, or use a copy of the folder"
    ),
    "File name too long": "a path is too long ({first:.60}…): {command}: use a shorter one",
    "CUDA driver error": (  # a virtual GPU, or WSL
        "{first}: {command}: try PYTORCH_ALLOC_CONF=expandable_segments:False"
    ),
    "could not create a primitive": (  # oneDNN's words
        "this CPU cannot compute a layer ({first}): training.precision: "
        "choose fp32, or disable autocast for that layer"
    ),
    "deterministic implementation": (
        "{operation} cannot be deterministic: reproducibility.deterministic: "
        "replace the operation, or DETERMINISTIC=0"
    ),
}
"""Lines for failures: by a regular expression of the error's module and a library's words."""


def explain(
    error: BaseException | None,
    settings: Settings | None = None,
    batch_size: int | None = None,
    command: str = "train",
) -> UserError | None:
    """Return the line for a failure that a user can fix; None for any other error.

    settings, batch_size: of a training. The batch size is None if the failure came before the data.
    """
    memory = missing_memory(error)
    if memory:
        return out_of_memory(memory, settings, batch_size, command)
    # After the name of torch's compiler comes what its backend said.
    said = re.sub(r"^.* raised:\n", "", str(error).strip())
    first = said.partition("\n")[0]
    operation = said.partition(" does not have")[0]
    for words, line in KNOWN.items():
        if re.search(words, f"{type(error).__module__}: {error}", re.DOTALL):
            return UserError(line.format(first=first, operation=operation, command=command))
    return unloadable(error, first)


def unloadable(error: BaseException | None, first: str) -> UserError | None:
    """Return the line for a library that is missing or was built for another machine."""
    name = (getattr(error, "name", None) or first).partition(".")[0]
    if isinstance(error, ImportError) and name != PACKAGE:
        remedy = "`make setup` installs it if pyproject.toml lists it; another version may lack it"
    elif isinstance(error, OSError) and "shared object" in first:  # so torch misses libgomp
        remedy = "install it with the packages of the system"
    else:
        return None
    return UserError(f"{name} cannot be loaded", first, remedy)


def missing_memory(error: BaseException | None) -> str:
    """Return which memory was too small: `GPU memory`, `memory`, or nothing for another error."""
    said = f"{type(error).__name__}: {error}"
    if any(words in said for words in GPU_MEMORY):
        return "GPU memory"
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return "memory"
    return ""


def out_of_memory(
    memory: str, settings: Settings | None, batch_size: int | None, command: str = "train"
) -> UserError:
    """Return the settings to try, mildest first.

    batch_size: of this run; None stands for `data.batch_size`.
    """
    what = f"out of {memory}"
    if settings is None:
        remedy = "smaller batches: --evaluation.batch_size, --data.batch_size"
        return UserError(what, command, f"{remedy}; or stop other processes")

    training = settings.training
    steps = []
    batch_size = batch_size or settings.data.batch_size
    if batch_size > 1:
        accumulation = 2 * training.gradient_accumulation_steps
        same = f"--training.gradient_accumulation_steps {accumulation}"
        steps.append(f"--data.batch_size {batch_size // 2} {same} (same result)")
    if not training.gradient_checkpointing:
        cost = "(half of the activations, forward runs twice)"
        steps.append(f"--training.gradient_checkpointing true {cost}")
    chunk_size: Any = getattr(settings.data, "chunk_size_gb", "auto")  # of the loader `chunk`
    if chunk_size != "auto":
        steps.append(f"--data.chunk_size_gb {chunk_size * 0.8:.2f}")
    steps.append("--profile low_memory")

    where = "this machine"
    if memory == "GPU memory":
        import torch

        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        where = f"{torch.cuda.get_device_name()}, {free:.1f} of {total:.1f} GB free"
    return UserError(what, where, "try, in this order: " + "; ".join(steps))


def advice(settings: Settings, precision: str) -> str:
    """Return what to change in this run, best first. precision: the one in use, never `auto`."""
    remedies = [f"lower optimizer.learning_rate ({settings.optimizer.learning_rate:g})"]
    if not settings.training.gradient_clip:
        remedies.append("set training.gradient_clip 1")
    if settings.schedule.warmup_steps != "auto":
        remedies.append(f"raise schedule.warmup_steps ({settings.schedule.warmup_steps})")
    if precision != "fp32":
        remedies.append(f"set training.precision fp32 ({precision})")
    return "; or ".join(remedies)
