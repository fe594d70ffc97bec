"""The optimizations of the model's blocks: torch.compile and activation checkpointing.

Settings in `config.yaml` control them, and `describe` reports at every start what is on and why.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import UserError

if TYPE_CHECKING:
    from ..settings.config import Settings
    from .distributed import Distributed
    from .gpus import Capability

# Triton supports sm 8.0 and later; on older GPUs, its kernels may or may not run (triton#10918).
COMPILE_CAPABILITY = (8, 0)
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # compile modes that record CUDA graphs


def set_deterministic(setting: bool | str, cudnn_benchmark: bool) -> None:
    """Make runs deterministic: an operation without a deterministic form raises an error.

    With `warn` it prints a warning. Both cost speed: GPT-2 took 37 % more time a step on an H200.
    TF32 is deterministic, and stays as the precision sets it.
    """
    enabled = bool(setting)
    if enabled:
        # cuBLAS and cuDNN's LSTM require it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This call loads the compiler, which takes seconds, so it is made only to change something.
    if enabled != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(enabled, warn_only=setting == "warn")
    torch.backends.cudnn.deterministic = enabled
    # cuDNN times its kernels for each shape. That pays off for fixed shapes only, and the next run
    # may choose another kernel.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not enabled


# --- blocks


def _checkpointed(forward: Any) -> Any:
    """Return a forward whose activations are checkpointed.

    It is a function of this file, because TorchDynamo compiles no frame of `checkpoint` itself.
    """

    @functools.wraps(forward)
    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


def compiles(settings: Settings, capability: Capability | None) -> tuple[bool, str]:
    """Return whether blocks are compiled on a GPU of this capability (None: a CPU), and why.

    The reason is empty if the setting decides.
    """
    if settings.compile.enabled != "auto":
        return settings.compile.enabled, ""
    if capability is None:
        return False, "on a CPU, compiling takes longer than a short run gains"
    if capability < COMPILE_CAPABILITY:
        return False, f"Triton does not support sm {'.'.join(map(str, capability))}"
    return True, "block by block"


Row = tuple[str, str, object, str]
"""An optimization: its name, the setting that changes it, its state, and the reason."""


def compile_blocks(blocks: list[Any], settings: Settings, capability: Capability | None) -> Row:
    """Compile blocks in place if `compiles` is true; return how many and why, for `describe`.

    Compiling block by block takes a fifth of the compile time of the whole model, and keeps the
    keys of the state_dict. A block with the attribute `ragged` has other shapes in each batch. It
    is compiled for any shape; otherwise torch would give up at the ninth one.
    """
    enabled, why = compiles(settings, capability)
    options = settings.compile
    compilable = [block for block in blocks if enabled and _can_compile(block)]
    records_graphs = options.mode in CUDA_GRAPHS
    if compilable and records_graphs and settings.training.gradient_accumulation_steps > 1:
        what = f"compile.mode {options.mode} overwrites accumulated gradients (pytorch#169545)"
        remedy = "set compile.mode to default or max-autotune-no-cudagraphs, or this to 1"
        raise UserError(what, "training.gradient_accumulation_steps", remedy)
    for block in compilable:
        dynamic: bool | str | None = options.dynamic
        if dynamic == "auto":
            dynamic = getattr(block, "ragged", None)
        block.compile(mode=options.mode, dynamic=dynamic, fullgraph=options.fullgraph)
        if records_graphs:
            _eager_without_gradient(block)
    if enabled and len(compilable) < len(blocks):
        why = "RNNs and modules of torch.nn are not compiled"
    state = "off"
    if compilable:
        details = f"dynamic {options.dynamic}, fullgraph {options.fullgraph}".lower()
        state = f"{len(compilable)} blocks, mode {options.mode}, {details}"
    return "compile", "compile.enabled", state, why


def _can_compile(block: nn.Module) -> bool:
    # Dynamo breaks the graph at cuDNN's RNNs, so nothing would be faster. Compiling a module of
    # torch.nn in place silently does nothing. `fullgraph` turns other silent losses into errors.
    has_rnn = any(isinstance(module, nn.RNNBase) for module in block.modules())
    return not has_rnn and not type(block).__module__.startswith("torch.nn")


def _eager_without_gradient(block: Any) -> None:
    """Run the block eagerly without gradients: CUDA graphs would overwrite results (#152887)."""
    compiled = block._compiled_call_impl
    eager = block._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return compiled(*inputs, **named)
        return eager(*inputs, **named)

    block._compiled_call_impl = call


# --- what is on


def describe(
    settings: Settings, distributed: Distributed, decided: list[Row]
) -> list[dict[str, str]]:
    """List the optimizations with state and reason, for the start of a run and `env.json`.

    A reason begins with the setting. decided: those that are known only after the model is built.
    """
    training = settings.training
    pinned = settings.data.pin_memory and distributed.device.type == "cuda"
    matmul = matmul_precision()
    matmuls = f"also in cuDNN; float32 matmul precision is {matmul}"
    checkpointing = training.gradient_checkpointing
    accumulation = training.gradient_accumulation_steps
    deterministic = settings.reproducibility.deterministic
    exact = "never if deterministic"
    rows = [
        *decided,
        ("TF32 in matmuls", "training.precision", matmul != "highest", matmuls),
        ("cuDNN benchmark", "training.cudnn_benchmark", torch.backends.cudnn.benchmark, exact),
        ("activation checkpointing", "training.gradient_checkpointing", checkpointing, ""),
        ("accumulation", "training.gradient_accumulation_steps", accumulation, ""),
        ("pinned memory", "data.pin_memory", pinned, "with CUDA only"),
        ("deterministic", "reproducibility.deterministic", deterministic, ""),
    ]
    described = []
    for name, setting, state, reason in rows:
        if isinstance(state, bool):
            state = "on" if state else "off"
        value = settings.value(setting)
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, tuple):
            value = ", ".join(value)
        why = f"{setting} {value}"
        if reason:
            why += f": {reason}"
        described.append({"name": name, "state": str(state), "why": why})
    return described


def matmul_precision() -> str:
    """Return torch's word for the precision of float32 matmuls: highest, high or medium."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # model.py has set the newer `fp32_precision`
        matmul = torch.backends.cuda.matmul
        tf32 = matmul.fp32_precision == "tf32"
        # Libraries that read the older setting would raise the same error.
        matmul.allow_tf32 = tf32
        return "high" if tf32 else "highest"
