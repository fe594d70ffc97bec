"""The optimizations of a step except for its precision, and the learning-rate schedule.

They are torch.compile, activation checkpointing, the fused optimizer and garbage collection.
Settings in `config.yaml` control them, and `describe` reports at every start what is on and why.
The learning rate is a function of the step: a warm-up, then cosine, OneCycle, linear or constant.
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

# Triton supports sm 8.0 and later; on older GPUs, its kernels may or may not run (triton#10918).
COMPILE_CAPABILITY = (8, 0)
ONECYCLE_START = 1 / 25  # first learning rate over the peak (Smith & Topin 2018; OneCycleLR)
ONECYCLE_END = ONECYCLE_START / 1e4
FUSED = ("adamw", "muon")  # optimizers to which `optimizer.fused` applies
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # compile modes that record CUDA graphs


def set_deterministic(enabled: bool, cudnn_benchmark: bool) -> None:
    """Make runs deterministic: an operation without a deterministic form raises an error.

    It costs some percent of speed. `warn_only` is not used, because a warning makes nothing
    deterministic. TF32 is deterministic, and stays as the precision sets it.
    """
    if enabled:
        # cuBLAS and cuDNN's LSTM require it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This call loads the compiler, which takes seconds, so it is made only to change something.
    if enabled != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled
    # cuDNN times its kernels for each shape. That pays off for fixed shapes only, and the next run
    # may choose another kernel.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not enabled


# --- blocks


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Checkpoint activations: backward runs each block's forward again, instead of storing them.

    `training.gradient_checkpointing` takes about half of the memory. Evaluation is unaffected.
    """
    for block in blocks:
        # A head is left out, because its backward follows its forward at once.
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
    """Return whether blocks are compiled on a GPU of this capability (None: a CPU), and why."""
    if settings.compile.enabled != "auto":
        return settings.compile.enabled, "set by compile.enabled"
    if capability is None:
        return False, "auto: on a CPU, compiling takes longer than a short run gains"
    if capability < COMPILE_CAPABILITY:
        return False, f"auto: Triton does not support sm {'.'.join(map(str, capability))}"
    return True, "auto: block by block"


def compile_blocks(
    blocks: list[Any], settings: Settings, capability: Capability | None
) -> tuple[str, str]:
    """Compile blocks in place if `compiles` is true; return how many and why, for `describe`.

    Compiling block by block takes a fifth of the compile time of the whole model, and keeps the
    keys of the state_dict. A block with the attribute `ragged` has other shapes in each batch. It
    is compiled for any shape; otherwise torch would give up at the ninth one.
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
        why += f"; not compiled: {', '.join(skipped)}"
    num_compiled = len(blocks) - len(skipped)
    if num_compiled == 0:
        return "off", why
    return f"{num_compiled} blocks, mode {options.mode}", why


def _not_compiled(block: nn.Module) -> str:
    """Return why this block is not compiled; empty if it is."""
    # Dynamo breaks the graph at cuDNN's RNNs, so nothing would be faster.
    if any(isinstance(module, nn.RNNBase) for module in block.modules()):
        return "an RNN"
    # Compiling a module of torch.nn in place silently does nothing. `fullgraph` turns other silent
    # losses into errors.
    if type(block).__module__.startswith("torch.nn"):
        return "a module of torch.nn"
    return ""


def _eager_without_gradient(block: Any) -> None:
    """Run the block eagerly without gradients: CUDA graphs would overwrite results (#152887)."""
    compiled = block._compiled_call_impl
    eager = block._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return compiled(*inputs, **named)
        return eager(*inputs, **named)

    block._compiled_call_impl = call


# --- the optimizer


def make_optimizer(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """Make AdamW, Adafactor, or Muon if the project has it.

    fused: one kernel updates all parameters, on CUDA and on a CPU, and reads fp16's overflow flag
    on the device. Adafactor (Shazeer & Stern 2018) has no such kernel. Its learning rate is
    relative to the size of each weight; betas and epsilon have no effect on it.
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
        if hasattr(next(model.parameters()), "to_local"):
            raise UserError(
                "adafactor cannot update sharded weights",
                "optimizer.name adafactor",
                "choose adamw, or run `copier update --defaults -r :current: -d distributed=ddp`",
            )
        return torch.optim.Adafactor(groups, lr=settings.learning_rate)
    return torch.optim.AdamW(groups, **options)


def muon() -> Any:
    """Return the module of the extra `muon`. Raises `UserError` if the project does not have it."""
    try:
        return import_module(".muon", __package__)
    except ModuleNotFoundError as error:
        what = "this project was made without muon"
        remedy = "choose adamw, or add the extra muon through `copier update`"
        raise UserError(what, "optimizer.name muon", remedy) from error


def decay_groups(weights: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Group the trained weights: matrices get weight decay, biases and norms get none."""
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

    The warm-up is linear, except for OneCycle. With `auto` it takes 100 steps, but at most a tenth
    of the run, so that a short run has time to decay; for OneCycle it takes 30 % of the run.
    `final_factor` holds at the end, but OneCycle has an end of its own.
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
    """Scales the initial learning rate of each parameter group, in a run of `total` steps.

    learning_rate: the value for metrics, that of groups made with `optimizer.learning_rate`.
    """

    def __init__(self, optimizer: Any, settings: Any, total: int):
        self.optimizer = optimizer  # not its groups: loading a state replaces them
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
    """Exclude the objects that exist after the first step from garbage collection.

    They live as long as the run, and collecting among them pauses large projects for up to 500 ms
    (karpathy/nanochat, pytorch/torchtitan).
    """
    gc.collect()
    gc.freeze()


def describe(
    settings: Settings, distributed: Distributed, decided: dict[str, tuple[str, str]]
) -> list[dict[str, str]]:
    """List the optimizations with state and reason, for the start of a run and `env.json`.

    decided: state and reason of those that are known only after the model is built.
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
        "processes": (distributed.world, "one device each"),
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
