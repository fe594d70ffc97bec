"""What a setting is: typed sections, the keys every loader has, and a catalogue for help and errors.

Nothing here reads a file, and nothing here imports torch, numpy or h5py: `--help` stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

S = TypeVar("S", bound="Section")

Auto = Literal["auto"]
"""A value that is chosen at the start of a run, by the machine; the start-up report names the choice."""

BatchSize = Annotated[int, Field(ge=1, description="samples in a micro-batch")]


class Section(BaseModel):
    """A group of settings: unknown keys, nan and infinity are refused, values cannot change later."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts True as 1, so that `epochs: yes` would train for one epoch.
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in _types(annotation):
            raise ValueError("a yes or no is not a number")
        return value

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        """Values that are fine alone and wrong together: (what, keys of the settings, what to do)."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                yield from value.conflicts()


def defaults(model: type[S]) -> S:
    """A section in which everything is as by default."""
    return model()


class LoaderSettings(Section):
    """Where the samples lie, in which order they come and how they reach the device."""

    path: str = Field("data", min_length=1, description="folder that `prepare` wrote")
    batch_size: BatchSize = 32
    order: Literal["time", "block", "full", "lanes", "bucket", "random_start"] = Field(
        "full", description="order of the training samples; evaluation always runs in time order"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of the training samples to use, always the same ones"
    )
    shuffle_block: int = Field(8192, ge=1, description="samples shuffled together in the order `block`")
    stride: int = Field(0, ge=0, description="rows between samples of a lane; 0 is the workload's own")
    num_workers: Annotated[int, Field(ge=0, le=256)] | Auto = Field(
        "auto", description="processes that read ahead; 0 reads in the training process"
    )
    pin_memory: bool = Field(True, description="page-locked host memory, for copies that overlap with work")
    prefetch_factor: int = Field(2, ge=1, le=64, description="batches that each worker holds ready")
    persistent_workers: bool = Field(True, description="keep the workers alive between epochs")
    chunk_size_gb: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto", description="GB of samples held on the device by a loader that reads in chunks"
    )
    resident: bool | Auto = Field(
        "auto", description="all samples stay on the device; auto on a GPU with room"
    )


@dataclass(frozen=True)
class Setting:
    """One setting as `--help` and the error lines need it."""

    key: str
    default: Any
    allowed: str
    meaning: str
    is_text: bool


def catalogue(model: type[Section], prefix: str = "") -> dict[str, Setting]:
    """Every setting of `model` by its dotted key, in the order of the schema."""
    found: dict[str, Setting] = {}
    for name, field in model.model_fields.items():
        if section := as_section(field.annotation):
            found |= catalogue(section, f"{prefix}{name}.")
        else:
            found[prefix + name] = Setting(
                key=prefix + name,
                default=field.get_default(call_default_factory=True),
                allowed=_allowed(field.annotation, field.metadata),
                meaning=field.description or "",
                is_text=str in _types(field.annotation),
            )
    return found


def changed_settings(settings: Any) -> list[dict[str, Any]]:
    """What differs from the defaults and where it came from, for `changed` of env.json."""
    known = catalogue(type(settings))
    values = {key: settings.value(key) for key in known if key != "profiles"}
    return [
        {
            "name": key,
            "value": plain(x),
            "default": plain(known[key].default),
            "origin": settings.origins[key],
        }
        for key, x in values.items()
        if x != known[key].default
    ]


def plain(value: Any) -> Any:
    """A value that JSON can hold; lists and the like as text."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def as_section(annotation: Any) -> type[Section] | None:
    """The section that a field holds; None where the field is a setting."""
    # Python 3.10 takes list[int] for a class, hence the first test.
    is_class = get_origin(annotation) is None and isinstance(annotation, type)
    return annotation if is_class and issubclass(annotation, Section) else None


def _types(annotation: Any) -> set[Any]:
    """The alternatives of a union, each without its `Annotated`."""
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*(_types(part) for part in get_args(annotation)))
    return {get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation}


def _allowed(annotation: Any, limits: Any = ()) -> str:
    """The values a setting takes, in words: `a whole number from 0 to 256 or auto`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(parts[0], [limit for field in parts[1:] for limit in field.metadata])
    if origin in (Union, UnionType):
        return " or ".join(_allowed(part) for part in parts if part is not type(None))
    if origin is Literal:
        return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    if origin in (list, tuple):
        return f"a list, each entry {_allowed(parts[0])}"
    if annotation in (int, float):
        return f"a {'whole number' if annotation is int else 'number'}{_range(limits)}"
    return {bool: "true or false", str: "text"}.get(annotation, "a mapping")


def _range(limits: Any) -> str:
    """Limits in words; pydantic's are objects with one attribute: `ge`, `gt`, `le` or `lt`."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = {name: getattr(limit, name) for limit in limits for name in words if hasattr(limit, name)}
    if found.keys() == {"ge", "le"}:
        return f" from {found['ge']} to {found['le']}"
    return " and".join(f" {words[name]} {bound}" for name, bound in found.items())
