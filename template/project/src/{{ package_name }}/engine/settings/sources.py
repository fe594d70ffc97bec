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
from .config import Settings, catalogue

S = TypeVar("S", bound=Settings)
Layer = tuple[str, dict[str, Any]]
"""The name of a source, as error lines show it, and its settings."""


# What other programs call a setting, if its name here is not similar.
ELSEWHERE = {
    "lr": "optimizer.learning_rate",
    "optim": "optimizer.name",
    "use_amp": "training.precision",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "max_iters": "training.max_steps",
    "eval_steps": "evaluation.every_steps",
    "save_steps": "checkpoint.every_steps",
    "logging_steps": "monitor.every_steps",
    "log_gpu_stats_every_n_batches": "monitor.every_steps",
}


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
    try:
        with path.open(encoding="utf-8-sig") as file:
            tree = yaml.load(file, Loader) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"cannot read it as YAML ({' '.join(str(error).split())})"
        raise UserError(what, str(path), "give a file of YAML in UTF-8") from error
    if not isinstance(tree, dict):
        what = f"found {show(tree)} instead of settings"
        raise UserError(what, str(path), "write `section.key: value`")
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
        if key not in known:
            if skip_unknown:
                note(f"{key} is skipped, as this project has no such setting")
            else:
                errors.append(UserError(f"unknown setting {key!r}", origin, suggestion(key, known)))
            continue
        if settings.origins.get(key) == origin:
            errors.append(UserError(f"setting {key!r} is given twice", origin, "keep one of them"))
        if value in ("", "null") and type(None) in get_args(known[key].annotation):
            value = None
        try:
            settings = settings.replaced({key: value}, origin)
        except ValidationError as error:
            reasons = dict.fromkeys(reason["msg"] for reason in error.errors())
            what = f"{key} cannot be {show(value)}"
            errors.append(UserError(what, origin, " or ".join(reasons)))
    return settings


def flat(layers: Iterable[Layer]) -> Iterator[tuple[str, str, Any]]:
    """Yield origin, key and value of each setting.

    `data: {path: x}` and `data.path: x` mean the same.
    """
    for origin, tree in layers:
        for name, content in tree.items():
            if isinstance(content, dict) and name != "profiles":
                for key, value in content.items():
                    yield origin, f"{name}.{key}", value
            elif content or "." in name:  # a section may be empty
                yield origin, name, content


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the same in other sections, or a similar one."""
    last = name.lstrip("-").replace("-", "_").rpartition(".")[2]
    ending = f".{ELSEWHERE.get(last, last)}"
    plain_of = {key: f".{key.lstrip('-').replace('-', '_')}" for key in known}
    same = [key for key, plain in plain_of.items() if plain.endswith(ending)]
    similar = get_close_matches(name, plain_of, 1, 0.9 if same else 0.7)
    # A typing error in a section is more similar than the same name in other sections.
    meant = similar if similar and "." in name else same or similar
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    return "remove it, or see `train --help`"


def show(value: object) -> str:
    """Show a wrong value in an error line: short, and on one line."""
    return shortened(value)[:60]
