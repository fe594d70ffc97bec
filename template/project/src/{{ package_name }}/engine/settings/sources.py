"""Reads settings files, and checks what files, environment and flags set."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from ..errors import UserError, note
from .config import Settings, allowed, catalogue

S = TypeVar("S", bound=Settings)
TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


# If PyYAML was built with libyaml, that is ten times as fast.
class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads YAML in which every value is a text, as in the environment and in flags.

    The schema decides what a text means: `no` is false for a switch, and a name for a path.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag not in TAGS:
            problem = f"unexpected tag {node.tag}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        # PyYAML would silently use the last one of two equal keys.
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return mapping


def read(path: Path) -> Any:
    """Return the content of a YAML file. Raises `UserError`."""
    try:
        return yaml.load(path.read_text(encoding="utf-8-sig"), Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        where = str(path)
        remedy = "give a file of YAML in UTF-8"
        mark = getattr(error, "problem_mark", None)
        if mark:
            where += f" line {mark.line + 1}"
            remedy = "fix that line, or the line above it"
        problem = getattr(error, "problem", None) or getattr(error, "strerror", None)
        what = f"cannot read it as YAML ({problem or str(error).partition(chr(10))[0]})"
        raise UserError(what, where, remedy) from error


def merge(
    settings: S, tree: Any, origin: str, errors: list[UserError], skip_unknown: bool = False
) -> S:
    """Return the settings with those of a source; add an error for each one that is wrong.

    `data: {path: x}` and `data.path: x` mean the same.

    skip_unknown: a setting that this project does not have is only a note.
    """
    if not isinstance(tree, dict):
        if tree:
            what = f"found {show(tree)} instead of settings"
            errors.append(UserError(what, origin, "write `section.key: value`"))
        return settings
    values = []
    for name, content in tree.items():
        if isinstance(content, dict) and "." not in name and name != "profiles":
            values += [(f"{name}.{key}", value) for key, value in content.items()]
        elif content or "." in name:  # a section may be empty
            values.append((name, content))

    known = {**type(settings).model_fields, **catalogue(type(settings))}
    for key, value in values:
        if settings.origins.get(key) == origin:
            errors.append(UserError(f"setting {key!r} is given twice", origin, "keep one of them"))
        elif key in known:
            kind = known[key].annotation
            if value in ("", "null") and type(None) in get_args(kind):
                value = None
            try:
                settings = settings.replaced({key: value}, origin)
            except ValidationError:
                remedy = f"give {allowed(kind, known[key].metadata)}"
                errors.append(UserError(f"{key} cannot be {show(value)}", origin, remedy))
        elif skip_unknown:
            note(f"{key} is skipped, as this project has no such setting")
        else:
            errors.append(UserError(f"unknown setting {key!r}", origin, suggestion(key, known)))
    return settings


def near(word: str, spellings: Iterable[str], cutoff: float = 0.7) -> str:
    """Return the spelling that is most similar to `word`; empty if none is similar."""
    matches = get_close_matches(word, list(spellings), 1, cutoff)
    return matches[0] if matches else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the most similar one, if there is one."""
    guess = near(name.replace("lr", "learning_rate"), known)  # `lr` is its name in torch.optim
    return f"did you mean {guess!r}?" if guess else "remove it, or see `train --help`"


def show(value: object) -> str:
    """Show a wrong value in an error line: short, and on one line."""
    return shortened(value)[:60] if value else "empty"
