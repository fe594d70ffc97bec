"""What a setting is, and what people gave: typed sections, YAML, environment and command line.

Nothing here knows which settings exist, and nothing imports torch, numpy or h5py: `--help` stays
fast.
Mistakes are collected, so that a person fixes them all at once: each is one line that names its
source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from .errors import UserError, UserErrors

S = TypeVar("S", bound="Section")

Auto = Literal["auto"]
"""A value that is chosen at the start of a run; the start-up report names the choice."""

BatchSize = Annotated[int, Field(ge=1, description="samples in a micro-batch")]


class Section(BaseModel):
    """A group of settings. Unknown keys, nan and infinity are refused; values cannot change."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, frozen=True, validate_default=True, defer_build=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: object, info: ValidationInfo) -> object:
        # Python counts True as 1, so that `epochs: yes` would train for one epoch.
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise ValueError("a yes or no is not a number")
        return value

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        """Yield values that are fine alone and wrong together: (what, keys, what to do)."""
        for name in type(self).model_fields:
            section = getattr(self, name)
            if isinstance(section, Section):
                yield from section.conflicts()


def separated(value: object) -> object:
    """Return a list, also from a text with commas between, as a flag gives it."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    return value or ()


def defaults(model: type[S]) -> S:
    """Make a field that holds a section in which everything is as by default."""
    # pydantic makes a `model` of {} when it makes settings; `--help` needs none.
    return Field(cast(S, {}))


class LoaderSettings(Section):
    """Where the samples lie, in which order they come and how they reach the device."""

    path: str = Field("data", min_length=1, description="folder that `prepare` wrote")
    batch_size: BatchSize = 32
    order: Literal["auto", "full", "block", "time", "lanes", "bucket", "random_start"] = "auto"
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of the training samples, always the same"
    )
    shuffle_block: int = Field(
        8192, ge=1, description="samples shuffled together in the order `block`"
    )
    num_workers: Annotated[int, Field(ge=0, le=256)] | Auto = Field(
        "auto", description="processes that read"
    )
    pin_memory: bool = Field(
        True, description="page-locked host memory, for copies that overlap with work"
    )
    prefetch_factor: int = Field(2, ge=1, le=64, description="batches that each worker holds ready")
    persistent_workers: bool = Field(True, description="keep the workers alive between epochs")
    resident: bool | Auto = Field(
        "auto", description="keep all samples on the device; auto: where they fit"
    )
    chunk_size_gb: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto", description="GB on the device"
    )


@cache
def found(folder: str, declares: str) -> list[ModuleType]:
    """Return the modules of a folder of the package with a line that begins with `declares`.

    found("hooks", "class Hook"): in order of names. Their text is read, and only such a module is
    imported.
    """
    modules = []
    for file in sorted((Path(__file__).parents[1] / folder).glob("[!_]*.py")):
        text = file.read_text(encoding="utf-8")
        if f"\n{declares}" in f"\n{text}":
            modules.append(import_module(f"..{folder}.{file.stem}", __package__))
    return modules


# ---- the catalogue, for help and for the lines of mistakes -----------------------------------


class Setting(NamedTuple):
    """One setting as `--help` and the lines of mistakes need it."""

    key: str
    default: object
    allowed: str
    meaning: str


def catalogue(model: type[Section], prefix: str = "") -> dict[str, Setting]:
    """Return every setting of `model` by its dotted key, in the order of the schema."""
    settings: dict[str, Setting] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        key = prefix + name
        # Python 3.10 takes list[int] for a class, hence the first test.
        if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Section):
            settings |= catalogue(kind, f"{key}.")
            continue
        default = info.get_default(call_default_factory=True)
        allowed = _allowed(kind, info.metadata)
        settings[key] = Setting(key, default, allowed, info.description or "")
    return settings


KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
}
# As pydantic's objects name them.
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _allowed(annotation: Any, metadata: Sequence[object] = ()) -> str:
    """Describe the values of a setting: `a whole number at least 0 and at most 256 or auto`."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        kind, *annotations = arguments
        limits = [limit for info in annotations for limit in info.metadata]
        return _allowed(kind, limits)
    if origin in (Union, UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        return " or ".join(_allowed(kind) for kind in kinds)
    if origin is Literal:
        *values, last = arguments
        return f"{', '.join(values)} or {last}" if values else str(last)

    bounds = []
    for limit, name in product(metadata, LIMITS):
        if hasattr(limit, name):
            bounds.append(f" {LIMITS[name]} {getattr(limit, name)}")
    return KINDS.get(origin or annotation, "a mapping") + " and".join(bounds)


# ---- what people gave ------------------------------------------------------------------------


class Given(NamedTuple):
    """A value that somebody gave, and where."""

    value: Any
    origin: str


Layer = dict[str, Given]
"""What one source says: values by dotted key. Sources are merged by `weak | strong`."""


def outranks_files(origin: str) -> bool:
    """Whether a value comes from the environment or the command line."""
    return origin.startswith(("$", "--"))


@dataclass
class Sources:
    """What turns people's words into layers and layers into sections, and collects every mistake.

    aliases: other accepted spellings, with the key of each. hints: spellings that are refused, with
    the key that was probably meant. obsolete: names that do nothing any more, with the reason.
    tolerant: an unknown key in a file is a note.
    """

    settings: Mapping[str, Setting]
    aliases: Mapping[str, str]
    hints: Mapping[str, str]
    obsolete: Mapping[str, str]
    tolerant: bool = False
    mistakes: list[UserError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def mistake(self, what: str, origin: str, remedy: str) -> None:
        """Note one mistake; `reject` raises it with all others."""
        self.mistakes.append(UserError(what, origin, remedy))

    def file(self, path: Path) -> Layer:
        """Return the settings in a YAML file. An empty file and an empty section are allowed."""
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
            return self.tree(_Loader(text).get_single_data(), where)
        except OSError as error:
            what = f"cannot read the configuration ({error.strerror})"
            self.mistake(what, where, "check --config")
        except UnicodeDecodeError as error:
            self.mistake(f"not UTF-8 at byte {error.start}", where, "save the file as UTF-8")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self._not_yaml(error, where)
        return {}

    def _not_yaml(self, error: Exception, where: str) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        if mark:
            where += f" line {mark.line + 1}"
        self.mistake(f"not YAML: {problem}", where, "mend that place, or the line above it")

    def tree(self, tree: object, origin: str) -> Layer:
        """Read a nested mapping, in which `data: {path: x}` and `data.path: x` say the same."""
        layer: Layer = {}
        if isinstance(tree, Mapping):
            self._walk(tree, "", origin, layer)
        elif tree is not None:
            self.mistake(
                f"found {show(tree)} instead of settings", origin, "write `section.key: value`"
            )
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

    def build(self, model: type[S], layer: Layer) -> S:
        """Return a checked `model`, or its defaults after noting each wrong value."""
        tree: dict[str, Any] = {}
        for key, given in layer.items():
            *sections, name = key.split(".")
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
            branch[name] = given.value
        try:
            return model.model_validate(tree)
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                self.mistakes.append(self._explained(error, layer))
            return model()

    def reject(self) -> None:
        """Raise all mistakes together, each once.

        Raises:
            UserErrors: if there is any.
        """
        if self.mistakes:
            unique = {str(mistake): mistake for mistake in self.mistakes}
            raise UserErrors(list(unique.values()))

    def nearest(self, name: str) -> str | None:
        """Return the setting or section that `name` is probably a misspelling of."""
        spellings = {**self.hints, **self.aliases}
        # A name that two sections have ("every_steps") says nothing without its section.
        leaves = [_leaf(key) for key in self.settings]
        for leaf, key in zip(leaves, self.settings, strict=True):
            if leaves.count(leaf) == 1:
                spellings[leaf] = key
        spellings |= {key: key for key in self.settings}
        if "." not in name:
            spellings |= {section: section for section in _prefixes(self.settings)}
        return spellings.get(near({name, _leaf(name)}, spellings))

    def _walk(self, tree: Mapping[object, object], prefix: str, origin: str, layer: Layer) -> None:
        sections = _prefixes([*self.settings, *self.aliases])
        for name, value in tree.items():
            key = self.aliases.get(f"{prefix}{name}", f"{prefix}{name}")
            if key in layer:
                self.mistake(f"setting {key!r} is given twice", origin, "keep one of the two")
            elif key in self.settings:
                layer[key] = Given(value, origin)
            elif key not in sections:
                self._unknown(key, origin)
            elif isinstance(value, Mapping):
                self._walk(value, f"{key}.", origin, layer)
            elif value is not None:
                what = f"section {key!r} cannot be {show(value)}"
                self.mistake(what, origin, "write `key: value`")

    def _explained(self, error: Mapping[str, Any], layer: Layer) -> UserError:
        """Return one line for one of pydantic's errors.

        The alternatives of a union give the same line each.
        """
        # Elements of a list are counted from 1.
        path = [str(part + 1) if isinstance(part, int) else part for part in error["loc"]]
        depths = range(len(path), 0, -1)
        depth = next(depth for depth in depths if ".".join(path[:depth]) in self.settings)
        setting = self.settings[".".join(path[:depth])]
        value, origin = layer[setting.key]
        is_element = depth < len(path) and path[depth].isdigit()
        if is_element:
            return UserError(".".join(path), origin, error["msg"])
        what = f"{setting.key} cannot be {show(value)}"
        return UserError(what, origin, f"give {setting.allowed}")

    def _unknown(self, key: str, origin: str) -> None:
        if self.tolerant and not outranks_files(origin):
            self.notes.append(f"{key} is passed over, as this project has no such setting")
            return
        name = _leaf(key)
        if name in self.obsolete:
            self.notes.append(f"{origin}: {name} has no effect: {self.obsolete[name]}")
            return
        guess = self.nearest(key)
        remedy = f"did you mean {guess!r}?" if guess else "remove it; `train --help` lists all"
        self.mistake(f"unknown setting {key!r}", origin, remedy)


# libyaml is ten times as fast, where PyYAML was built with it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which a key written twice is an error, where PyYAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """What writes as `_Loader` reads."""


# `1e-3` is a text for PyYAML.
FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
yaml.add_implicit_resolver(FLOAT, EXPONENT, list("-+.0123456789"), _Loader, _Dumper)


def parse_scalar(text: str) -> object:
    """Read a value of the environment or the command line as YAML (JSON is YAML too)."""
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError):
        return text


def annotated_yaml(
    tree: Mapping[str, Any], origins: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """Return nested settings as lines of YAML, each with its origin behind it as a comment."""
    lines = []
    for name, value in tree.items():
        origin = origins.get(prefix + name)
        if origin is None:
            inner = annotated_yaml(value, origins, f"{prefix}{name}.")
            lines += [f"{name}:", *(f"  {line}" for line in inner)]
            continue
        text = yaml.dump(
            {name: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6
        )
        body = text.splitlines()
        # A comment inside a text of two lines would be text.
        place = -1 if isinstance(value, str) else 0
        body[place] = f"{body[place]:<42}  # {origin}"
        lines += body
    return lines


def near(words: Iterable[str], spellings: Iterable[str], cutoff: float = 0.75) -> str:
    """Return the spelling that is most like one of `words`; empty where none is like it."""
    known = list(spellings)
    nearest = ""
    best = 0.0
    for word in words:
        for match in get_close_matches(word, known, 1, cutoff):
            ratio = SequenceMatcher(None, match, word).ratio()
            if ratio > best:
                nearest = match
                best = ratio
    return nearest


def show(value: object) -> str:
    """Show a wrong value in the line of a mistake: short, and on one line."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _leaf(key: str) -> str:
    """Return the name of a setting without its sections."""
    return key.rpartition(".")[2]


def _prefixes(keys: Iterable[str]) -> set[str]:
    """Return every section above `keys`: `train.batch.seed` is in `train` and `train.batch`."""
    sections = set()
    for key in keys:
        for depth in range(1, key.count(".") + 1):
            sections.add(key.rsplit(".", depth)[0])
    return sections
