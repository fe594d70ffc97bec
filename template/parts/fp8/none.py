"""No fp8. The answer `precision: fp8` brings it, with the library that it needs."""

from __future__ import annotations

from typing import Any

from .errors import UserError


def convert(model: Any, emulate: bool = False) -> int:
    """How many layers now multiply in fp8. Raises `UserError`: there is none of it here."""
    what, remedy = "this project was made without fp8", "choose bf16, or `copier update -d precision=fp8`"
    raise UserError(what, "training.precision fp8", remedy)
