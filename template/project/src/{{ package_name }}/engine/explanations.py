"""Lines for failures that a setting or an installation can fix, from the words of libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from .config import Settings
    from .order import Order

PACKAGE = __package__.partition(".")[0]
# torch's class by its name, because torch is not imported for this; the words of CUDA, cuBLAS and
# cuDNN.
GPU_MEMORY = ("OutOfMemoryError", "error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")


def explain(
    error: BaseException | None,
    settings: Settings | None = None,
    order: Order | None = None,
    command: str = "train",
) -> UserError | None:
    """Return the line for a failure that a user can fix; None for any other error.

    settings, order: of a training; the order is None where the failure came before there was one.
    """
    said = str(error).strip()
    first = said.partition("\n")[0]
    module = type(error).__module__
    memory = missing_memory(error)
    if memory:
        batch_size = order.batch_size if order is not None else None
        return out_of_memory(memory, settings, batch_size, command)
    if module == "torch.distributed" or "gloo" in said:
        remedy = "its own last words say why; `train --resume` goes on from the newest checkpoint"
        return UserError("another process of this run is gone", first, remedy)
    if module.startswith(("torch._dynamo", "torch._inductor")):
        return no_compiler() if lacks_compiler(said) else not_compiled(said)
    if isinstance(error, RuntimeError):
        return runtime_error(said, first, command)
    return unloadable(error, first)


def runtime_error(said: str, first: str, command: str) -> UserError | None:
    """Return the line for errors that torch and NumPy tell apart by their words alone."""
    if "CUDA driver error" in said:  # a virtual GPU, or WSL
        return UserError(first, command, "try PYTORCH_ALLOC_CONF=expandable_segments:False")
    if "could not create a primitive" in said:  # oneDNN's words
        remedy = "choose fp32, or disable autocast for that layer"
        return UserError(f"this CPU cannot compute a layer ({first})", "training.precision", remedy)
    if "deterministic implementation" in said:
        what = f"{said.partition(' does not have')[0]} cannot be deterministic"
        remedy = "replace the operation, or DETERMINISTIC=0"
        return UserError(what, "reproducibility.deterministic", remedy)
    if "baseline optimizations" in said:
        remedy = "this CPU is older than those that it was built for: install an older numpy"
        return UserError("numpy cannot be loaded", first, remedy)
    return None


def unloadable(error: BaseException | None, first: str) -> UserError | None:
    """Return the line for a library that is missing or was built for another machine."""
    name = (getattr(error, "name", None) or first).partition(".")[0]
    if isinstance(error, ImportError) and name != PACKAGE:
        return UserError(f"{name} cannot be loaded", first, "`make setup` installs it")
    if isinstance(error, OSError) and "shared object" in first:  # so torch misses libgomp
        remedy = "install it with the packages of the system"
        return UserError(f"{name} cannot be loaded", first, remedy)
    return None


def lacks_compiler(said: str) -> bool:
    """Whether compiling failed for want of a C++ compiler, in words of Inductor or Triton."""
    return "Cxx" in said or "C compiler" in said


def no_compiler() -> UserError:
    remedy = "install one, such as g++, or --compile.enabled false"
    return UserError("there is no working compiler of C++ here", "compile.enabled", remedy)


def not_compiled(said: str) -> UserError:
    """Return the line for a failure of torch's compiler; if its backend failed, in its words."""
    first, *others = said.splitlines()
    if first.endswith("raised:") and others:
        first = others[0]
    remedy = "--compile.enabled false, or --compile.fullgraph false to compile what can be"
    if "UnicodeDecodeError" in first:  # Inductor reads its own files in the locale's encoding
        remedy = "set PYTHONUTF8=1, or --compile.enabled false"
    return UserError(f"a block could not be compiled ({first})", "compile.enabled", remedy)


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

    batch_size: where it is not `data.batch_size`.
    """
    what = f"out of {memory}"
    if settings is None:
        remedy = (
            "smaller batches: --evaluation.batch_size, --data.batch_size; or end what else runs"
        )
        return UserError(what, command, remedy)

    data = settings.data
    training = settings.training
    steps = []
    batch_size = batch_size or data.batch_size
    if batch_size > 1:
        accumulation = 2 * training.gradient_accumulation_steps
        same = f"--training.gradient_accumulation_steps {accumulation}"
        steps.append(f"--data.batch_size {batch_size // 2} {same} (same result)")
    if not training.gradient_checkpointing:
        cost = "(half of the activations, a fifth more time)"
        steps.append(f"--training.gradient_checkpointing true {cost}")
    if data.chunk_size_gb != "auto":
        steps.append(f"--data.chunk_size_gb {data.chunk_size_gb * 0.8:.2f}")
    steps.append("--profile low_memory")

    where = "this machine"
    if memory == "GPU memory":
        import torch

        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        where = f"{torch.cuda.get_device_name()}, {free:.1f} of {total:.1f} GB free"
    return UserError(what, where, "try, in this order: " + "; ".join(steps))
