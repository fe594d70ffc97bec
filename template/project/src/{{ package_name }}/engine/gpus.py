"""What is known about GPUs (`gpus.yml`), which one this is, and the one rule that picks a precision for it.

Imports torch only to ask for the card, so that settings can be checked and help can be printed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from .errors import UserError

if TYPE_CHECKING:
    import torch

TABLE = Path(__file__).with_name("gpus.yml")
# First capability with tensor cores for each format: NVIDIA Volta, Ampere, Ada.
FIRST = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
CDNA3 = (9, 4)  # AMD MI300X as torch on ROCm numbers it: a chip of AMD, no Hopper

Capability = tuple[int, int]


@dataclass(frozen=True)
class Gpu:
    """One row of the table, whose head explains the cells."""

    key: str  # as in the answer `gpu`
    label: str
    aliases: list[str]  # as the driver prints them, without the maker
    sm: str
    sm_count: int  # streaming multiprocessors (AMD: compute units)
    memory_gb: float  # as sold; a driver reports 3 to 9 % less
    bandwidth_gb_s: float
    tflops: dict[str, float]  # dense peaks; absent = not in the hardware, or never published
    torch: str  # releases with code for it, as pip writes a range
    wheel: str  # their folder in PyTorch's wheel index
    triton: bool  # whether Triton supports it, and with it torch.compile
    source: str
    unverified: list[str]  # cells without a vendor's document


class Card(NamedTuple):
    """What torch computes on."""

    name: str
    capability: Capability | None  # None: a CPU, and the rest is 0
    memory_gb: float = 0.0  # GiB, as reported
    sm_count: int = 0
    hip: bool = False  # torch is a ROCm build

    @property
    def sm(self) -> str:
        return ".".join(map(str, self.capability)) if self.capability else "none"


def this_card(device: torch.device | None = None) -> Card:
    """The card of `device`; without one, the first GPU that torch sees, or the CPU."""
    import torch

    if not torch.cuda.is_available() if device is None else device.type != "cuda":
        return Card("CPU", None)
    found, hip = torch.cuda.get_device_properties(device or 0), torch.version.hip is not None
    memory = found.total_memory / 2**30
    return Card(found.name, (found.major, found.minor), memory, found.multi_processor_count, hip)


@cache
def table() -> dict[str, Gpu]:
    """Every row by its key. Raises UserError where the table was edited into something unreadable."""
    try:
        # libyaml is eight times as fast, where PyYAML was built with it.
        rows = yaml.load(TABLE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for row in rows.values():
            row["tflops"] = {name: peak for name, peak in row["tflops"].items() if peak is not None}
        return {key: Gpu(key, **row) for key, row in rows.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"GPU table is not readable ({error})", str(TABLE), "restore the file") from error


def match(name: str, sm_count: int | None = None, memory_gb: float | None = None) -> tuple[Gpu | None, str]:
    """The row of the card that the driver calls `name`, and a sentence why that one or none.

    Args:
        name: as `torch.cuda.get_device_name()` or `nvidia-smi` prints it; older drivers leave the maker out.
        sm_count: its streaming multiprocessors, where known.
        memory_gb: its memory in GiB, where known.

    A name must agree in full: "RTX 4070" is no "RTX 4070 Ti SUPER", and a laptop's card or a slice of
    one (MIG) carries the name of a far faster chip. Cards of one name are told apart by their size.
    """
    card = name.strip().removeprefix("NVIDIA ").strip()
    if card.endswith("Laptop GPU"):
        return None, f"{card} is another chip than the desktop card of that name"
    if " MIG " in f"{card} ":
        return None, f"{card} is a slice of a card"
    # Reported GiB against sold GB: error correction and the driver keep up to 9 % (T4 14.6 of 16), and
    # some makers sell decimal gigabytes (B300: 268 GiB as 288). The nearest other size is 17 % away.
    alike = [gpu for gpu in table().values() if card in gpu.aliases and sm_count in (None, gpu.sm_count)]
    found = [gpu for gpu in alike if memory_gb is None or 0.89 <= memory_gb / gpu.memory_gb <= 1.05]
    if len(found) == 1:
        return found[0], f"{card} is {found[0].label}"
    size = "" if memory_gb is None else f" with {memory_gb:.1f} GB, {sm_count or 'some'} multiprocessors"
    return None, f"{card}{size} is {'more than one card' if found else 'not'} in the table"


def resolve_precision(
    name: str, capability: Capability | None, hip: bool = False, emulate: bool = False
) -> tuple[str, str]:
    """The precision to run for the setting `training.precision`, and one sentence why.

    Args:
        name: auto, fp32, tf32, fp16, bf16 or fp8.
        capability: of the GPU; None is a CPU.
        hip: whether torch is a ROCm build (`torch.version.hip`), which numbers AMD's chips its own way.
        emulate: whether fp8 may be emulated (`training.fp8_emulation`).

    Raises UserError for bf16 and fp8 on a GPU that lacks them. tf32 there becomes fp32 instead: it
    differs in speed alone. `torch.cuda.is_bf16_supported()` is no help, it counts emulation that is up
    to 20 times slower (T4, V100).
    """
    given, where = "set by training.precision", "training.precision"
    if name == "fp8" and emulate:
        return name, "emulated by training.fp8_emulation, for tests: bf16 is faster"
    if capability is None:
        if name == "fp8":
            raise UserError("precision fp8: there is no GPU", where, "choose fp32, or auto")
        if name in ("auto", "tf32"):
            return "fp32", f"there is no GPU: {name} runs as fp32"
        return name, given
    card = ("ROCm " if hip else "sm ") + ".".join(map(str, capability))
    has = features(capability, hip)
    if name == "auto":
        chosen = next((kind for kind in ("bf16", "fp16") if kind in has), "fp32")
        why = f"{card} has {'no' if chosen == 'fp32' else chosen} tensor cores"
        return chosen, why + (" and none for bf16" if chosen == "fp16" else "")
    if name == "fp32" or name in has:
        return name, given
    if name == "tf32":
        return "fp32", f"{card} has no TF32: it runs as fp32"
    if name == "fp16":
        return name, f"{given}; {card} has no fp16 tensor cores: it saves memory, not time"
    if name == "bf16":
        what = f"precision bf16: {card} has no bf16 tensor cores and would emulate bf16 slowly"
        raise UserError(what, where, "choose fp16, or auto")
    what = f"precision fp8: {card} cannot multiply fp8 matrices, which starts at sm 8.9"
    best = resolve_precision("auto", capability, hip)[0]
    raise UserError(what, where, f"choose {best}, or auto")


def features(capability: Capability, hip: bool = False) -> frozenset[str]:
    """Which of fp16, bf16, tf32 and fp8 the matrix units of a GPU compute natively."""
    if not hip:
        return frozenset(name for name, first in FIRST.items() if capability >= first)
    # TF32 is in CDNA3 alone. Earlier chips share one number between those with fast bf16 (MI200)
    # and without (MI50), so fp16 it is there; RDNA2 (10.x) has no matrix units, RDNA3 (11.x) no fp8.
    # https://docs.pytorch.org/docs/2.13/notes/numerical_accuracy.html
    if capability < CDNA3 or capability[0] == 10:
        return frozenset({"fp16"} if capability < CDNA3 else ())
    lacks = {"tf32": capability != CDNA3, "fp8": capability[0] == 11}
    return frozenset(name for name in FIRST if not lacks.get(name))
