"""Reads YAML as people write it, and writes it with the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .files import read_lines


# If PyYAML was built with libyaml, that is ten times as fast.
class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML; a duplicate key is an error, where PyYAML would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return dict(super().construct_mapping(node, deep))


class Dumper(yaml.SafeDumper):
    """Writes YAML that `Loader` reads back unchanged."""


# Without this rule, PyYAML reads `1e-3` as text.
FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
yaml.add_implicit_resolver(FLOAT, EXPONENT, list("-+.0123456789"), Loader, Dumper)


def parse(text: str) -> object:
    """Read a document. Raises `yaml.YAMLError`, or `ValueError` for a date that does not exist."""
    return Loader(text).get_single_data()


def parse_scalar(text: str) -> object:
    """Read a value of the environment or the command line as YAML (JSON is YAML too)."""
    try:
        return parse(text)
    except (yaml.YAMLError, ValueError):
        return text


def annotated_yaml(
    tree: Mapping[str, Any], origins: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """Return nested settings as lines of YAML, each with its origin as a comment."""
    lines = []
    for name, value in tree.items():
        origin = origins.get(prefix + name)
        if origin is None:
            inner = annotated_yaml(value, origins, f"{prefix}{name}.")
            lines += [f"{name}:", *(f"  {line}" for line in inner)]
            continue
        text = yaml.dump(
            {name: value}, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6
        )
        body = text.splitlines()
        # A comment inside a text of two lines would become part of the text.
        place = -1 if isinstance(value, str) else 0
        body[place] = f"{body[place]:<42}  # {origin}"
        lines += body
    return lines


def comments(path: Path) -> dict[str, str]:
    """Return the comment above each setting of a config.yaml, by dotted key."""
    texts: dict[str, str] = {}
    section = ""
    above: list[str] = []
    for line in read_lines(path):
        name = line.strip().partition(":")[0]
        if name.startswith("#"):
            above.append(line.strip("# "))
            continue
        if name and not line.startswith(" "):
            section = name
        texts.setdefault(f"{section}.{name}", " ".join(above))
        above = []
    return texts
