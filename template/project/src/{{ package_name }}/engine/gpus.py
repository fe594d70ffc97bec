"""What is known about GPUs (`gpus.yml`), and the one rule that picks a precision for a card.

Imports no torch, so that settings can be checked and help can be printed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from .errors import UserError

TABLE = Path(__file__).with_name("gpus.yml")
BF16 = (8, 0)  # first capability with bf16 and TF32 tensor cores (NVIDIA Ampere)
FP16 = (7, 0)  # first capability with fp16 tensor cores (NVIDIA Volta)
FP8 = (8, 9)  # first capability with fp8 matrix multiplication (NVIDIA Ada)
CDNA3 = (9, 4)  # AMD MI300X as torch on ROCm numbers it: a chip of AMD, no Hopper

Capability = tuple[int, int]


@dataclass(frozen=True)
class Gpu:
    """One row of the table. `tflops` are dense peaks with fp32 accumulation, at the rated boost clock."""

    key: str  # as in the answer `gpu`
    label: str
    aliases: tuple[str, ...]  # as the driver prints them, without the maker
    capability: Capability
    memory_gb: float  # as sold; a driver reports 3 to 9 % less
    bandwidth: float  # GB/s of its own memory
    sm_count: int  # streaming multiprocessors (AMD: compute units)
    tflops: dict[str, float]  # precision -> TFLOPS; absent = not in the hardware, or never published
    torch: str  # releases with code for it, as pip writes a range
    wheel: str  # their folder in PyTorch's wheel index
    triton: bool  # whether Triton supports it, and with it torch.compile
    unverified: tuple[str, ...]  # cells without a vendor's document

    @property
    def sm(self) -> str:
        return ".".join(map(str, self.capability))


def plain(name: str) -> str:
    """A device name without the maker's prefix, which older drivers leave out."""
    return name.strip().removeprefix("NVIDIA ").strip()


def parse_capability(text: str | float) -> Capability:
    """`"8.9"` → (8, 9)."""
    major, _, minor = str(text).partition(".")
    return int(major), int(minor or 0)


@cache
def table() -> dict[str, Gpu]:
    """Every row by its key. Raises UserError where the table was edited into something unreadable."""
    try:
        rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
        return {key: read_row(key, row) for key, row in rows.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"GPU table is not readable ({error})", str(TABLE), "restore the file") from error


def read_row(key: str, row: dict) -> Gpu:
    """A `Gpu` from one mapping of the table."""
    return Gpu(
        key=key,
        label=row["label"],
        aliases=tuple(row["aliases"]),
        capability=parse_capability(row["sm"]),
        memory_gb=float(row["memory_gb"]),
        bandwidth=float(row["bandwidth_gb_s"]),
        sm_count=int(row["sm_count"]),
        tflops={name: float(peak) for name, peak in row["tflops"].items() if peak is not None},
        torch=row["torch"],
        wheel=row["wheel"],
        triton=row["triton"],
        unverified=tuple(row["unverified"]),
    )


def match(name: str, sm_count: int | None = None, memory_gb: float | None = None) -> tuple[Gpu | None, str]:
    """The row of the card that the driver calls `name`, and a sentence why that one or none.

    Args:
        name: as `torch.cuda.get_device_name()` or `nvidia-smi` prints it.
        sm_count: its streaming multiprocessors, where known.
        memory_gb: its memory in GiB, where known.

    A name must agree in full: "RTX 4070" is no "RTX 4070 Ti SUPER", and a laptop's card or a slice of
    one (MIG) carries the name of a far faster chip. Cards of one name are told apart by their size.
    """
    card = plain(name)
    if card.endswith("Laptop GPU"):
        return None, f"{card} is another chip than the desktop card of that name"
    if " MIG " in f"{card} ":
        return None, f"{card} is a slice of a card"
    rows = [gpu for gpu in table().values() if card in gpu.aliases]
    if not rows:
        return None, f"{card} is not in the table"
    fitting = [gpu for gpu in rows if fits_memory(gpu, memory_gb)]
    if not fitting:
        sold = " or ".join(f"{gpu.memory_gb:g}" for gpu in rows)
        return None, f"{card} of the table has {sold} GB, this one {memory_gb:.1f} GB"
    counted = [gpu for gpu in fitting if sm_count in (None, gpu.sm_count)]
    if not counted:
        return None, f"{card} of the table has {fitting[0].sm_count} multiprocessors, this one {sm_count}"
    if len(counted) > 1:
        return None, f"{card} comes in several sizes and the memory is not known"
    return counted[0], f"{card} is {counted[0].label}"


def find(name: str, sm_count: int | None = None, memory_gb: float | None = None) -> Gpu | None:
    """The row alone; see `match`."""
    return match(name, sm_count, memory_gb)[0]


def fits_memory(gpu: Gpu, memory_gb: float | None) -> bool:
    # Reported GiB against sold GB: error correction and the driver keep up to 9 % (T4 14.6 of 16), and
    # some makers sell decimal gigabytes (B300: 268 GiB as 288). The nearest other size is 17 % away.
    return memory_gb is None or 0.89 * gpu.memory_gb <= memory_gb <= 1.05 * gpu.memory_gb


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
    if name == "fp8" and emulate:
        return name, "emulated by training.fp8_emulation: it tests, it does not speed up"
    if capability is None:
        return on_cpu(name)
    card = ("ROCm " if hip else "sm ") + ".".join(map(str, capability))
    has = features(capability, hip)
    if name == "auto":
        chosen = next((kind for kind in ("bf16", "fp16") if kind in has), "fp32")
        cores = f"{card} has {chosen} tensor cores" if chosen != "fp32" else f"{card} has no tensor cores"
        if chosen == "fp16":
            cores += " and none for bf16"
        return chosen, cores
    if name == "tf32" and "tf32" not in has:
        return "fp32", f"{card} has no TF32: it runs as fp32"
    if name == "bf16" and "bf16" not in has:
        what = f"{card} has no bf16 tensor cores and would emulate bf16 slowly"
        raise UserError(f"precision bf16: {what}", "training.precision", "choose fp16, or auto")
    if name == "fp8" and "fp8" not in has:
        what = f"{card} cannot multiply fp8 matrices, which starts at sm 8.9"
        raise UserError(f"precision fp8: {what}", "training.precision", "choose bf16 or fp16, or auto")
    if name == "fp16" and "fp16" not in has:
        return (
            "fp16",
            f"set by training.precision; {card} has no fp16 tensor cores: it saves memory, not time",
        )
    return name, "set by training.precision"


def on_cpu(name: str) -> tuple[str, str]:
    """`resolve_precision` without a GPU."""
    if name == "fp8":
        raise UserError(
            "precision fp8: there is no GPU", "training.precision", "choose bf16 or fp32, or auto"
        )
    if name in ("auto", "tf32"):
        return "fp32", "there is no GPU" + (" and so no TF32: it runs as fp32" if name == "tf32" else "")
    return name, "set by training.precision" + (
        "" if name == "fp32" else "; on a CPU it tests, it does not speed up"
    )


def features(capability: Capability, hip: bool = False) -> frozenset[str]:
    """Which of fp16, bf16, tf32 and fp8 the matrix units of a GPU compute natively."""
    if hip:
        # TF32 is in CDNA3 alone. Earlier chips share one number between those with fast bf16 (MI200)
        # and without (MI50), so fp16 it is there; RDNA2 (10.x) has no matrix units.
        # https://docs.pytorch.org/docs/2.13/notes/numerical_accuracy.html
        if capability[0] == 10:
            return frozenset()
        if capability < CDNA3:
            return frozenset({"fp16"})
        fp8 = {"fp8"} if capability[0] != 11 else set()
        return frozenset({"fp16", "bf16"} | fp8 | ({"tf32"} if capability == CDNA3 else set()))
    steps = {"fp16": FP16, "bf16": BF16, "tf32": BF16, "fp8": FP8}
    return frozenset(name for name, least in steps.items() if capability >= least)


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


def this_card() -> Card:
    """The first GPU that torch sees, or the CPU."""
    import torch

    if not torch.cuda.is_available():
        return Card("CPU", None)
    name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    facts, hip = torch.cuda.get_device_properties(0), torch.version.hip is not None
    return Card(name, capability, facts.total_memory / 2**30, facts.multi_processor_count, hip)
