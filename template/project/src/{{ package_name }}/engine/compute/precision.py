"""The number format of a step, its loss scale, and the mean and clipping of gradients.

`training.precision` chooses one of these:
* tf32: matmuls on tensor cores with 10 bits of mantissa, about 3.3 digits; memory and
  reproducibility are those of fp32. The peak is 8× that of fp32 on A100, and 1× on GeForce
  30/40/50. Before sm 8.0 there is no TF32.
* bf16: the range of fp32, about 2.4 digits, no loss scaling. Before sm 8.0 it is emulated and slow.
* fp16: the speed of bf16, but a narrow range; gradients are scaled, and a step that overflows is
  skipped.
* fp8: as bf16, but linear layers inside blocks multiply in fp8 (`engine/compute/fp8.py`, if the
  project has it).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
SCALE = 65536.0  # GradScaler's default, for a mean loss; here it is a sum over targets


class Precision:
    """Autocast and loss scaling of one resolved precision.

    name: fp32 | tf32 | fp16 | bf16 | fp8 (`gpus.resolve_precision` has turned `auto` into one).
    """

    def __init__(self, name: str, device: torch.device):
        self.name = name
        self.device = device
        self.dtype = HALF.get(name)
        self.calibrate(1.0)
        # TF32 in float32 matmuls, and in cuDNN's convolutions and RNNs, which by default use it
        # even with "highest". The newer flags `fp32_precision` stay unset: setting both kinds makes
        # later reads raise an error.
        tf32 = name == "tf32" or self.dtype is not None
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32

    def autocast(self) -> Any:
        """Return the context for the forward; weights and the loss stay float32."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def calibrate(self, total_weight: float) -> None:
        """Fit the first loss scale to gradients of a sum over so many targets.

        Otherwise, about the first 10 steps would overflow. Without fp16, the scaler does nothing.
        """
        exponent = math.ceil(math.log2(max(total_weight, 1.0)))
        scale = SCALE / 2**exponent
        enabled = self.name == "fp16"
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=scale, enabled=enabled)

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:  # another precision saves none
            self.scaler.load_state_dict(state)


def mean_and_clip(optimizer: torch.optim.Optimizer, divisor: Tensor, clip: float) -> Tensor:
    """Divide the summed gradients by `divisor`, and clip their norm to `clip` (0: no clipping).

    One pass does both: g / divisor, or g / norm * clip if that is smaller. Returns the norm () of
    the means before clipping, without a host sync.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if hasattr(norm, "full_tensor"):  # FSDP has sharded all gradients
        norm = norm.full_tensor()
        gradients = [own(gradient) for gradient in gradients]
    larger = torch.maximum(divisor, norm / clip) if clip else divisor
    torch._foreach_div_(gradients, larger)
    return norm / divisor


def own(tensor: Any) -> Any:
    """Return this rank's rows of a tensor that FSDP has sharded, or another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
