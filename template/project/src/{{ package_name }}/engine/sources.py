"""What people gave: YAML files, environment names and flags, as checked settings.

Errors are collected, so that a person fixes them all at once: each is one line that names its
source. Which settings exist is in `config.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from .config import Layer, S, Setting, Sourced, nested, outranks_files
from .errors import UserError, UserErrors
from .yaml_text import parse, parse_scalar


class Switch(NamedTuple):
    """A name that is no setting: true and false stand for values of one."""

    key: str
    values: Mapping[bool, object]  # without a value it changes nothing


@dataclass
class Sources:
    """Turns what people gave into layers, and layers into sections.

    aliases: other accepted spellings, with the key of each. hints: spellings that are refused, with
    the key that was probably meant. obsolete: names without an effect, with the reason. tolerant:
    an unknown key in a file is a note.
    """

    settings: Mapping[str, Setting]
    aliases: Mapping[str, str]
    switches: Mapping[str, Switch]
    hints: Mapping[str, str]
    obsolete: Mapping[str, str]
    tolerant: bool = False
    mistakes: list[UserError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def mistake(self, what: str, origin: str, remedy: str) -> None:
        """Note an error; `reject` raises it with all others."""
        self.mistakes.append(UserError(what, origin, remedy))

    def reject(self) -> None:
        """Raise `UserErrors` with each error once, if there is any."""
        if self.mistakes:
            unique = {str(error): error for error in self.mistakes}
            raise UserErrors(list(unique.values()))

    # --- reading

    def file(self, path: Path) -> Layer:
        """Return the settings in a YAML file. An empty file and an empty section are allowed."""
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
            return self.tree(parse(text), where)
        except OSError as error:
            what = f"cannot read the configuration ({error.strerror})"
            self.mistake(what, where, "check --config")
        except UnicodeDecodeError as error:
            self.mistake(f"not UTF-8 at byte {error.start}", where, "save the file as UTF-8")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
            if mark:
                where += f" line {mark.line + 1}"
            self.mistake(f"not YAML: {problem}", where, "fix that line, or the line above it")
        return {}

    def tree(self, tree: object, origin: str) -> Layer:
        """Read a nested mapping, in which `data: {path: x}` and `data.path: x` say the same."""
        layer: Layer = {}
        if isinstance(tree, Mapping):
            self._walk(tree, "", origin, layer)
        elif tree is not None:
            what = f"found {show(tree)} instead of settings"
            self.mistake(what, origin, "write `section.key: value`")
        return layer

    def texts(self, given: Iterable[tuple[str, str, str]]) -> Layer:
        """Read (key, text, origin) of the environment or the command line; a later one wins."""
        layer: Layer = {}
        for key, text, origin in given:
            setting = self.settings.get(self.aliases.get(key, key))
            is_text = setting is not None and setting.allowed == "text"
            value = text if is_text else parse_scalar(text)
            layer |= self.tree({key: value}, origin)
        return layer

    def _walk(self, tree: Mapping[object, object], prefix: str, origin: str, layer: Layer) -> None:
        sections = prefixes([*self.settings, *self.aliases])
        for name, value in tree.items():
            key = self.aliases.get(f"{prefix}{name}", f"{prefix}{name}")
            if key in self.switches:
                layer |= self._switched(key, value, origin)
            elif key in layer:
                self.mistake(f"setting {key!r} is given twice", origin, "keep one of the two")
            elif key in self.settings:
                layer[key] = Sourced(value, origin)
            elif key not in sections:
                self._unknown(key, origin)
            elif isinstance(value, Mapping):
                self._walk(value, f"{key}.", origin, layer)
            elif value is not None:
                what = f"section {key!r} cannot be {show(value)}"
                self.mistake(what, origin, "write `key: value`")

    def _switched(self, name: str, value: object, origin: str) -> Layer:
        """Return the setting that a switch stands for."""
        switch = self.switches[name]
        if value not in (True, False):
            self.mistake(f"{name} cannot be {show(value)}", origin, "give true or false")
        elif bool(value) in switch.values:
            return {switch.key: Sourced(switch.values[bool(value)], origin)}
        return {}

    def _unknown(self, key: str, origin: str) -> None:
        if self.tolerant and not outranks_files(origin):
            self.notes.append(f"{key} is passed over, as this project has no such setting")
            return
        name = leaf(key)
        if name in self.obsolete:
            self.notes.append(f"{origin}: {name} has no effect: {self.obsolete[name]}")
            return
        guess = self.nearest(key)
        remedy = f"did you mean {guess!r}?" if guess else "remove it; `train --help` lists all"
        self.mistake(f"unknown setting {key!r}", origin, remedy)

    def nearest(self, name: str) -> str:
        """Return the setting or section that `name` is probably a misspelling of, or nothing."""
        spellings = {**self.hints, **self.aliases}
        # A name that two sections have ("every_steps") says nothing without its section.
        leaves = [leaf(key) for key in self.settings]
        for key in self.settings:
            spellings[key] = key
            if leaves.count(leaf(key)) == 1:
                spellings[leaf(key)] = key
        if "." not in name:
            spellings |= {section: section for section in prefixes(self.settings)}
        return spellings.get(near({name, leaf(name)}, spellings), "")

    # --- checking

    def build(self, model: type[S], layer: Layer) -> S:
        """Return a checked `model`, or its defaults after noting each wrong value."""
        try:
            return model.model_validate(nested(layer, {}))
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                self.mistakes.append(self._explained(error, layer))
            return model()

    def _explained(self, error: Mapping[str, Any], layer: Layer) -> UserError:
        """Return one line for one of pydantic's errors.

        The alternatives of a union give the same line each.
        """
        # Elements of a list are counted from 1.
        path = [str(part + 1) if isinstance(part, int) else part for part in error["loc"]]
        depth = len(path)
        while ".".join(path[:depth]) not in self.settings:
            depth -= 1
        setting = self.settings[".".join(path[:depth])]
        value, origin = layer[setting.key]
        is_element = depth < len(path) and path[depth].isdigit()
        if is_element:
            return UserError(".".join(path), origin, error["msg"])
        what = f"{setting.key} cannot be {show(value)}"
        return UserError(what, origin, f"give {setting.allowed}")


def near(words: Iterable[str], spellings: Iterable[str], cutoff: float = 0.75) -> str:
    """Return the spelling that is most like one of `words`; empty where none is like it."""
    known = list(spellings)
    matches = []
    for word in words:
        for match in get_close_matches(word, known, 1, cutoff):
            matches.append((SequenceMatcher(None, match, word).ratio(), match))
    return max(matches, default=(0.0, ""))[1]


def show(value: object) -> str:
    """Show a wrong value in an error line: short, and on one line."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def leaf(key: str) -> str:
    """Return the name of a setting without its sections."""
    return key.rpartition(".")[2]


def prefixes(keys: Iterable[str]) -> set[str]:
    """Return every section above `keys`: `train.batch.seed` is in `train` and `train.batch`."""
    sections = set()
    for key in keys:
        for depth in range(1, key.count(".") + 1):
            sections.add(key.rsplit(".", depth)[0])
    return sections
