"""Reads YAML as people write it, and writes it with the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..files import read_lines

# Far above any configuration. A deeper document overflows the parser's stack, and aliases of
# aliases stand for more values than memory can hold.
MAX_BYTES = 1 << 20
MAX_VALUES = 10_000
MAX_LEVELS = 20
MAX_DIGITS = 300  # of a whole number


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


def construct_int(loader: Loader, node: Any) -> int:
    """Read a whole number. Python cannot print one of thousands of digits."""
    if len(node.value) > MAX_DIGITS:
        problem = f"a number has more than {MAX_DIGITS} digits"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return int(loader.construct_yaml_int(node))


class Dumper(yaml.SafeDumper):
    """Writes YAML that `Loader` reads back unchanged."""


# Without this rule, PyYAML reads `1e-3` as text.
FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
yaml.add_implicit_resolver(FLOAT, EXPONENT, list("-+.0123456789"), Loader, Dumper)
yaml.add_constructor("tag:yaml.org,2002:int", construct_int, Loader)


class TooLarge(yaml.MarkedYAMLError):
    """A document beyond the limits."""


def read_yaml(path: Path, loader: type[Any] = Loader) -> object:
    """Read a file. Raises `OSError`, and `UserError` if it is not YAML, or too large."""
    where = str(path)
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"the file has more than {MAX_BYTES:,} bytes", where, "shorten it")
    try:
        return parse(content.decode("utf-8-sig"), loader)
    except UnicodeDecodeError as error:
        what = f"not UTF-8 at byte {error.start}"
        raise UserError(what, where, "save the file as UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        kind = "too large" if isinstance(error, TooLarge) else "not YAML"
        if mark:
            where += f" line {mark.line + 1}"
        remedy = "fix that line, or the line above it"
        raise UserError(f"{kind}: {problem}", where, remedy) from error


def parse(text: str, loader: type[Any] = Loader) -> object:
    """Read a document. Raises `yaml.YAMLError`, or `ValueError` for a date that does not exist."""
    check_extent(text)
    return loader(text).get_single_data()


@dataclass
class Extent:
    """How many values a part of a document has, and how many levels; an alias is its value."""

    anchor: str | None = None
    values: int = 1
    levels: int = 1

    def add(self, inner: Extent) -> None:
        self.values += inner.values
        self.levels = max(self.levels, inner.levels + 1)


def check_extent(text: str) -> None:
    """Raise `TooLarge` for a document beyond the limits, before its values are made."""
    open_parts = [Extent()]
    anchors: dict[str | None, Extent] = {}
    event: Any
    for event in yaml.parse(text, Loader):
        problem = ""
        match event:
            case yaml.CollectionStartEvent():
                open_parts.append(Extent(event.anchor))
                # Until it ends, an alias of it is a value inside of itself.
                anchors[event.anchor] = Extent(values=MAX_VALUES)
            case yaml.CollectionEndEvent():
                part = open_parts.pop()
                anchors[part.anchor] = part
                open_parts[-1].add(part)
            case yaml.ScalarEvent():
                part = Extent(event.anchor)
                anchors[part.anchor] = part
                open_parts[-1].add(part)
            case yaml.AliasEvent():
                open_parts[-1].add(anchors.get(event.anchor, Extent()))
        if max(len(open_parts), open_parts[-1].levels) > MAX_LEVELS:
            problem = f"values are nested in more than {MAX_LEVELS} levels"
        if open_parts[-1].values > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values, with each alias in full"
        if problem:
            raise TooLarge(problem=problem, problem_mark=event.start_mark)


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
