"""The faults of `faults.yml`."""

from pathlib import Path
from typing import NamedTuple

import yaml


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


def read() -> dict[str, list[Fault]]:
    """Return the faults of each family."""
    text = Path(__file__).with_name("faults.yml").read_text(encoding="utf-8")
    families = yaml.safe_load(text)
    return {name: [Fault(**fault) for fault in faults] for name, faults in families.items()}


FAMILIES = read()
FAULTS = [fault for family in FAMILIES.values() for fault in family]
