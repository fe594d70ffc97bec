"""Settings from a YAML file, the environment and the command line, each value with its origin.

Nothing here knows which settings exist. Mistakes are collected, not raised one by one, so that a
person mends them in one go: every mistake is one line that names its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError

from .errors import UserError, UserErrors
from .sections import Section, Setting

S = TypeVar("S", bound=Section)


class Given(NamedTuple):
    """A value that somebody gave, and where."""

    value: Any
    origin: str


Layer = dict[str, Given]
"""What one source says: values by dotted key. Sources are merged by `weak | strong`."""


class Sources:
    """Turns what people wrote into layers and layers into sections, and collects every mistake.

    `aliases` maps other accepted spellings to keys; `hints` are spellings that are refused with
    the key that was probably meant.
    """

    def __init__(self, settings: Mapping[str, Setting], aliases: Mapping[str, str], hints: Mapping[str, str]):
        self.settings = settings
        self.aliases = aliases
        self.hints = hints
        self.mistakes: list[UserError] = []
        self.sections = _prefixes(settings)
        self.branches = self.sections | _prefixes(aliases)

    def file(self, path: Path) -> Layer:
        """The settings in a YAML file. An empty file and an empty section are allowed."""
        tree, mistakes = read_yaml(path)
        self.mistakes += mistakes
        return self.tree(tree, str(path))

    def tree(self, tree: Any, origin: str) -> Layer:
        """A nested mapping, in which `data: {path: x}` and `data.path: x` say the same."""
        layer: Layer = {}
        if isinstance(tree, Mapping):
            self._walk(tree, "", origin, layer)
        elif tree is not None:
            self._mistake(
                f"found {show(tree)} instead of settings", origin, "write `section:` and `key: value`"
            )
        return layer

    def texts(self, given: Iterable[tuple[str, str, str]]) -> Layer:
        """(key, text, origin) of the environment or the command line; a later one wins."""
        layer: Layer = {}
        for key, text, origin in given:
            setting = self.settings.get(self.aliases.get(key, key))
            if setting is None:
                self._unknown(key, origin)
            else:
                layer[setting.key] = Given(text if setting.is_text else parse_scalar(text), origin)
        return layer

    def build(self, model: type[S], layer: Layer) -> S | None:
        """A checked `model`, or None after noting down each wrong value."""
        tree: dict[str, Any] = {}
        for key, given in layer.items():
            *sections, name = key.split(".")
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
            branch[name] = given.value
        try:
            return model.model_validate(tree)
        except ValidationError as found:
            for error in found.errors(include_url=False):
                self._explain(error, layer)
            return None

    def reject(self) -> None:
        """Raises all mistakes together, each once.

        Raises:
            UserErrors: if there is any.
        """
        if self.mistakes:
            raise UserErrors(list({str(mistake): mistake for mistake in self.mistakes}.values()))

    def nearest(self, name: str) -> str | None:
        """The setting that `name` is probably a misspelling of."""
        leaves = [key.rpartition(".")[2] for key in self.settings]
        # A name that two sections have ("every_steps") says nothing without its section.
        unique = {
            leaf: key for leaf, key in zip(leaves, self.settings, strict=True) if leaves.count(leaf) == 1
        }
        spellings = {**self.hints, **self.aliases, **unique, **{key: key for key in self.settings}}
        return near({name, name.rpartition(".")[2]}, spellings)

    def _walk(self, tree: Mapping[Any, Any], prefix: str, origin: str, layer: Layer) -> None:
        for name, value in tree.items():
            spelling = f"{prefix}{name}"
            key = self.aliases.get(spelling, spelling)
            if key in layer:
                self._mistake(f"setting {key!r} is given twice", origin, "keep one of the two")
            elif key in self.settings:
                layer[key] = Given(value, origin)
            elif key not in self.branches:
                self._unknown(key, origin, is_section=isinstance(value, Mapping))
            elif isinstance(value, Mapping):
                self._walk(value, f"{key}.", origin, layer)
            elif value is not None:
                self._mistake(
                    f"section {key!r} cannot be {show(value)}", origin, "write `key: value` lines under it"
                )

    def _explain(self, error: Any, layer: Layer) -> None:
        """One line for one of pydantic's errors; a union's alternatives give the same line each."""
        path = [str(part + 1) if isinstance(part, int) else str(part) for part in error["loc"]]
        depth = next(n for n in range(len(path), 0, -1) if ".".join(path[:n]) in self.settings)
        setting, entry = self.settings[".".join(path[:depth])], ".".join(path)
        value, origin = layer[setting.key]
        if depth == len(path) or not path[depth].isdigit():
            self._mistake(f"{setting.key} cannot be {show(value)}", origin, f"give {setting.allowed}")
        elif error["type"] == "missing":
            self._mistake(f"{entry} is missing", origin, "add it")
        elif error["type"] == "extra_forbidden":
            self._mistake(f"{entry} is unknown", origin, "take it out, or mend its name")
        else:
            self._mistake(f"{entry} cannot be {show(error['input'])}", origin, error["msg"])

    def _unknown(self, key: str, origin: str, is_section: bool = False) -> None:
        guess = (
            near([key], {section: section for section in self.sections}) if is_section else self.nearest(key)
        )
        remedy = f"did you mean {guess!r}?" if guess else "`train --help` lists all"
        self._mistake(f"unknown {'section' if is_section else 'setting'} {key!r}", origin, remedy)

    def _mistake(self, what: str, origin: str, remedy: str = "") -> None:
        self.mistakes.append(UserError(what, origin, remedy))


def read_yaml(path: Path) -> tuple[Any, list[UserError]]:
    """What a YAML file holds, and what is wrong with it; `1e-3` is a number, as in YAML 1.2."""
    where = str(path)
    try:
        loader = _Loader(path.read_text(encoding="utf-8-sig"))
        tree = loader.get_single_data()
    except OSError as error:
        return None, [UserError(f"cannot read the configuration ({error.strerror})", where, "check --config")]
    except UnicodeDecodeError as error:
        return None, [UserError(f"not UTF-8 at byte {error.start}", where, "save the file as UTF-8")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where += f" line {mark.line + 1}" if mark else ""
        return None, [UserError(f"not YAML: {error.problem}", where, "mend that line or the one above it")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, [UserError(f"not YAML: {str(error).partition(chr(10))[0]}", where, "mend the file")]
    twice = loader.duplicates.items()
    return tree, [UserError(f"duplicate key {key!r}", f"{where} line {n}", "keep one") for n, key in twice]


class _Loader(yaml.SafeLoader):
    """YAML that notices a key written twice, where PyYAML would silently take the last."""

    def __init__(self, text: str):
        super().__init__(text)
        self.duplicates: dict[int, str] = {}  # by line

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        seen: set[str] = set()
        for key in keys:
            if key.value in seen:
                self.duplicates[key.start_mark.line + 1] = key.value
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def parse_scalar(text: str) -> Any:
    """A value from the environment or the command line, read as YAML (JSON is YAML too)."""
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError):
        return text


def annotated_yaml(tree: Mapping[str, Any], origins: Mapping[str, str], prefix: str = "") -> str:
    """Nested settings as YAML, each with its origin behind it as a comment."""
    indent, lines = "  " * prefix.count("."), []
    for name, value in tree.items():
        origin = origins.get(prefix + name)
        if origin is None:
            lines += [f"{indent}{name}:", annotated_yaml(value, origins, f"{prefix}{name}.")]
        elif _is_nested(value):
            body = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
            lines += [f"{indent}{name}:  # {origin}", *(f"{indent}  {line}" for line in body.splitlines())]
        else:
            text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=10**6)
            text = text.removesuffix("\n").removesuffix("\n...")
            lines.append(f"{f'{indent}{name}: {text}':<44}  # {origin}")
    return "\n".join(lines)


def _is_nested(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(part, (dict, list)) for part in parts)


def near(words: Iterable[str], spellings: Mapping[str, str], cutoff: float = 0.75) -> str | None:
    """What the spelling that is most like one of `words` stands for, unless none is like it."""
    ratio, found = max(
        (SequenceMatcher(None, word, spelling).ratio(), key)
        for word in words
        for spelling, key in spellings.items()
    )
    return found if ratio >= cutoff else None


def near_misses(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Environment names that are probably misspelt: {found: meant}, such as NUM_WORKER: NUM_WORKERS."""
    known = {name: name for name in names}
    # 0.9 tells NUM_WORKER from SPEED, which is only one letter away from SEED too.
    guesses = {found: near([found.upper()], known, 0.9) for found in environment if found not in known}
    return {found: meant for found, meant in guesses.items() if meant}


def show(value: Any) -> str:
    """A wrong value as an error line shows it: short, and on one line."""
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _prefixes(keys: Iterable[str]) -> set[str]:
    """Every section above `keys`: `train.batch.seed` lies in `train` and `train.batch`."""
    return {key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1)}
