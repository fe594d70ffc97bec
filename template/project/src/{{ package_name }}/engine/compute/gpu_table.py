"""The table of GPUs, `gpus.yml`: peaks, bandwidth and size of each card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .gpus import Card

TABLE = Path(__file__).with_name("gpus.yml")


@dataclass(frozen=True)
class Gpu:
    """One GPU of the table; the comment at the top of the table explains the columns."""

    key: str  # as in the answer `gpu`
    label: str
    aliases: list[str]  # as the driver prints them, without the maker
    sm: str
    sm_count: int  # streaming multiprocessors (AMD: compute units)
    memory_gb: float  # as sold; a driver reports 3 to 9 % less
    bandwidth_gb_s: float
    tflops: dict[str, float]  # dense peaks; absent: not in the hardware, or never published
    torch: str  # releases with code for it, as pip writes a range
    wheel: str  # their folder in PyTorch's wheel index


@cache
def gpu_table() -> dict[str, Gpu]:
    """Return every GPU of the table by its key."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast with libyaml
    rows: Any = yaml.load(TABLE.read_text(encoding="utf-8"), loader)
    return {key: Gpu(key, **row) for key, row in rows.items()}


def match(card: Card) -> tuple[Gpu | None, str]:
    """Return the table's GPU for a card, or None, and the reason; older drivers omit the maker.

    The whole name must match: an "RTX 4070" is not an "RTX 4070 Ti SUPER", and an "RTX 4090 Laptop
    GPU" or a slice of a card (MIG) is slower than the card. Cards of one name may differ in size.
    """
    name = card.name.strip().removeprefix("NVIDIA ").strip()
    matching = []
    for gpu in gpu_table().values():
        if name not in gpu.aliases or card.sm_count != gpu.sm_count:
            continue
        # Reported GiB against sold GB: error correction and the driver keep up to 9 % (T4 14.6 of
        # 16), and some makers sell decimal gigabytes (B300: 268 GiB as 288). The nearest other size
        # is 17 % away.
        if 0.89 <= card.memory_gb / gpu.memory_gb <= 1.05:
            matching.append(gpu)
    if len(matching) == 1:
        return matching[0], f"{name} is {matching[0].label}"
    size = f"{card.memory_gb:.1f} GB, {card.sm_count} multiprocessors"
    return None, f"{name} with {size} is not in the table of GPUs"
