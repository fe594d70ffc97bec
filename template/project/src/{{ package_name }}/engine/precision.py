"""The arithmetic of a step: precision, loss scaling, gradient clipping and the update.

`training.precision` chooses one of these:
* tf32: matmuls on tensor cores with 10 bits of mantissa, about 3.3 digits; memory and
  reproducibility are those of fp32. The peak is 8× that of fp32 on A100, and 1× on GeForce
  30/40/50. Before sm 8.0 there is no TF32.
* bf16: the range of fp32, about 2.4 digits, no loss scaling. Before sm 8.0 it is emulated and slow.
* fp16: the speed of bf16, but a narrow range; gradients are scaled, and a step that overflows is
  skipped.
* fp8: as bf16, but linear layers inside blocks multiply in fp8 (`engine/fp8.py`, if the project has
  it).
"""

from __future__ import annotations

import math
import timeit
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .shards import own

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
SCALE = 65536.0  # GradScaler's default, for a mean loss; here it is a sum over `weight` targets


class Precision:
    """Autocast, loss scaling and the guarded optimizer step of one resolved precision.

    name: fp32 | tf32 | fp16 | bf16 | fp8 (`gpus.resolve_precision` has turned `auto` into one).
    """

    def __init__(self, name: str, device: torch.device):
        self.name = name
        self.device = device
        self.dtype = HALF.get(name)
        # If it is disabled, it leaves gradients as they are.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=name == "fp16")
        self._skipped: Tensor | float = 0.0  # steps that overflowed; on the device
        # TF32 in float32 matmuls, and in cuDNN's convolutions and RNNs, which by default use it
        # even with "highest". The newer flags `fp32_precision` stay unset: setting both kinds makes
        # later reads raise an error.
        tf32 = name == "tf32" or self.dtype is not None
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32

    def autocast(self) -> Any:
        """Return the context for the forward; weights and the loss stay float32."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def calibrate(self, weight: float) -> None:
        """Fit the scale to gradients of a sum over `weight` targets.

        Otherwise, about the first 10 steps would overflow.
        """
        if self.scaler.is_enabled():
            exponent = math.ceil(math.log2(max(weight, 1.0)))
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=SCALE / 2**exponent)

    def scale(self, gradient: Tensor) -> Tensor:
        """Return the gradient that backward starts from, times the loss scale."""
        return self.scaler.scale(gradient)

    def step(self, optimizer: Any, clip: float, divisor: Tensor) -> Tensor:
        """Unscale, divide by `divisor`, clip to the norm `clip` (0 = off), step, clear.

        With a fused optimizer there is no host sync. `optimizer` may be a framework's wrapper with
        the real one at `.optimizer`: the wrapper's `step()` keeps the framework's count, and the
        real one gets the overflow flag. Returns the norm before division and clipping, a scalar on
        the device.
        """
        raw = getattr(optimizer, "optimizer", optimizer)
        self.scaler.unscale_(raw)
        parameters = (parameter for group in raw.param_groups for parameter in group["params"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if hasattr(norm, "full_tensor"):  # the norm of a sharded model is a DTensor
            norm = norm.full_tensor()

        # One pass over the gradients divides and clips: g / divisor, or g / norm * clip if that is
        # smaller.
        whole = torch.maximum(divisor, norm / clip) if clip else divisor
        torch._foreach_div_([own(gradient) for gradient in gradients], whole)

        if self.scaler.is_enabled():
            self._guarded(optimizer, raw)
        else:
            optimizer.step()
        raw.zero_grad(set_to_none=True)
        return norm

    def _guarded(self, optimizer: Any, raw: Any) -> None:
        """Step, unless there was an overflow.

        A fused kernel skips the step by itself; otherwise the flag is read once. `scaler.step()`
        does not see through a framework's wrapper, and would let the overflow into the weights.
        """
        overflow = sum(self.scaler._found_inf_per_device(raw).values())
        self._skipped = self._skipped + (overflow > 0)
        fused = getattr(raw, "_step_supports_amp_scaling", False)
        if fused:
            raw.found_inf = overflow
        elif overflow:  # host sync: the price of an unfused optimizer under fp16
            raw.zero_grad(set_to_none=True)  # no gradients, no update; a framework counts the step
        optimizer.step()
        if fused:
            raw.found_inf = None
        self.scaler.update()

    def skipped(self) -> float:
        """Return how many steps overflowed since the last call (host sync)."""
        count = float(self._skipped)
        self._skipped = 0.0
        return count

    def state_dict(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict(), "skipped": float(self._skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
            self._skipped = state["skipped"]


def cost_on_cpu(name: str, in_float32: str = "") -> str:
    """Measure what fp16 or bf16 costs on this CPU.

    It takes a few hundredths of a second, and draws no random numbers. in_float32: the part of the
    model that computes in float32 even so.
    """
    values = torch.full((256, 256), 0.01)
    seconds = []
    for half in (True, False):
        with torch.autocast("cpu", HALF[name], enabled=half):
            times = timeit.repeat(lambda: functional.linear(values, values), number=1, repeat=4)
        seconds.append(min(times))  # the first call prepares the kernel
    ratio = seconds[0] / seconds[1]
    text = f"{name} on this CPU: a matrix product takes {ratio:.1f}× as long as in fp32 (measured)"
    if in_float32:
        text += f"; {in_float32} computes in float32"
    return text
