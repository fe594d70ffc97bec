"""The setting of `estimate`."""

from __future__ import annotations

from pydantic import Field

from ..engine.settings.config import Section


class Price(Section):
    """The price of the machine."""

    price_per_hour: float = Field(0.0, ge=0)
    """Price of the machine per hour, in any currency. `estimate` and report.md then show costs. 0:
    unknown."""
