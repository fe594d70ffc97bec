"""What makes the step fast apart from number formats: compile, recomputation, fused optimizer, memory, GC.

Each has its switch in `config.yaml`, and `describe` says at every start what is on and why.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

FP8 = "evaluation in bf16; without compile and on small models it loses time"
# Triton supports sm 8.0 and later; older cards run its kernels by luck (triton#10918).
COMPILE_CAPABILITY = (8, 0)
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that record them


def prepare_process() -> None:
    """Before anything large is allocated: how torch takes memory from CUDA and from the system.

    Segments that grow in place, so that odd shapes do not fragment memory: instead of `empty_cache()`,
    which costs time and frees nothing live. Both names, old and new: CUDA reads one and ignores the other.
    And huge pages for large tensors on the host: filling a new one takes a tenth of the time (1 against
    10 GB/s where they are `madvise`).
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = next((os.environ[name] for name in names if name in os.environ), "expandable_segments:True")
    for name in names:
        os.environ.setdefault(name, given)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Recomputes each block's activations in backward: about half of the memory for a fifth more time.

    Off in evaluation. `training.gradient_checkpointing`.
    """
    for block in blocks:
        if not getattr(block, "recomputes", True):  # a head: its backward follows its forward at once
            continue
        block.forward = _recomputed(block.forward)


def _recomputed(forward: Any) -> Any:
    @functools.wraps(forward)
    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


def compiles(settings: Any, capability: tuple[int, int] | None) -> tuple[bool, str]:
    """Whether blocks are compiled on a GPU of this capability, or on a CPU for None, and why."""
    if settings.compile.enabled != "auto":
        return settings.compile.enabled, "set by compile.enabled"
    if capability is None:
        return False, "auto: on a CPU compiling costs more than a short run gains"
    if capability < COMPILE_CAPABILITY:
        return False, f"auto: Triton does not support sm {'.'.join(map(str, capability))}"
    return True, "auto: block by block"


def compile_blocks(blocks: list[nn.Module], settings: Any) -> tuple[int, list[str]]:
    """Compiles blocks in place; returns how many, and the names of those left alone.

    Per block: a fifth of the whole model's compile time, and state_dict keys stay as they are. cuDNN's
    RNNs are left alone: Dynamo breaks the graph there, and nothing is faster. Stock modules compile to
    nothing in place, silently, hence `fullgraph`. A block that calls itself `ragged` has other shapes in
    each batch: any shape from the start on, else torch gives up at the ninth that it compiles for.
    """
    options = settings.compile
    skipped = []
    for block in blocks:
        dynamic = getattr(block, "ragged", None) if options.dynamic == "auto" else options.dynamic
        if any(isinstance(part, nn.RNNBase) for part in block.modules()):
            skipped.append(f"{type(block).__name__} (an RNN)")
        elif type(block).__module__.startswith("torch.nn"):
            skipped.append(f"{type(block).__name__} (a stock module)")
        else:
            block.compile(mode=options.mode, dynamic=dynamic, fullgraph=options.fullgraph)
            if options.mode in CUDA_GRAPHS:
                _eager_without_gradient(block)
    return len(blocks) - len(skipped), skipped


def _eager_without_gradient(block: Any) -> None:
    """Where no backward follows, the graph of one block overwrites another's result (pytorch#152887)."""
    compiled, eager = block._compiled_call_impl, block._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else eager)(*inputs, **named)

    block._compiled_call_impl = call


def make_optimizer(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """AdamW or Adafactor; weight decay on matrices only: biases, norms and scales have no reason to shrink.

    fused: one kernel for all parameters, on CUDA and CPU, which also takes fp16's overflow flag on the
    device. Adafactor (Shazeer & Stern 2018) has none, and takes the learning rate relative to the size of
    each weight; betas and epsilon have no effect on it.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=settings.learning_rate)
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=settings.fused,
        foreach=None if settings.fused else False,
    )


@contextmanager
def reserved(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While open: the memory of AdamW's two averages is taken, which else the first step allocates.

    What fits and what is left free then show before it.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    adam = isinstance(optimizer, torch.optim.AdamW)
    held = [torch.empty_like(parameter) for parameter in parameters for _ in range(2)] if adam else []
    yield
    held.clear()


def freeze_garbage() -> None:
    """After the first step: the collector no longer walks over what lives as long as the run.

    Its pauses reach 500 ms in large projects (karpathy/nanochat, pytorch/torchtitan).
    """
    gc.collect()
    gc.freeze()


def describe(
    settings: Any, device: torch.device, precision: tuple[str, str], blocks: dict[str, Any]
) -> list[dict]:
    """What is on and why: [{"name", "state", "why"}], printed at the start and kept in `env.json`.

    precision: resolved name and reason. blocks: what `assemble` did with them,
    {"compiled", "skipped", "checkpointed", "why", "fp8", "world"}.
    """
    training, accumulation = settings.training, settings.training.gradient_accumulation_steps
    tf32 = torch.backends.cuda.matmul.allow_tf32
    samples, each = (
        f"{settings.data.batch_size} × {accumulation}",
        " and process" if blocks["world"] > 1 else "",
    )
    skipped = f"; left alone: {', '.join(blocks['skipped'])}" if blocks["skipped"] else ""
    compiled = f"{blocks['compiled']} blocks, mode {settings.compile.mode}" if blocks["compiled"] else "off"
    rows = [
        ("precision", precision[0], precision[1]),
        ("TF32 in matmuls", _on(tf32), f"float32 matmul precision is {torch.get_float32_matmul_precision()}"),
        ("TF32 in cuDNN", _on(torch.backends.cudnn.allow_tf32), "follows the precision"),
        (
            "cuDNN benchmark",
            _on(torch.backends.cudnn.benchmark),
            "training.cudnn_benchmark; pays for convolutions only",
        ),
        *([("fp8", f"{blocks['fp8']} layers", FP8)] if blocks["fp8"] else []),
        ("compile", compiled, blocks["why"] + skipped),
        (
            "fused optimizer",
            _on(settings.optimizer.fused and settings.optimizer.name == "adamw"),
            f"optimizer.fused, {settings.optimizer.name}",
        ),
        ("recomputation", _on(blocks["checkpointed"]), "training.gradient_checkpointing"),
        *([("processes", str(blocks["world"]), "a device each")] if blocks["world"] > 1 else []),
        ("accumulation", str(accumulation), f"{samples} samples a step{each}"),
        ("gradient clip", str(training.gradient_clip or "off"), "training.gradient_clip"),
        (
            "pinned memory",
            _on(settings.data.pin_memory and device.type == "cuda"),
            "data.pin_memory, with CUDA only",
        ),
        ("deterministic", _on(settings.reproducibility.deterministic), "reproducibility.deterministic"),
    ]
    return [{"name": name, "state": state, "why": why} for name, state, why in rows]


def _on(value: bool) -> str:
    return "on" if value else "off"
