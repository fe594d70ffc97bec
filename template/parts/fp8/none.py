"""No fp8. The answer `precision: fp8` brings it, with the library that it needs."""

from __future__ import annotations

from typing import Any


def convert(model: Any) -> int:
    """How many layers now multiply in fp8."""
    return 0
