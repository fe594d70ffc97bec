"""What users see as a line, never as a traceback.

These are their mistakes, and failures that a setting can fix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Settings
    from .order import Order


# torch's class by its name, because torch is not imported for this; the words of CUDA, cuBLAS and
# cuDNN.
GPU_MEMORY = ("OutOfMemoryError", "error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED")


class UserError(Exception):
    """Something the user can fix; `__main__` prints it as `error: what: where: what to do`.

    `where` and `remedy` may be empty. Several mistakes found together are one `UserError` each,
    raised as `UserErrors`.
    """

    code = 2
    reported = False  # another process of the run says it

    def __init__(self, what: str, where: str = "", remedy: str = ""):
        super().__init__(": ".join(part for part in (what, where, remedy) if part))


class UserErrors(UserError):
    """Several `UserError`s found in one pass, one printed line each."""

    def __init__(self, errors: list[UserError]):
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors


class NonFinite(Exception):
    """A loss that became nan or inf; `epoch`, `batches` (first, last + 1) and `rank` say where."""

    def __init__(self, step: int, epoch: int, batches: tuple[int, int], rank: int = 0):
        super().__init__(f"the loss of step {step} is not finite")
        self.step = step
        self.epoch = epoch
        self.batches = batches
        self.rank = rank


def unloadable(error: Exception, package: str) -> UserError | None:
    """Return the line for a library that is missing or was built for another machine.

    None for any other error. package: this one, whose own mistakes keep their traceback.
    """
    said = str(error).strip().partition("\n")[0]
    name = (getattr(error, "name", None) or said).partition(".")[0]
    if isinstance(error, ImportError) and name != package:
        remedy = "`make setup` installs it"
    elif isinstance(error, OSError) and "shared object" in said:  # so torch misses libgomp
        remedy = "install it with the packages of the system"
    elif isinstance(error, RuntimeError) and "baseline optimizations" in said:
        name = "numpy"
        remedy = "this CPU is older than those that it was built for: install an older numpy"
    else:
        return None
    return UserError(f"{name} cannot be loaded", said, remedy)


def gpu_memory(error: BaseException | None) -> bool:
    """Whether a GPU had too little memory.

    torch says it by a class, CUDA and its libraries in words.
    """
    text = f"{type(error).__name__}: {error}"
    return any(words in text for words in GPU_MEMORY)


def explain(
    error: BaseException | None, settings: Settings, order: Order | None
) -> UserError | None:
    """Return the line for a failure that a setting can fix; None for any other error.

    order: of the training samples; None where the failure came before there was one.
    """
    said = str(error)
    batch = order.batch_size if order is not None else None
    if gpu_memory(error):
        return out_of_memory(settings, batch)
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return out_of_memory(settings, batch, host=True)

    module = type(error).__module__
    first = said.strip().partition("\n")[0]
    if module == "torch.distributed" or "gloo" in said:
        remedy = "its own last words say why; `train --resume` goes on from the newest checkpoint"
        return UserError("another process of this run is gone", first, remedy)
    if module.startswith(("torch._dynamo", "torch._inductor")):
        return no_compiler() if lacks_compiler(said) else not_compiled(said)

    if isinstance(error, RuntimeError) and "could not create a primitive" in said:  # oneDNN's words
        remedy = "choose fp32, or disable autocast for that layer"
        return UserError(f"this CPU cannot compute a layer ({first})", "training.precision", remedy)
    if isinstance(error, RuntimeError) and "deterministic implementation" in said:
        what = f"{said.partition(' does not have')[0]} cannot be deterministic"
        remedy = "replace the operation, or DETERMINISTIC=0"
        return UserError(what, "reproducibility.deterministic", remedy)
    return None


def lacks_compiler(said: str) -> bool:
    """Whether compiling failed for want of a C++ compiler, in words of Inductor or Triton."""
    return "Cxx" in said or "C compiler" in said


def not_compiled(said: str) -> UserError:
    """Return the line for a failure of torch's compiler; if its backend failed, in its words."""
    first, *others = said.strip().splitlines()
    if first.endswith("raised:") and others:
        first = others[0]
    remedy = (
        "--compile.enabled false, or --compile.fullgraph false to compile the parts that can be"
    )
    if "UnicodeDecodeError" in first:  # Inductor reads its own files in the locale's encoding
        remedy = "set PYTHONUTF8=1, or --compile.enabled false"
    return UserError(f"a block could not be compiled ({first})", "compile.enabled", remedy)


def no_compiler() -> UserError:
    remedy = "install one, such as g++, or --compile.enabled false"
    return UserError("there is no working compiler of C++ here", "compile.enabled", remedy)


def out_of_memory(settings: Settings, batch: int | None = None, host: bool = False) -> UserError:
    """Return the ladder of settings to try, mildest first.

    batch: its size, where that is not `data.batch_size`. host: the machine's own memory, not the
    GPU's.
    """
    data = settings.data
    training = settings.training
    steps = []
    if batch is None:
        batch = data.batch_size
    if batch > 1:
        accumulation = 2 * training.gradient_accumulation_steps
        same = f"--training.gradient_accumulation_steps {accumulation}"
        steps.append(f"--data.batch_size {batch // 2} {same} (same result)")
    if not training.gradient_checkpointing:
        cost = "(half of the activations, a fifth more time)"
        steps.append(f"--training.gradient_checkpointing true {cost}")
    if data.chunk_size_gb != "auto":
        steps.append(f"--data.chunk_size_gb {data.chunk_size_gb * 0.8:.2f}")
    steps.append("--profile low_memory")
    remedy = "try, in this order: " + "; ".join(steps)
    if host:
        return UserError("out of memory", "this machine", remedy)

    import torch

    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    where = f"{torch.cuda.get_device_name()}, {free:.1f} of {total:.1f} GB free"
    return UserError("out of GPU memory", where, remedy)
