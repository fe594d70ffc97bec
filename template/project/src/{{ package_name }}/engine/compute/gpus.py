"""The GPU of this machine, and the choice of the precision.

This module does not import torch, so that settings are checked and help is printed without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError

if TYPE_CHECKING:
    import torch

# The formats that matrix units compute natively, from a capability on: NVIDIA Volta, Ampere, Ada.
NVIDIA = {(0, 0): "", (7, 0): "fp16", (8, 0): "fp16 bf16 tf32", (8, 9): "fp16 bf16 tf32 fp8"}
# As torch on ROCm numbers AMD's chips. TF32 is in CDNA3 (MI300X) alone. Earlier chips share one
# number between those with fast bf16 (MI200) and without (MI50), so they count as fp16; RDNA2 has
# no matrix units, RDNA3 no fp8.
# https://docs.pytorch.org/docs/2.13/notes/numerical_accuracy.html
AMD = {
    (0, 0): "fp16",
    (9, 4): "fp16 bf16 tf32 fp8",  # CDNA3
    (9, 5): "fp16 bf16 fp8",
    (10, 0): "",  # RDNA2
    (11, 0): "fp16 bf16",  # RDNA3
    (12, 0): "fp16 bf16 fp8",
}

Capability = tuple[int, int]


class Card(NamedTuple):
    """The device that torch computes on: a GPU or the CPU."""

    name: str
    capability: Capability | None  # None on a CPU, where the fields below are 0
    memory_gb: float = 0.0  # GiB, as reported
    sm_count: int = 0
    hip: bool = False  # torch is a ROCm build

    @property
    def sm(self) -> str:
        if self.capability is None:
            return "none"
        return ".".join(map(str, self.capability))


def this_card(device: torch.device | None = None) -> Card:
    """Return the card of `device`; without one, the first GPU that torch sees, or the CPU."""
    import torch

    is_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    if not is_gpu:
        return Card("CPU", None)
    properties = torch.cuda.get_device_properties(device or 0)
    return Card(
        properties.name,
        (properties.major, properties.minor),
        memory_gb=properties.total_memory / 2**30,
        sm_count=properties.multi_processor_count,
        hip=bool(torch.version.hip),
    )


def resolve_precision(name: str, card: Card, emulate: bool = False) -> tuple[str, str]:
    """Return the precision to use for the setting `training.precision`, and why it is another one.

    name: auto, fp32, tf32, fp16, bf16 or fp8. emulate: whether fp8 may be emulated
    (`training.fp8_emulation`).

    Raises `UserError` for bf16 and fp8 on a GPU that lacks them. tf32 becomes fp32 there, since
    only the speed differs. `torch.cuda.is_bf16_supported()` does not help: it counts emulation,
    which is up to 20 times slower (T4, V100).
    """
    where = "training.precision"
    if name == "fp8" and emulate:
        return name, "emulated by training.fp8_emulation, for tests: bf16 is faster"
    if card.capability is None:
        if name == "fp8":
            raise UserError("precision fp8: there is no GPU", where, "choose fp32, or auto")
        if name in ("auto", "tf32"):
            return "fp32", "there is no GPU"
        return name, ""

    title = f"ROCm {card.sm}" if card.hip else f"sm {card.sm}"
    native = features(card.capability, card.hip)
    best = next((choice for choice in ("bf16", "fp16") if choice in native), "fp32")
    if name == "auto":
        return best, f"the fastest that {title} has"
    if name == "tf32" and name not in native:
        return "fp32", f"{title} has no TF32"
    # fp16 saves memory also where it saves no time.
    if name in ("fp32", "fp16") or name in native:
        return name, ""
    what = f"precision {name}: {title} has no {name} tensor cores"
    raise UserError(what, where, f"choose {best}, or auto")


def features(capability: Capability, hip: bool = False) -> frozenset[str]:
    """Return which of fp16, bf16, tf32 and fp8 the matrix units of a GPU compute natively."""
    table = AMD if hip else NVIDIA
    first = max(first for first in table if first <= capability)
    return frozenset(table[first].split())
