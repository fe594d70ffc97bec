"""Reads settings files, and checks what files, environment and flags set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import ValidationError

from ..errors import UserError, note
from .config import Settings, allowed, catalogue

S = TypeVar("S", bound=Settings)
Layer = tuple[str, dict[str, Any]]
"""The name of a source, as error lines show it, and its settings."""


# If PyYAML was built with libyaml, that is ten times as fast.
class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML in which every value is a text, as in the environment and in flags.

    The schema decides what a text means: `no` is false for a switch, and a name for a path.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        # PyYAML would silently use the last one of two equal keys.
        names = []
        for key, _ in node.value:
            if key.value in names:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.append(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file. Raises `UserError`."""
    where = str(path)
    try:
        tree = yaml.load(path.read_text(encoding="utf-8-sig"), Loader) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        remedy = "give a file of YAML in UTF-8"
        mark = getattr(error, "problem_mark", None)
        if mark:
            where += f" line {mark.line + 1}"
            remedy = "fix that line, or the line above it"
        problem = getattr(error, "problem", None) or getattr(error, "strerror", None)
        what = f"cannot read it as YAML ({problem or str(error).partition(chr(10))[0]})"
        raise UserError(what, where, remedy) from error
    if not isinstance(tree, dict):
        what = f"found {show(tree)} instead of settings"
        raise UserError(what, where, "write `section.key: value`")
    return tree


def merge(
    settings: S, layers: Iterable[Layer], errors: list[UserError], skip_unknown: bool = False
) -> S:
    """Return the settings with those of some sources; add an error for each one that is wrong.

    A source takes precedence over those before it.

    skip_unknown: a setting that this project does not have is only a note.
    """
    known = {**type(settings).model_fields, **catalogue(type(settings))}
    for origin, key, value in flat(layers):
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


def flat(layers: Iterable[Layer]) -> Iterator[tuple[str, str, Any]]:
    """Yield origin, key and value of each setting.

    `data: {path: x}` and `data.path: x` mean the same.
    """
    for origin, tree in layers:
        for name, content in tree.items():
            if isinstance(content, dict) and "." not in name and name != "profiles":
                for key, value in content.items():
                    yield origin, f"{name}.{key}", value
            elif content or "." in name:  # a section may be empty
                yield origin, name, content


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
