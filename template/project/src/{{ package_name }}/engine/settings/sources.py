"""Reads settings from YAML files, the environment and flags, and checks them.

Errors are collected, so that the user can fix all of them at once. Each error is one line that
names its source. `config.py` defines which settings exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import UserError, UserErrors
from .config import Layer, Settings, Sourced, catalogue, nested, outranks_files
from .yaml_text import parse_scalar, read_yaml

SWITCHES: dict[str, tuple[str, dict[bool, object]]] = {
    "use_amp": ("training.precision", {False: "fp32", True: "auto"}),
    "allow_unsafe_dataloader": ("data.num_workers", {False: 0}),
}
"""Names whose `true` and `false` stand for values of a setting; a missing one changes nothing."""

# Names from older projects that are accepted in files and as flags.
ALIASES = {
    "data.gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "data.log_gpu_stats_every_n_batches": "monitor.every_steps",
    "data.use_amp": "use_amp",
    "training.use_amp": "use_amp",
    "training.log_gpu_stats_every_n_batches": "monitor.every_steps",
}
OF_DATA = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
for _name in (*OF_DATA, "chunk_size_gb"):
    ALIASES[f"train.batch.{_name}"] = f"data.{_name}"
    ALIASES[f"training.{_name}"] = f"data.{_name}"

OBSOLETE = {
    "use_chunk_loader": "use `copier update --defaults -r :current: -d loader=chunk` instead",
    "empty_cache_every_n_epochs": "emptying the GPU's cache takes time and frees no memory in use",
}
"""Names from those projects that have no effect, and the reason."""

HINTS = {
    "lr": "optimizer.learning_rate",
    "workers": "data.num_workers",
    "amp": "training.precision",
    "clip": "training.gradient_clip",
}
"""Short names that are rejected, with the setting that was probably meant."""


@dataclass
class Sources:
    """Turns the user's values into layers, and layers into settings.

    tolerant: an unknown key in a file is a note, not an error.
    """

    model: type[Settings]
    tolerant: bool = False
    errors: list[UserError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = catalogue(self.model)
        self.sections = prefixes([*self.settings, *ALIASES])

    def add_error(self, what: str, origin: str, remedy: str) -> None:
        """Collect an error; `reject` raises it with all others."""
        self.errors.append(UserError(what, origin, remedy))

    def reject(self) -> None:
        """Raise `UserErrors` with each error once, if there is any."""
        if self.errors:
            unique = {str(error): error for error in self.errors}
            raise UserErrors(list(unique.values()))

    # --- reading

    def file(self, path: Path) -> Layer:
        """Return the settings in a YAML file. An empty file and an empty section are allowed."""
        try:
            return self.tree(read_yaml(path), str(path))
        except UserError as error:
            self.errors.append(error)
        except OSError as error:
            what = f"cannot read the configuration ({error.strerror})"
            self.add_error(what, str(path), "check --config")
        return {}

    def text(self, key: str, text: str, origin: str) -> Layer:
        """Read the text that the environment or the command line gives for a setting."""
        setting = self.settings.get(ALIASES.get(key, key))
        is_text = setting is not None and setting.allowed == "text"
        return self.tree({key: text if is_text else parse_scalar(text)}, origin)

    def tree(self, tree: object, origin: str) -> Layer:
        """Read a nested mapping, in which `data: {path: x}` and `data.path: x` mean the same.

        Its values are checked here, because later another source could hide a wrong value.
        """
        layer: Layer = {}
        if isinstance(tree, Mapping):
            self._walk(tree, "", origin, layer)
        elif tree is not None:
            what = f"found {show(tree)} instead of settings"
            self.add_error(what, origin, "write `section.key: value`")
        self.build(layer)
        return layer

    def _walk(self, tree: Mapping[object, object], prefix: str, origin: str, layer: Layer) -> None:
        for name, value in tree.items():
            key = f"{prefix}{name}"
            key = ALIASES.get(key, key)
            if key in SWITCHES:
                layer |= self._switched(key, value, origin)
            elif key in layer:
                self.add_error(f"setting {key!r} is given twice", origin, "keep one of the two")
            elif key in self.settings:
                layer[key] = Sourced(value, origin)
            elif key not in self.sections:
                self._unknown(key, origin)
            elif isinstance(value, Mapping):
                self._walk(value, f"{key}.", origin, layer)
            elif value is not None:
                what = f"section {key!r} cannot be {show(value)}"
                self.add_error(what, origin, "write `key: value`")

    def _switched(self, name: str, value: Any, origin: str) -> Layer:
        """Return the setting that a switch stands for."""
        key, values = SWITCHES[name]
        if value not in (True, False):
            self.add_error(f"{name} cannot be {show(value)}", origin, "give true or false")
        elif value in values:
            return {key: Sourced(values[value], origin)}
        return {}

    def _unknown(self, key: str, origin: str) -> None:
        name = key.rpartition(".")[2]
        if self.tolerant and not outranks_files(origin):
            self.notes.append(f"{key} is skipped, as this project has no such setting")
        elif name in OBSOLETE:
            self.notes.append(f"{origin}: {name} has no effect: {OBSOLETE[name]}")
        else:
            known = [*self.settings, *self.sections, *ALIASES]
            guess = HINTS.get(name) or near(key, known)
            guess = ALIASES.get(guess, guess)
            remedy = "remove it; `train --help` lists all settings"
            if guess:
                remedy = f"did you mean {guess!r}?"
            self.add_error(f"unknown setting {key!r}", origin, remedy)

    # --- checking

    def build(self, layer: Layer) -> Any:
        """Return checked settings; if values are wrong, collect the errors and return defaults."""
        try:
            return self.model.model_validate(nested(layer, {}))
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                self.errors.append(self._explained(error, layer))
            return self.model.model_validate({})

    def _explained(self, error: Mapping[str, Any], layer: Layer) -> UserError:
        """Return one of pydantic's errors as a line.

        All alternatives of a union result in the same line.
        """
        # Elements of a list are counted from 1.
        path = [str(key + 1) if isinstance(key, int) else key for key in error["loc"]]
        where = ".".join(path)
        key = next(key for key in self.settings if f"{where}.".startswith(f"{key}."))
        value, origin = layer[key]
        if where.removeprefix(f"{key}.")[:1].isdigit():
            remedy = f"give {self.settings[key].allowed}"
            if key == "phases":
                remedy = "give each phase a name, steps and, if settings differ, overrides"
            return UserError(f"{where}: {error['msg']}", origin, remedy)
        return UserError(
            f"{key} cannot be {show(value)}", origin, f"give {self.settings[key].allowed}"
        )


def near(word: str, spellings: Iterable[str], cutoff: float = 0.7) -> str:
    """Return the spelling that is most similar to `word`; empty if none is similar."""
    matches = get_close_matches(word, list(spellings), 1, cutoff)
    return matches[0] if matches else ""


def show(value: object) -> str:
    """Show a wrong value in an error line: short, and on one line."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def prefixes(keys: Iterable[str]) -> set[str]:
    """Return every section above `keys`: `train.batch.seed` is in `train` and `train.batch`."""
    sections = set()
    for key in keys:
        while "." in key:
            key = key.rpartition(".")[0]
            sections.add(key)
    return sections
