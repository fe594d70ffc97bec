"""Typed sections of settings, and the sections that every project has.

`config.py` adds the sections of the workload, the tracker, commands and hooks. The comments in
`config.yaml` explain each setting, and `train --help` prints them. Nothing here imports torch,
numpy or h5py, so that help and errors are fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from operator import attrgetter
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from ..errors import UserError
from .yaml_text import annotated_yaml

S = TypeVar("S", bound="Section")
SettingsT = TypeVar("SettingsT", bound="Settings")

Conflicts = Iterator[tuple[str, list[str], str]]
"""Settings that conflict with each other: what is wrong, their keys, and what to do."""


class Section(BaseModel):
    """A group of settings. Unknown keys, nan and infinity are rejected; values cannot change."""

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

    def conflicts(self) -> Conflicts:
        """Yield the conflicts between settings."""
        for name in type(self).model_fields:
            section = getattr(self, name)
            if isinstance(section, Section):
                yield from section.conflicts()


def defaults(model: type[S]) -> S:
    """Make a field that holds a section with the default of each setting."""
    # pydantic makes a `model` of {} only with the settings, so `--help` does not wait for it.
    return Field(cast(S, {}))


def separated(value: object) -> object:
    """Return a list; a flag gives it as a text with commas."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    return value or ()


# --- kinds of values

Auto = Literal["auto"]
"""A value that is chosen at the start of a run; the start-up report names the choice."""

Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
UpToOne = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
BatchSize = Positive
Names = Annotated[tuple[str, ...], BeforeValidator(separated)]
Precision = Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


# --- the sections that every project has


class LoaderSettings(Section):
    """Where the samples are, in which order they come and how they reach the device."""

    path: Annotated[str, Field(min_length=1)] = "data"
    batch_size: BatchSize = 32
    order: str = "auto"  # each workload says which it has
    fraction: UpToOne = 1.0
    shuffle_block: Positive = 8192
    num_workers: Annotated[int, Field(ge=0, le=256)] | Auto = "auto"
    pin_memory: bool = True
    prefetch_factor: Annotated[int, Field(ge=1, le=64)] = 2
    persistent_workers: bool = True
    resident: bool | Auto = "auto"
    chunk_size_gb: Annotated[float, Field(gt=0)] | Auto = "auto"


class Training(Section):
    """How long, in which precision, and what a step is made of."""

    precision: Precision = "auto"
    fp8_emulation: bool = False
    epochs: Positive = 10
    max_steps: Natural = 0
    gradient_accumulation_steps: Positive = 1
    gradient_clip: Annotated[float, Field(ge=0)] = 1.0
    gradient_checkpointing: bool = False
    cudnn_benchmark: bool = False
    init_from: str = ""
    freeze: Names = ()


class Compile(Section):
    """torch.compile, for each block of the model."""

    enabled: bool | Auto = "auto"
    mode: CompileMode = "default"
    dynamic: bool | Auto = "auto"
    fullgraph: bool = True


class Evaluation(Section):
    """When the validation samples are measured."""

    every_steps: Natural = 0
    patience: Natural = 0
    batch_size: Natural = 0
    fraction: UpToOne = 1.0


class Checkpoint(Section):
    """When the state is saved."""

    every_steps: Natural = 0
    keep: Annotated[int, Field(ge=2)] = 2


class Monitor(Section):
    """What is printed and written while training."""

    every_steps: Positive = 50
    progress: bool | Auto = "auto"


class Reproducibility(Section):
    """What makes two runs equal."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    deterministic: bool = False


class Phase(Section):
    """One phase of a run in several phases; `overrides` are settings that differ in it."""

    name: str
    steps: Positive
    overrides: Any = None


class Sourced(NamedTuple):
    """A value that the user gave, and where it comes from."""

    value: Any
    origin: str


Layer = dict[str, Sourced]
"""The values from one source, by dotted key. In `a | b`, the values of `b` take precedence."""


def outranks_files(origin: str) -> bool:
    """Whether a value comes from the environment or the command line."""
    return origin.startswith(("$", "--"))


def nested(layer: Layer, tree: dict[str, Any]) -> dict[str, Any]:
    """Put the values of a layer into a nested mapping; return it."""
    for key, given in layer.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = given.value
    return tree


class Settings(Section):
    """All settings of a run. `config.load` makes them, and knows where each value came from."""

    if TYPE_CHECKING:  # the workload has its own
        data: LoaderSettings
        model: Any

    optimizer: Any = None  # these two sections are in config.py
    schedule: Any = None
    training: Training = defaults(Training)
    compile: Compile = defaults(Compile)
    evaluation: Evaluation = defaults(Evaluation)
    checkpoint: Checkpoint = defaults(Checkpoint)
    monitor: Monitor = defaults(Monitor)
    reproducibility: Reproducibility = defaults(Reproducibility)
    phases: tuple[Phase, ...] = ()
    profiles: dict[str, Any] = {}

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _notes: list[str] = PrivateAttr(default_factory=list)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value came from: `default`, `config.yaml`, `$SEED`, `--data.path`."""
        return {key: self._origins.get(key, "default") for key in catalogue(type(self))}

    @property
    def notes(self) -> list[str]:
        """Lines that the user should read, though nothing is wrong."""
        return self._notes

    def value(self, key: str) -> Any:
        """Return the value of a dotted key."""
        return attrgetter(key)(self)

    def resolved(self) -> dict[str, Any]:
        """Return every value as plain data; `load` of the same data gives the same settings."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return `resolved()` as YAML, with the origin of each value as a comment."""
        return "\n".join([*annotated_yaml(self.resolved(), self.origins), ""])

    def changed(self) -> list[dict[str, Any]]:
        """List the settings that differ from the defaults, and their origins, for env.json."""
        rows = []
        for key, setting in catalogue(type(self)).items():
            value = self.value(key)
            if key == "profiles" or value == setting.default:
                continue
            if key == "phases":
                value = self.resolved()[key]
            origin = self.origins[key]
            rows.append({"name": key, "value": value, "default": setting.default, "origin": origin})
        return rows

    def without_effect(self, keys: Iterable[str], why: str) -> list[str]:
        """Return a note for each of `keys` that the environment or a flag sets without effect."""
        origins = [origin for key, origin in self.origins.items() if key in keys]
        return [f"{origin} has no effect: {why}" for origin in filter(outranks_files, origins)]

    def phase(self: SettingsT, number: int) -> SettingsT:
        """Return the settings of phase `number`, counted from 1.

        They hold its overrides, and its steps as training.max_steps. Raises `UserError` if there is
        no such phase.
        """
        count = len(self.phases)
        if not 1 <= number <= count:
            what = f"there is no phase {number}"
            raise UserError(what, "--phase", f"the configuration has {count} phases")
        phase = self.phases[number - 1]
        origin = f"{self.origins['phases']} phase {number}"
        overrides = {key: Sourced(value, origin) for key, value in phase.overrides.items()}
        return self.lasting(phase.steps, origin, overrides)

    def lasting(
        self: SettingsT, steps: int, origin: str, overrides: Layer | None = None
    ) -> SettingsT:
        """Return these settings with `overrides` and with `steps` as training.max_steps."""
        layer = {**(overrides or {}), "training.max_steps": Sourced(steps, origin)}
        tree = self.model_dump(exclude_unset=True)
        settings = type(self).model_validate(nested(layer, tree))
        settings._origins = self._origins | {key: given.origin for key, given in layer.items()}
        settings._notes = self._notes
        return settings

    def conflicts(self) -> Conflicts:
        """Yield the conflicts between settings."""
        yield from super().conflicts()
        mode = self.compile.mode
        graphs = self.compile.enabled and mode in ("reduce-overhead", "max-autotune")
        if graphs and self.training.gradient_accumulation_steps > 1:
            keys = ["compile.mode", "training.gradient_accumulation_steps"]
            what = f"compile.mode {mode} overwrites accumulated gradients (pytorch#169545)"
            modes = "default or max-autotune-no-cudagraphs"
            yield what, keys, f"set {keys[0]} to {modes}, or {keys[1]} to 1"
        if self.reproducibility.deterministic and self.training.cudnn_benchmark:
            keys = ["reproducibility.deterministic", "training.cudnn_benchmark"]
            what = "cudnn_benchmark picks kernels by time, so runs differ"
            yield what, keys, "switch one of the two off"


# --- the catalogue, for help and for error lines


class Setting(NamedTuple):
    """One setting as `--help` and error lines need it."""

    default: object
    allowed: str


@cache
def catalogue(model: type[Section], prefix: str = "") -> Mapping[str, Setting]:
    """Return every setting of `model` by its dotted key, in the order of the schema."""
    settings: dict[str, Setting] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        key = prefix + name
        if isinstance(kind, type) and issubclass(kind, Section):
            settings |= catalogue(kind, f"{key}.")
            continue
        default = info.get_default(call_default_factory=True)
        settings[key] = Setting(default, _allowed(kind, info.metadata))
    return settings


KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
}
# pydantic's names of the limits, and how to print them.
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
        return " or ".join(_allowed(kind) for kind in arguments)
    if origin is Literal:
        *values, last = arguments
        return f"{', '.join(values)} or {last}" if values else str(last)

    bounds = []
    for limit, name in product(metadata, LIMITS):
        if hasattr(limit, name):
            bounds.append(f" {LIMITS[name]} {getattr(limit, name)}")
    return KINDS.get(origin or annotation, "a mapping") + " and".join(bounds)
