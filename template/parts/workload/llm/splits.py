"""What `--split` asks for: shares, or numbers."""

from __future__ import annotations

from .engine.errors import UserError


def split_shares(split: str) -> list[float]:
    """`0.9,0.05,0.05` or three numbers, the last of which may be left out."""
    try:
        parts = [float(part) for part in split.split(",")]
        parts += [0.0] * (3 - len(parts))
        counts = all(part == int(part) for part in parts)
        if len(parts) != 3 or min(parts) < 0 or not (counts or abs(sum(parts) - 1) < 1e-6):
            raise ValueError
    except (ValueError, OverflowError):
        remedy = "give three shares that add up to 1, such as 0.9,0.05,0.05, or three whole numbers"
        raise UserError(f"'{split}' splits nothing", "--split", remedy) from None
    return parts


def split_sizes(parts: list[float], count: int, unit: str, split: str) -> list[int]:
    """How many of `count` tokens or files train, validate and test."""
    if abs(sum(parts) - 1) < 1e-6:
        last, middle = (round(count * part) for part in (parts[2], parts[1]))
        sizes = [count - middle - last, middle, last]
    else:
        sizes = [int(part) for part in parts]
    for name, size in zip(("training", "validation"), sizes, strict=False):
        if size < 1:
            where = f"--split {split}, {count} {unit}s"
            raise UserError(f"no {unit} is left for {name}", where, "give it one")
    if sum(sizes) > count:
        raise UserError(f"the split needs {sum(sizes)} {unit}s", f"--split {split}", f"there are {count}")
    return sizes
