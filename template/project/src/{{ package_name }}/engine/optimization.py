"""What makes the step fast apart from number formats: compile, recomputation, fused optimizer, memory, GC.

Each has its switch in `config.yaml`, and `describe` says at every start what is on and why. The learning
rate is a formula of the step: warm-up + cosine, OneCycle, linear, constant.
"""

from __future__ import annotations

import functools
import gc
import math
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .errors import UserError, out_of_memory
from .progress import random_state, set_random_state
from .seams import Output, keeps

if TYPE_CHECKING:
    from ..assemble import Project
    from ..config import Schedule as ScheduleSettings
    from ..config import Settings
    from .distributed import Distributed
    from .gpus import Capability

# Triton supports sm 8.0 and later; older cards run its kernels by luck (triton#10918).
COMPILE_CAPABILITY = (8, 0)
ONECYCLE_START = 1 / 25  # first learning rate over the peak (Smith & Topin 2018; PyTorch's OneCycleLR)
ONECYCLE_END = ONECYCLE_START / 1e4
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes that record them


def set_deterministic(enabled: bool, cudnn_benchmark: bool) -> None:
    """Strict mode: an operation without a deterministic form raises. Costs some percent of speed.

    Never `warn_only`: a warning is not determinism. TF32 is deterministic and stays as `precision` says.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS and cuDNN's LSTM ask for it
    if enabled != torch.are_deterministic_algorithms_enabled():  # it loads the compiler: seconds of a start
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled
    # Tunes convolutions per shape: pays for fixed shapes only, and may pick another kernel in the next run.
    torch.backends.cudnn.benchmark = cudnn_benchmark and not enabled


def checkpoint_blocks(blocks: list[nn.Module]) -> None:
    """Recomputes each block's activations in backward: about half of the memory for a fifth more time.

    Off in evaluation. `training.gradient_checkpointing`.
    """
    for block in blocks:
        if getattr(block, "recomputes", True):  # not a head, whose backward follows its forward at once
            block.forward = _recomputed(block.forward)


def _recomputed(forward: Any) -> Any:
    @functools.wraps(forward)
    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


def compiles(settings: Settings, capability: Capability | None) -> tuple[bool, str]:
    """Whether blocks are compiled on a GPU of this capability, or on a CPU for None, and why."""
    if settings.compile.enabled != "auto":
        return settings.compile.enabled, "set by compile.enabled"
    if capability is None:
        return False, "auto: on a CPU compiling costs more than a short run gains"
    if capability < COMPILE_CAPABILITY:
        return False, f"auto: Triton does not support sm {'.'.join(map(str, capability))}"
    return True, "auto: block by block"


def compile_blocks(blocks: list[Any], settings: Settings, capability: Capability | None) -> tuple[str, str]:
    """Compiles blocks in place, where `compiles` says so; returns how many and why, for `describe`.

    Per block: a fifth of the whole model's compile time, and state_dict keys stay as they are. cuDNN's
    RNNs are left alone: Dynamo breaks the graph there, and nothing is faster. Stock modules compile to
    nothing in place, silently, hence `fullgraph`. A block that calls itself `ragged` has other shapes in
    each batch: any shape from the start on, else torch gives up at the ninth that it compiles for.
    """
    enabled, why = compiles(settings, capability)
    if not enabled:
        return "off", why
    options, skipped = settings.compile, []
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
    compiled = len(blocks) - len(skipped)
    why += f"; left alone: {', '.join(skipped)}" if skipped else ""
    return f"{compiled} blocks, mode {options.mode}" if compiled else "off", why


def _eager_without_gradient(block: Any) -> None:
    """Where no backward follows, the graph of one block overwrites another's result (pytorch#152887)."""
    compiled, eager = block._compiled_call_impl, block._call_impl

    def call(*inputs: Any, **named: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else eager)(*inputs, **named)

    block._compiled_call_impl = call


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan 2024) for its first group of matrices, AdamW for the others: torch's two as one.

    Muon's update is the mean of gradients made orthogonal, in bfloat16, scaled to the size of AdamW's (Liu et
    al. 2025), so that one learning rate and weight decay suit both. One average a matrix instead of two. Of
    a sharded matrix, whose rows are exchanged, it is that of the whole.
    """

    def __init__(self, matrices: list[Tensor], others: list[dict[str, Any]], decay: float, **options: Any):
        rate = options["lr"]
        muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.parts = muon, torch.optim.AdamW(others, **options)
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """One step of both. Groups are handed on each time: loading a state puts new ones in their place."""
        loss = closure() if closure is not None else None  # a framework's
        for part, groups in zip(self.parts, (self.param_groups[:1], self.param_groups[1:]), strict=True):
            part.param_groups, part.state = groups, self.state
            part.step()
        return loss


def inner_matrices(model: Any) -> list[Tensor]:
    """Trained weights (out, in) inside of blocks, for Muon: not those of embeddings and heads."""
    embeddings = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
    apart = {id(weight) for weight in embeddings}
    blocks = [block for block in model.blocks() if getattr(block, "recomputes", True)]
    weights = {id(weight): weight for block in blocks for weight in block.parameters()}
    return [w for key, w in weights.items() if key not in apart and w.dim() == 2 and w.requires_grad]


def make_optimizer(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """AdamW, Adafactor or Muon; weight decay on matrices only: biases and norms have no reason to shrink.

    fused: one kernel for all parameters, on CUDA and CPU, which also takes fp16's overflow flag on the
    device. Adafactor (Shazeer & Stern 2018) has none, and takes the learning rate relative to the size of
    each weight; betas and epsilon have no effect on it. Raises `UserError` where Muon finds no matrix.
    """
    matrices = inner_matrices(model) if settings.name == "muon" else []
    if settings.name == "muon" and not matrices:
        remedy = "choose adamw, or name your layers in blocks()"
        raise UserError("no block of the model has a matrix to train", "optimizer.name muon", remedy)
    own = set(map(id, matrices))
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=settings.learning_rate)
    betas, foreach = (settings.beta1, settings.beta2), None if settings.fused else False
    options: dict[str, Any] = {"lr": settings.learning_rate, "betas": betas, "eps": settings.epsilon}
    options |= {"fused": settings.fused, "foreach": foreach}
    if matrices:
        return MuonAdamW(matrices, groups, settings.weight_decay, **options)
    return torch.optim.AdamW(groups, **options)


def factor(schedule: ScheduleSettings, step: int, total: int) -> float:
    """Learning rate of step `step` (from 0) over its peak, for a run of `total` steps.

    schedule: the settings. The warm-up is linear but for OneCycle; `auto` leaves a short run time to decay:
    100 steps, or a tenth, and 30 % for OneCycle. The final factor is the end's; OneCycle has its own.
    """
    name, given, final = schedule.name, schedule.warmup_steps, schedule.final_factor
    warmup = 0 if given == "auto" else given
    if given == "auto":
        warmup = round(0.3 * total) if name == "onecycle" else min(100, total // 10)
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
    """Scales the learning rate that each parameter group was made with; `total` steps is the run's length.

    learning_rate: what stands in rows, that of a group made with `optimizer.learning_rate`.
    """

    def __init__(self, optimizer: Any, settings: Any, total: int):
        self.optimizer = optimizer  # not its groups: loading a state puts new ones in their place
        self.settings, self.total = settings.schedule, total
        self.peak = self.learning_rate = settings.optimizer.learning_rate
        self.peaks = [group["lr"] for group in optimizer.param_groups]

    def set(self, step: int) -> None:
        """Prepares the optimizer for step number `step` (from 0)."""
        share = factor(self.settings, step, self.total)
        self.learning_rate = self.peak * share
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "name": self.settings.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `UserError` where the run's length or schedule is another than the checkpoint's."""
        if state != self.state_dict():
            was, now = f"{state['name']} over {state['total']}", f"{self.settings.name} over {self.total}"
            what = f"the schedule changed from {was} steps to {now}: a resumed run would not be the same"
            remedy = "keep epochs, max_steps, batch size and schedule, or start a new run"
            raise UserError(what, "--resume", remedy)


def dry_run(project: Project, loader: Any) -> float:
    """One forward and backward before step 0, so that memory and compile errors show now, not at night.

    Leaves no trace: random state, buffers and gradients are put back. Returns the batch's weight. Raises
    `UserError` for a model that breaks its contract, or has too little memory.
    """
    state = random_state()
    buffers = {name: buffer.clone() for name, buffer in project.model.named_buffers()}
    batches = loader.epoch(0)
    batch = next(batches)
    held = averages(project.optimizer)
    try:
        with project.precision.autocast():
            output = project.model(batch)  # as it is: without the exchange of gradients
        keeps(Output._fields, output, f"the {type(output).__name__} that forward returns")
        output.loss.backward(gradient=output.weight)
    except torch.cuda.OutOfMemoryError as error:
        if project.distributed.forward_exchanges:  # the others wait inside it: ending ends them
            raise
        raise out_of_memory(project.settings, loader.order.batch_size) from error
    del held
    batches.close()
    project.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in project.model.named_buffers():
            buffer.copy_(buffers[name])
    set_random_state(state)
    return float(output.weight)


def averages(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """As much memory as AdamW's two averages, or Muon's one, will take in the first step: what fits shows."""
    held: list[Tensor] = []
    for group in optimizer.param_groups:
        count = 2 if "betas" in group else int("momentum" in group)
        held += [torch.empty_like(parameter) for parameter in group["params"] * count]
    return held


def freeze_garbage() -> None:
    """After the first step: the collector no longer walks over what lives as long as the run.

    Its pauses reach 500 ms in large projects (karpathy/nanochat, pytorch/torchtitan).
    """
    gc.collect()
    gc.freeze()


def describe(
    settings: Settings, distributed: Distributed, decided: dict[str, tuple[str, str]]
) -> list[dict[str, str]]:
    """What is on and why: [{"name", "state", "why"}], printed at the start and kept in `env.json`.

    decided: state and why of what only the building of the model could tell.
    """
    training, backends, world = settings.training, torch.backends, distributed.world
    accumulation = training.gradient_accumulation_steps
    fused = settings.optimizer.fused and settings.optimizer.name != "adafactor"
    pinned = settings.data.pin_memory and distributed.device.type == "cuda"
    matmuls = f"float32 matmul precision is {torch.get_float32_matmul_precision()}"
    rows = decided | {
        "TF32 in matmuls": (_on(backends.cuda.matmul.allow_tf32), matmuls),
        "TF32 in cuDNN": (_on(backends.cudnn.allow_tf32), "follows the precision"),
        "cuDNN benchmark": (_on(backends.cudnn.benchmark), "training.cudnn_benchmark, for convolutions"),
        "fused optimizer": (_on(fused), "optimizer.fused, AdamW only"),
        "recomputation": (_on(training.gradient_checkpointing), "training.gradient_checkpointing"),
        "processes": (str(world), "a device each"),
        "accumulation": (str(accumulation), "training.gradient_accumulation_steps"),
        "rest of an epoch": ("by its share", "its last samples, where they are fewer than a step has"),
        "gradient clip": (str(training.gradient_clip or "off"), "training.gradient_clip"),
        "pinned memory": (_on(pinned), "data.pin_memory, with CUDA only"),
        "deterministic": (_on(settings.reproducibility.deterministic), "reproducibility.deterministic"),
    }
    return [{"name": name, "state": state, "why": why} for name, (state, why) in rows.items()]


def _on(value: bool) -> str:
    return "on" if value else "off"
