"""What makes the step fast apart from number formats, and the learning rate.

That is compiling, activation checkpointing, the optimizer, memory and garbage collection. Each has
its switch in `config.yaml`, and `describe` reports at every start what is on and why. The learning
rate is a formula of the step: warm-up + cosine, OneCycle, linear, constant.
"""

from __future__ import annotations

import functools
import gc
import math
import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .errors import UserError

if TYPE_CHECKING:
    from .config import Schedule as ScheduleSettings
    from .config import Settings
    from .distributed import Distributed
    from .gpus import Capability

# Triton supports sm 8.0 and later; older cards run its kernels by luck (triton#10918).
COMPILE_CAPABILITY = (8, 0)
ONECYCLE_START = 1 / 25  # first learning rate over the peak (Smith & Topin 2018; OneCycleLR)
ONECYCLE_END = ONECYCLE_START / 1e4
FUSED = ("adamw", "muon")  # optimizers that `optimizer.fused` makes one kernel of
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that record them


def set_deterministic(enabled: bool, cudnn_benchmark: bool) -> None:
    """Make an operation without a deterministic form raise; costs some percent of speed.

    Never `warn_only`: a warning is not determinism. TF32 is deterministic and stays as `precision`
    says.
    """
    if enabled:
        # cuBLAS and cuDNN's LSTM require it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Only if it changes: it loads the compiler, which takes seconds.
    if enabled != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled
    # Tunes convolutions per shape: pays off for fixed shapes only, and may choose another kernel in
    # the next run.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not enabled


# --- blocks


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Compute each block's activations again in backward (`training.gradient_checkpointing`).

    Takes about half of the memory; the forward of each block runs twice. Off in evaluation.
    """
    for block in blocks:
        # Not a head, whose backward follows its forward at once.
        if getattr(block, "recomputes", True):
            block.forward = _recomputed(block.forward)


def _recomputed(forward: Any) -> Any:
    @functools.wraps(forward)
    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


def compiles(settings: Settings, capability: Capability | None) -> tuple[bool, str]:
    """Whether blocks are compiled on a GPU of this capability (None: a CPU), and why."""
    if settings.compile.enabled != "auto":
        return settings.compile.enabled, "set by compile.enabled"
    if capability is None:
        return False, "auto: on a CPU compiling costs more than a short run gains"
    if capability < COMPILE_CAPABILITY:
        return False, f"auto: Triton does not support sm {'.'.join(map(str, capability))}"
    return True, "auto: block by block"


def compile_blocks(
    blocks: list[Any], settings: Settings, capability: Capability | None
) -> tuple[str, str]:
    """Compile blocks in place if `compiles` is true; return how many and why, for `describe`.

    Compiling per block takes a fifth of the whole model's compile time and keeps the keys of the
    state_dict. A block with `ragged` has other shapes in each batch: it is compiled for any shape,
    else torch gives up at the ninth shape.
    """
    enabled, why = compiles(settings, capability)
    if not enabled:
        return "off", why

    options = settings.compile
    skipped = []
    for block in blocks:
        reason = _not_compiled(block)
        if reason:
            skipped.append(f"{type(block).__name__} ({reason})")
            continue
        dynamic: bool | str | None = options.dynamic
        if dynamic == "auto":
            dynamic = getattr(block, "ragged", None)
        block.compile(mode=options.mode, dynamic=dynamic, fullgraph=options.fullgraph)
        if options.mode in CUDA_GRAPHS:
            _eager_without_gradient(block)

    if skipped:
        why += f"; left alone: {', '.join(skipped)}"
    num_compiled = len(blocks) - len(skipped)
    if num_compiled == 0:
        return "off", why
    return f"{num_compiled} blocks, mode {options.mode}", why


def _not_compiled(block: nn.Module) -> str:
    """Return why this block is not compiled; empty if it is."""
    # Dynamo breaks the graph at cuDNN's RNNs, and nothing is faster.
    if any(isinstance(module, nn.RNNBase) for module in block.modules()):
        return "an RNN"
    # Stock modules compile to nothing in place, silently; hence also `fullgraph`.
    if type(block).__module__.startswith("torch.nn"):
        return "a stock module"
    return ""


def _eager_without_gradient(block: Any) -> None:
    """Call it eagerly without gradients: graphs would overwrite results (pytorch#152887)."""
    compiled = block._compiled_call_impl
    eager = block._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return compiled(*inputs, **named)
        return eager(*inputs, **named)

    block._compiled_call_impl = call


# --- the optimizer


def make_optimizer(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """Make AdamW, Adafactor, or Muon where the project has it.

    fused: one kernel for all parameters, on CUDA and CPU, which also takes fp16's overflow flag on
    the device. Adafactor (Shazeer & Stern 2018) has none, and takes the learning rate relative to
    the size of each weight; betas and epsilon have no effect on it.
    """
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "fused": settings.fused,
        "foreach": None if settings.fused else False,
    }
    if settings.name == "muon":
        made: torch.optim.Optimizer = muon().make_optimizer(model, settings.weight_decay, options)
        return made
    groups = decay_groups(model.parameters(), settings.weight_decay)
    if settings.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=settings.learning_rate)
    return torch.optim.AdamW(groups, **options)


def muon() -> Any:
    """Return the module of the extra `muon`. Raises `UserError` if the project was made without."""
    try:
        return import_module(".muon", __package__)
    except ModuleNotFoundError as error:
        what = "this project was made without muon"
        remedy = "choose adamw, or add the extra muon with `copier update`"
        raise UserError(what, "optimizer.name muon", remedy) from error


def decay_groups(weights: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Group the trained weights: only matrices decay, biases and norms have no reason to shrink."""
    trained = [weight for weight in weights if weight.requires_grad]
    matrices = [weight for weight in trained if weight.dim() >= 2]
    vectors = [weight for weight in trained if weight.dim() < 2]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


# --- the learning rate


def factor(schedule: ScheduleSettings, step: int, total: int) -> float:
    """Return the learning rate of step `step` (from 0) over its peak, in a run of `total` steps.

    The warm-up is linear except for OneCycle; `auto` leaves a short run time to decay: 100 steps or
    a tenth, and 30 % for OneCycle. `final_factor` is that of the end; OneCycle has its own.
    """
    name = schedule.name
    final = schedule.final_factor
    if schedule.warmup_steps != "auto":
        warmup = schedule.warmup_steps
    elif name == "onecycle":
        warmup = round(0.3 * total)
    else:
        warmup = min(100, total // 10)

    if name == "onecycle":
        if step < warmup:
            return _cosine(ONECYCLE_START, 1.0, step / max(warmup - 1, 1))
        return _cosine(1.0, ONECYCLE_END, (step - warmup + 1) / max(total - warmup, 1))
    if step < warmup:
        return (step + 1) / warmup
    passed = min((step - warmup) / max(total - warmup, 1), 1.0)
    if name == "cosine":
        return _cosine(1.0, final, passed)
    if name == "linear":
        return 1.0 + (final - 1.0) * passed
    return 1.0


def _cosine(start: float, end: float, passed: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2


class Schedule:
    """Scales the learning rate that each parameter group was made with; the run has `total` steps.

    learning_rate: the value for metrics, that of a group made with `optimizer.learning_rate`.
    """

    def __init__(self, optimizer: Any, settings: Any, total: int):
        self.optimizer = optimizer  # not its groups: loading a state puts new ones in their place
        self.settings = settings.schedule
        self.total = total
        self.peak = settings.optimizer.learning_rate
        self.learning_rate = self.peak
        self.peaks = [group["lr"] for group in optimizer.param_groups]

    def set(self, step: int) -> None:
        """Prepare the optimizer for step number `step` (from 0)."""
        fraction = factor(self.settings, step, self.total)
        self.learning_rate = self.peak * fraction
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * fraction


# --- the garbage collector, and what is on


def freeze_garbage() -> None:
    """Exclude what exists after the first step, and lives as long as the run, from collection.

    The collector's pauses reach 500 ms in large projects (karpathy/nanochat, pytorch/torchtitan).
    """
    gc.collect()
    gc.freeze()


def describe(
    settings: Settings, distributed: Distributed, decided: dict[str, tuple[str, str]]
) -> list[dict[str, str]]:
    """List what is on and why, for the start of a run and `env.json`.

    decided: state and reason of what was known only after building the model.
    """
    backends = torch.backends
    training = settings.training
    matmuls = f"float32 matmul precision is {torch.get_float32_matmul_precision()}"
    fused = settings.optimizer.fused and settings.optimizer.name in FUSED
    pinned = settings.data.pin_memory and distributed.device.type == "cuda"
    recomputed = training.gradient_checkpointing
    deterministic = settings.reproducibility.deterministic
    accumulation = training.gradient_accumulation_steps
    rows: dict[str, tuple[object, str]] = {
        **decided,
        "TF32 in matmuls": (backends.cuda.matmul.allow_tf32, matmuls),
        "TF32 in cuDNN": (backends.cudnn.allow_tf32, "follows the precision"),
        "cuDNN benchmark": (backends.cudnn.benchmark, "training.cudnn_benchmark"),
        "fused optimizer": (fused, "optimizer.fused, AdamW only"),
        "activation checkpointing": (recomputed, "training.gradient_checkpointing"),
        "processes": (distributed.world, "a device each"),
        "accumulation": (accumulation, "training.gradient_accumulation_steps"),
        "gradient clip": (training.gradient_clip or "off", "training.gradient_clip"),
        "pinned memory": (pinned, "data.pin_memory, with CUDA only"),
        "deterministic": (deterministic, "reproducibility.deterministic"),
    }
    described = []
    for name, (state, why) in rows.items():
        if isinstance(state, bool):
            state = "on" if state else "off"
        described.append({"name": name, "state": str(state), "why": why})
    return described
