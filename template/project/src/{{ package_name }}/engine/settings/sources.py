"""Reads settings files, and checks what files, environment and flags set.

Errors are collected, so that the user can fix all of them at once. Each is one line that names its
source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import ValidationError

from ..errors import UserError, UserErrors
from .config import Settings, allowed, catalogue, put

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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # PyYAML would silently use the last one of two equal keys.
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return dict(super().construct_mapping(node, deep))


def read(path: Path) -> Any:
    """Return the content of a YAML file. Raises `UserError`."""
    where = str(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            return yaml.load(file, Loader)
    except OSError as error:
        what = f"cannot read the configuration ({error.strerror})"
        raise UserError(what, where, "check its name") from error
    except UnicodeDecodeError as error:
        what = f"not UTF-8 at byte {error.start}"
        raise UserError(what, where, "save the file as UTF-8") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark:
            where += f" line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        remedy = "fix that line, or the line above it"
        raise UserError(f"not YAML: {problem}", where, remedy) from error


@dataclass
class Sources(Generic[S]):
    """Checks what each source sets, and collects errors and notes.

    resolved: the files are those of a run. A setting in them that this project no longer has, such
    as that of a removed extra, is only a note.
    """

    model: type[S]
    resolved: bool = False
    errors: list[UserError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = catalogue(self.model)
        self.sections = {key.partition(".")[0] for key in self.settings if "." in key}

    def add_error(self, what: str, origin: str, remedy: str) -> None:
        """Collect an error; `reject` raises it with all others."""
        self.errors.append(UserError(what, origin, remedy))

    def reject(self) -> None:
        """Raise `UserErrors` with each error once, if there is any."""
        if self.errors:
            raise UserErrors(list({str(error): error for error in self.errors}.values()))

    def check(self, tree: Any, origin: str) -> dict[str, Any]:
        """Return the settings of one source by key, without wrong ones.

        `data: {path: x}` and `data.path: x` mean the same.
        """
        if not isinstance(tree, dict):
            if tree:
                what = f"found {show(tree)} instead of settings"
                self.add_error(what, origin, "write `section.key: value`")
            return {}
        values: dict[str, Any] = {}
        for name, value in tree.items():
            inner = {name: value}
            if name in self.sections and (isinstance(value, dict) or not value):
                inner = {f"{name}.{key}": setting for key, setting in (value or {}).items()}
            for key, setting in inner.items():
                if key in values:
                    self.add_error(f"setting {key!r} is given twice", origin, "keep one of the two")
                elif key in self.settings:
                    values[key] = setting
                else:
                    self._reject_unknown(key, origin)
        self.build(values, origin)
        return values

    def _reject_unknown(self, key: str, origin: str) -> None:
        if self.resolved and not outranks_files(origin):
            self.notes.append(f"{key} is skipped, as this project has no such setting")
        else:
            remedy = suggestion(key, {*self.settings, *self.sections} - {key})
            self.add_error(f"unknown setting {key!r}", origin, remedy)

    def build(self, values: dict[str, Any], origin: str) -> S:
        """Return settings with these values; remove wrong ones, and collect their errors."""
        empty: dict[str, Any] = {section: {} for section in self.sections}
        try:
            return self.model.model_validate(put(empty, values))
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                path = [str(place) for place in error["loc"]]
                key = path[0] if path[0] in self.settings else ".".join(path[:2])
                if key not in values:  # each alternative of a setting has an error of its own
                    continue
                setting = self.settings[key]
                value = values.pop(key)
                what = f"{key} cannot be {show(value)}"
                remedy = f"give {allowed(setting.annotation, setting.metadata)}"
                if key == "phases" and len(path) > 1:
                    place = ".".join([str(int(path[1]) + 1), *path[2:]])
                    what = f"phases.{place}: {error['msg']}"
                    remedy = "give each phase a name, steps and, if needed, overrides"
                self.add_error(what, origin, remedy)
            return self.build(values, origin)


def outranks_files(origin: str) -> bool:
    """Whether a value comes from the environment or the command line."""
    return origin.startswith(("$", "--"))


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
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    return repr(value[:60]) if value else "empty"
