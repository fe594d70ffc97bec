"""Count the costs of a step without computing it, and estimate the shortest time on a card.

The step runs on fake tensors, which have shapes but no memory, so that a CPU can count models of
any size. The time of an operation is a roofline (Williams et al., 2009): its FLOPs at the card's
dense peak, or its bytes at the card's bandwidth, whichever takes longer. A step takes at least the
time that the host needs to launch its operations. Real steps are slower: no kernel reaches a peak.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..engine.compute.gpu_table import Gpu
from ..engine.compute.optimization import checkpoint_blocks
from ..engine.interfaces import Batch

aten = torch.ops.aten
LSTM = (aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward)  # one layer, inputs (T, B, C)
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
CONTEXT_BYTES = 0.8e9  # CUDA's own memory, and memory that the allocator cannot use
USABLE = 0.93  # fraction of the sold memory that a driver reports
UPDATE_PASSES = 10  # passes over all weights: norm, division, and AdamW's reads and writes
UPDATE_KERNELS = 20
LSTM_GATES = 4  # cuDNN keeps four gates for backward, each as large as the outputs
# On fake CPU tensors, fused attention has no formula, so use the GPU's.
FORMULAS = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        aten._scaled_dot_product_flash_attention_backward
    ),
}
CHUNKED_LOSS = "torch_nn._linear_cross_entropy_batch_chunked"  # functional.linear_cross_entropy
NO_KERNEL = ("aten._unsafe_view", "aten.detach", "aten.empty", "aten.new_empty", "prim.")


class Operation(NamedTuple):
    """The work of one kernel; equal kernels are counted together."""

    flops: float
    bytes: float  # read and written, assuming no cache
    half: bool  # whether it multiplies 16-bit numbers


@dataclass
class Costs:
    """The costs of one micro-batch, forward and backward, with bytes on the card."""

    samples: int
    parameters: int
    weight_bytes: int  # including buffers
    batch_bytes: int
    operations: Counter[Operation] = field(default_factory=Counter)
    forward_bytes: int = 0  # peak in forward
    peak_bytes: int = 0  # peak in forward and backward, including gradients
    optimizer_bytes: int = 0  # 0 is AdamW, with two numbers per parameter

    @property
    def parts(self) -> dict[str, int]:
        """The memory in bytes by its use, without CUDA's own memory."""
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
    """While active, counts each operation and the bytes in use."""

    def __init__(self, costs: Costs, half_lstm: bool = False):
        super().__init__()
        self.costs = costs
        self.half_lstm = half_lstm  # whether to count LSTMs in float32 as 16-bit numbers
        self.live = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if getattr(func, "is_view", False) or str(packet).startswith(NO_KERNEL):
            return result
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        flops = _flops(packet, args, kwargs or {}, result)
        moved: float = sum(tensor.nbytes for tensor in (*inputs, *outputs))
        half = bool(inputs) and inputs[0].dtype in (torch.float16, torch.bfloat16)
        # The steps of an LSTM wait for each other, so each one is a small kernel of its own.
        steps = args[0].shape[0] if packet in LSTM else 1
        size_of_number = 1.0  # size on the device, relative to the counted size
        if self.half_lstm and packet in LSTM and not half:
            half = True
            size_of_number = 0.5
        moved *= size_of_number
        self.costs.operations[Operation(flops / steps, moved / steps, half)] += steps
        self._hold_outputs(inputs, outputs, size_of_number)
        if packet is aten.mkldnn_rnn_layer:
            output, *_, workspace = outputs  # backward needs the workspace
            self._hold_until_freed(int(LSTM_GATES * size_of_number * output.nbytes), workspace)
        return result

    def _hold_outputs(self, inputs: list[Tensor], outputs: list[Tensor], factor: float) -> None:
        """Count the memory of new outputs until they are freed."""
        known = {_key(tensor) for tensor in inputs}
        for tensor in outputs:
            if _key(tensor) not in known:
                known.add(_key(tensor))
                size = int(tensor.untyped_storage().nbytes() * factor)
                self._hold_until_freed(size, tensor)

    def _hold_until_freed(self, size: int, tensor: Tensor) -> None:
        self._hold(size)
        weakref.finalize(tensor.untyped_storage(), self._hold, -size)

    def _hold(self, size: int) -> None:
        self.live += size
        self.costs.peak_bytes = max(self.costs.peak_bytes, self.live)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _flops(packet: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return the FLOPs of products, attention and LSTMs, two per multiply-add."""
    if packet in LSTM:
        inputs, first, second = args[:3]  # (T, B, C), and the weights of input and state
        forward = 2.0 * inputs.shape[0] * inputs.shape[1] * (first.numel() + second.numel())
        return forward if packet is aten.mkldnn_rnn_layer else 2 * forward
    if str(packet) == CHUNKED_LOSS:  # its forward also computes the gradients
        return 6.0 * args[0].numel() * args[1].shape[0]
    formula = flop_registry.get(FORMULAS.get(packet, packet))
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=result))


def count(
    build: Callable[[], Any],
    batch: Batch,
    precision: str,
    checkpointing: bool = False,
    optimizer: str = "",
    on_gpu: bool = False,
) -> Costs:
    """Count the costs of one micro-batch.

    build: builds the model without optimizations. batch: only its shapes are used. on_gpu: whether
    LSTMs compute in half precision under autocast, as cuDNN's do. Raises the model's error if it
    needs values, for example in a branch on `.item()`.
    """
    with FakeTensorMode():
        model = build()
        if checkpointing:
            checkpoint_blocks(model.blocks())
        fake = {}
        for name, value in batch.items():
            fake[name] = torch.empty(value.shape, dtype=value.dtype)
        weights = (*model.parameters(), *model.buffers())
        bytes_of_storage = {_key(weight): weight.nbytes for weight in weights}
        costs = Costs(
            samples=len(fake["index"]),
            parameters=sum(x.numel() for x in model.parameters() if x.requires_grad),
            weight_bytes=sum(bytes_of_storage.values()),
            batch_bytes=sum(value.nbytes for value in fake.values()),
        )
        costs.optimizer_bytes = _optimizer_bytes(model, optimizer, costs.parameters)

        autocast: Any = nullcontext()
        if precision in HALF:
            autocast = torch.autocast("cpu", HALF[precision])
        with Recorder(costs, half_lstm=on_gpu and precision in HALF):
            with autocast:
                output = model(fake)
            costs.forward_bytes = costs.peak_bytes
            output.loss.backward(gradient=output.total_weight)
    return costs


def _optimizer_bytes(model: Any, optimizer: str, parameters: int) -> int:
    if optimizer == "adafactor":
        return sum(_adafactor_bytes(weight) for weight in model.parameters())
    if optimizer == "muon":
        muon: Any = import_module("..muon", __package__)
        in_muon = sum(weight.numel() for weight in muon.inner_matrices(model))
        return 8 * parameters - 4 * in_muon
    return 0


def _adafactor_bytes(weight: Tensor) -> int:
    """Return the bytes of Adafactor's means, one per row and one per column of a matrix."""
    if not weight.requires_grad:
        return 0
    sides = weight.shape[-2:] if weight.dim() > 1 else (1,)
    return 4 * sum(weight.numel() // side for side in sides)


class Device(NamedTuple):
    """The rates of a card, or of this CPU, for a roofline; all are per second."""

    name: str
    precision: str
    flops: float  # products in fp32 or TF32
    half_flops: float
    bandwidth: float  # bytes
    memory: float  # bytes
    launch: float = 0.0  # seconds that the host needs per operation
    is_host: bool = False  # launches and computes in turn, not at the same time

    def fits(self, costs: Costs) -> bool:
        return self.is_host or costs.memory + CONTEXT_BYTES <= USABLE * self.memory

    def step(self, costs: Costs, accumulation: int = 1) -> tuple[float, str]:
        """Return the shortest time of a step, and what limits it: compute, memory or launch."""
        compute = 0.0
        memory = 0.0
        for (flops, size, half), count in costs.operations.items():
            flops_time = flops / (self.half_flops if half else self.flops)
            bytes_time = size / self.bandwidth
            if flops_time > bytes_time:
                compute += count * flops_time
            else:
                memory += count * bytes_time
        update = UPDATE_PASSES * 4 * costs.parameters / self.bandwidth
        bounds = {"compute": accumulation * compute, "memory": accumulation * memory + update}

        device = sum(bounds.values())
        launch = self.launch * (accumulation * costs.kernels + UPDATE_KERNELS)
        if self.is_host or launch > device:
            bounds["launch"] = launch
        seconds = device + launch if self.is_host else max(device, launch)
        return seconds, max(bounds, key=lambda name: bounds[name])


def card(gpu: Gpu, precision: str, launch: float = 0.0) -> Device:
    """Return a card as a device. launch: seconds that the host needs per operation."""
    # Some cards have no published fp32 peak; it is at most the lowest other one.
    full = gpu.tflops.get("fp32", min(gpu.tflops.values()))
    if precision != "fp32":
        full = gpu.tflops.get("tf32", full)
    half_name = "bf16" if precision == "fp8" else precision
    return Device(
        gpu.key,
        precision,
        flops=full * 1e12,
        half_flops=gpu.tflops.get(half_name, full) * 1e12,
        bandwidth=gpu.bandwidth_gb_s * 1e9,
        memory=gpu.memory_gb * 1e9,
        launch=launch,
    )
