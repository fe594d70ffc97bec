"""What a step costs, counted and not computed, and the least time that a card needs for it.

The step runs on fake tensors, which have shapes and no memory: a CPU counts what only a large card can run.
Each operation takes the longer of its FLOPs at the card's dense peak and its bytes at its bandwidth (a
roofline: Williams et al., 2009), and the step no less than the host needs to launch its operations. Real
steps take longer, because no kernel reaches a peak.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..engine.gpus import Gpu
from ..engine.optimization import checkpoint_blocks, inner_matrices
from ..engine.seams import Batch

aten = torch.ops.aten
LSTM = (aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward)  # of a layer, inputs (T, B, C)
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
CONTEXT_BYTES = 0.8e9  # CUDA's own, and what its allocator cannot use
USABLE = 0.93  # share of the sold memory that a driver reports
UPDATE_PASSES = 10  # over all weights: norm, division, and what AdamW reads and writes
UPDATE_KERNELS = 20
LSTM_KEPT = 5  # outputs that cuDNN keeps for backward: four gates and the cell
# Fake tensors are of a CPU, whose fused operations have no formula of their own.
ATTENTION = "_scaled_dot_product_flash_attention"
FORMULAS = {
    getattr(aten, f"{ATTENTION}_for_cpu{end}"): getattr(aten, ATTENTION + end) for end in ("", "_backward")
}
CHUNKED_LOSS = "torch_nn._linear_cross_entropy_batch_chunked"  # functional.linear_cross_entropy
NO_KERNEL = ("aten._unsafe_view", "aten.detach", "aten.empty", "aten.new_empty", "prim.")


class Operation(NamedTuple):
    """The work of one kernel; equal ones are counted together."""

    flops: float
    bytes: float  # read and written, as if nothing stayed in a cache
    half: bool  # multiplies numbers of 16 bits


@dataclass
class Costs:
    """Of one micro-batch, forward and backward. Bytes are those on the card."""

    samples: int
    parameters: int
    weight_bytes: int  # and buffers
    batch_bytes: int
    operations: Counter[Operation] = field(default_factory=Counter)
    forward_bytes: int = 0  # at most held at once in forward
    peak_bytes: int = 0  # at most held at once, gradients included
    optimizer_bytes: int = 0  # where it is not AdamW's, two numbers for each parameter

    @property
    def parts(self) -> dict[str, int]:
        """Memory by what holds it; the sum is what the card needs beside CUDA's own."""
        gradients = 4 * self.parameters
        return {
            "weights": self.weight_bytes,
            "gradients": gradients,
            "optimizer": self.optimizer_bytes or 2 * gradients,
            "activations": max(self.forward_bytes, self.peak_bytes - gradients),
            "batches": 2 * self.batch_bytes,
        }

    @property
    def memory(self) -> int:
        return sum(self.parts.values())

    @property
    def flops(self) -> float:
        return sum(operation.flops * count for operation, count in self.operations.items())

    @property
    def bytes(self) -> float:
        return sum(operation.bytes * count for operation, count in self.operations.items())

    @property
    def kernels(self) -> int:
        return sum(self.operations.values())


class Recorder(TorchDispatchMode):
    """Counts each operation that runs inside it, and the bytes that are alive."""

    def __init__(self, costs: Costs, half_lstm: bool = False):
        super().__init__()
        self.costs, self.live = costs, 0
        self.half_lstm = half_lstm  # an LSTM in float32 is counted in numbers of 16 bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if getattr(func, "is_view", False) or str(packet).startswith(NO_KERNEL):
            return result
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        flops = _flops(packet, args, kwargs or {}, result)
        half = bool(given) and given[0].dtype in (torch.float16, torch.bfloat16)
        # An LSTM's steps wait for each other: as many kernels, and none of them large.
        steps = args[0].shape[0] if packet in LSTM else 1
        size_of_number = 1.0  # on the device, against the one that is counted with
        if self.half_lstm and packet in LSTM and not half:
            half = True
            size_of_number = 0.5
        moved = size_of_number * sum(x.nbytes for x in (*given, *made))
        self.costs.operations[Operation(flops / steps, moved / steps, half)] += steps
        known = {_key(x) for x in given}
        for tensor in made:
            if _key(tensor) not in known:
                storage = tensor.untyped_storage()
                size = int(storage.nbytes() * size_of_number)
                if packet is aten.mkldnn_rnn_layer:
                    size *= LSTM_KEPT
                self._hold(size)
                weakref.finalize(storage, self._hold, -size)  # when nothing needs it any more
                known.add(_key(tensor))
        return result

    def _hold(self, size: int) -> None:
        self.live += size
        self.costs.peak_bytes = max(self.costs.peak_bytes, self.live)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _flops(packet: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Of products, attention and LSTMs, two for each multiplication and addition; the rest has bytes only."""
    if packet in LSTM:
        inputs, first, second = args[:3]  # (T, B, C), and the weights of input and state
        forward = 2.0 * inputs.shape[0] * inputs.shape[1] * (first.numel() + second.numel())
        return forward if packet is aten.mkldnn_rnn_layer else 2 * forward
    if str(packet) == CHUNKED_LOSS:  # its forward makes the gradients as well
        return 6.0 * args[0].numel() * args[1].shape[0]
    formula = flop_registry.get(FORMULAS.get(packet, packet))
    return float(formula(*args, **kwargs, out_val=result)) if formula else 0.0


def _adafactor(weight: Tensor) -> int:
    """Bytes of a mean for each row and each column of a matrix, as torch.optim.Adafactor keeps them."""
    sides = weight.shape[-2:] if weight.dim() > 1 else (1,)
    return 4 * weight.requires_grad * sum(weight.numel() // side for side in sides)


def count(
    build: Callable[[], Any],
    batch: Batch,
    precision: str,
    checkpointing: bool = False,
    optimizer: str = "",
    on_gpu: bool = False,
) -> Costs:
    """Costs of one micro-batch; `batch` gives shapes only. build: gives the model without optimizations.

    on_gpu: whether an LSTM computes in half precision under autocast, as cuDNN's does.
    Raises what a model raises that cannot run without values (one that branches on `.item()`).
    """
    with FakeTensorMode():
        model = build()
        if checkpointing:
            checkpoint_blocks(model.blocks())
        fake = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in batch.items()}
        parameters = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        held = {_key(x): x.nbytes for x in (*model.parameters(), *model.buffers())}
        batch_bytes = sum(value.nbytes for value in fake.values())
        costs = Costs(len(fake["index"]), parameters, sum(held.values()), batch_bytes)
        if optimizer == "adafactor":
            costs.optimizer_bytes = sum(map(_adafactor, model.parameters()))
        elif optimizer == "muon":
            costs.optimizer_bytes = 8 * parameters - sum(
                4 * weight.numel() for weight in inner_matrices(model)
            )
        with Recorder(costs, half_lstm=on_gpu and precision in HALF):
            with torch.autocast("cpu", HALF[precision]) if precision in HALF else nullcontext():
                output = model(fake)
            costs.forward_bytes = costs.peak_bytes
            output.loss.backward(gradient=output.weight)
    return costs


class Device(NamedTuple):
    """What a roofline needs of a card, or of this CPU. Rates are per second."""

    name: str
    precision: str
    flops: float  # of products in fp32 or TF32
    half_flops: float
    bandwidth: float  # bytes
    memory: float  # bytes
    launch: float = 0.0  # seconds of the host for an operation
    is_host: bool = False  # launches and computes in turn, not side by side

    def fits(self, costs: Costs) -> bool:
        return self.is_host or costs.memory + CONTEXT_BYTES <= USABLE * self.memory

    def step(self, costs: Costs, accumulation: int = 1) -> tuple[float, str]:
        """Seconds of an optimizer step at best, and what bounds it: compute, memory or launch."""
        compute = memory = 0.0
        for (flops, size, half), count in costs.operations.items():
            by_flops, by_bytes = flops / (self.half_flops if half else self.flops), size / self.bandwidth
            if by_flops > by_bytes:
                compute += count * by_flops
            else:
                memory += count * by_bytes
        update = UPDATE_PASSES * 4 * costs.parameters / self.bandwidth
        bounds = {"compute": accumulation * compute, "memory": accumulation * memory + update}
        device, launch = sum(bounds.values()), self.launch * (accumulation * costs.kernels + UPDATE_KERNELS)
        if self.is_host or launch > device:
            bounds["launch"] = launch
        seconds = device + launch if self.is_host else max(device, launch)
        return seconds, max(bounds, key=lambda name: bounds[name])


def card(gpu: Gpu, precision: str, launch: float = 0.0) -> Device:
    """A row of the table in a resolved precision. launch: seconds of the host for an operation."""
    full = gpu.tflops.get("fp32", min(gpu.tflops.values()))  # unpublished for some: at best the slowest other
    full = full if precision == "fp32" else gpu.tflops.get("tf32", full)
    half = gpu.tflops.get("bf16" if precision == "fp8" else precision, full)
    rates = (full * 1e12, half * 1e12, gpu.bandwidth_gb_s * 1e9, gpu.memory_gb * 1e9)
    return Device(gpu.key, precision, *rates, launch)
