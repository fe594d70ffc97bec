"""The settings of this project: which ones exist, and where their values come from.

The command line takes precedence over the environment, then come config.yaml and the defaults. The
schema is here, in `engine/settings/config.py` and `settings.py`, and in the classes `Sections` of
`commands/` and `hooks/`. Read a value as `settings.training.precision`. Nothing here imports torch,
numpy or h5py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Literal

from .engine.errors import UserError
from .engine.log.tracker import Sections as TrackerSections
from .engine.plugins import discover
from .engine.settings import config as engine
from .engine.settings.config import (
    Auto,
    BelowOne,
    Factor,
    Layer,
    Natural,
    Section,
    Sourced,
    UpToOne,
    catalogue,
    defaults,
    outranks_files,
)
from .engine.settings.sources import Sources, near
from .settings import LEARNING_RATE, Sections

_plugins = [*discover("commands", "Sections"), *discover("hooks", "Sections")]
_sections = [plugin.Sections for plugin in _plugins]


class Optimizer(Section):
    """How weights change at each step."""

    name: Literal["adamw", "adafactor", "muon"] = "adamw"
    learning_rate: UpToOne = LEARNING_RATE
    weight_decay: Factor = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: UpToOne = 1e-8
    fused: bool = True


class Schedule(Section):
    """How the learning rate moves over the run."""

    name: Literal["cosine", "onecycle", "linear", "constant"] = "cosine"
    warmup_steps: Natural | Auto = "auto"
    final_factor: Factor = 0.1


# mypy cannot follow base classes that are discovered at run time.
class Settings(engine.Settings, *_sections, TrackerSections, Sections):  # type: ignore[misc]
    """Every setting of a run, made by `load`."""

    optimizer: Optimizer = defaults(Optimizer)
    schedule: Schedule = defaults(Schedule)


SETTINGS = catalogue(Settings)

ENVIRONMENT = {
    "DETERMINISTIC": "reproducibility.deterministic",
    "SEED": "reproducibility.seed",
    "NUM_WORKERS": "data.num_workers",
    "PIN_MEMORY": "data.pin_memory",
    "PREFETCH_FACTOR": "data.prefetch_factor",
    "PERSISTENT_WORKERS": "data.persistent_workers",
    "USE_AMP": "use_amp",
    "ALLOW_UNSAFE_DATALOADER": "allow_unsafe_dataloader",
}
"""The environment variables that set something, with their settings; no other one is read."""


# --- reading


def load(
    config: Path | None = None,
    profile: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    *,
    resolved: bool = False,
    errors: Iterable[UserError] = (),
) -> Settings:
    """Return the settings from a YAML file, one of its profiles, the environment and the flags.

    Profiles and phases that this run does not use are checked too.

    Args:
        resolved: `config` is the `config.resolved.yaml` of a run that is resumed. A setting in it
            that this project no longer has, such as that of a removed extra, is only a note.
        errors: errors from elsewhere, raised together with the errors of the settings.

    Raises:
        UserErrors: every error in every source, one line each.
    """
    given = Sources(Settings, tolerant=resolved)
    given.errors += errors
    file = given.file(config) if config else {}
    profiles = _profiles(given, file, str(config))
    if profile is not None and profile not in profiles:
        remedy = "define it in `profiles:` of config.yaml"
        if profiles:
            remedy = f"choose one of {', '.join(profiles)}"
        given.add_error(f"unknown profile {profile!r}", "--profile", remedy)
    # Each layer takes precedence over the layers before it.
    merged = file | profiles.get(profile or "", {})
    environment = environment or {}
    for name, key in ENVIRONMENT.items():
        text = environment.get(name)
        if text:  # empty counts as unset: containers pass `SEED=` for a variable that is not set
            merged |= given.text(key, text, f"${name}")
    for key, text in overrides:
        merged |= given.text(key, text, f"--{key}")
    _normalize_phases(given, merged)
    given.reject()

    settings: Settings = given.build(merged)
    settings._origins = {key: value.origin for key, value in merged.items()}
    notes = [*_misspelt(environment), *given.notes]
    settings._notes = list(dict.fromkeys(notes))
    _reject_conflicts(given, settings)
    return settings


def _profiles(given: Sources, file: Layer, config: str) -> dict[str, Layer]:
    """Return the settings in each profile of a file, by name."""
    trees = given.build(_only("profiles", file)).profiles
    return {name: given.tree(tree, f"{config} profile {name}") for name, tree in trees.items()}


def _normalize_phases(given: Sources, merged: Layer) -> None:
    """Write the phases' overrides by dotted key, except those that environment or flags outrank."""
    given_phases = given.build(_only("phases", merged)).phases
    if not given_phases:
        return
    origin = merged["phases"].origin
    phases = []
    for number, phase in enumerate(given_phases, 1):
        values = {}
        for key, override in given.tree(phase.overrides, f"{origin} phase {number}").items():
            if key not in merged or not outranks_files(merged[key].origin):
                values[key] = override.value
        phases.append({**phase.model_dump(), "overrides": values})
    merged["phases"] = Sourced(phases, origin)


def _only(key: str, layer: Layer) -> Layer:
    """Return a layer that has this setting only, or is empty if the setting is not given."""
    return {key: layer[key]} if key in layer else {}


def _reject_conflicts(given: Sources, settings: Settings) -> None:
    """Raise `UserErrors` for settings that conflict with each other, also within a phase."""
    phases = [settings.phase(number) for number in range(1, len(settings.phases) + 1)]
    for variant in [settings, *phases]:
        for what, keys, remedy in variant.conflicts():
            where = dict.fromkeys(variant.origins[key] for key in keys)
            given.add_error(what, " and ".join(where), remedy)
    # A later phase continues with the weights of the first phase.
    of_weights = [key for key in SETTINGS if key.startswith("model.") and "dropout" not in key]
    for phase, key in product(phases[1:], [*of_weights, "training.init_from"]):
        value = phase.value(key)
        first = phases[0].value(key)
        if value != first:
            what = f"{key} is {value}, but {first} in phase 1"
            remedy = "set it for all phases: each continues with the same weights"
            given.add_error(what, phase.origins["training.max_steps"], remedy)
    given.reject()


def _misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each environment variable with almost a known name, such as NUM_WORKER."""
    for name in environment:
        if name in ENVIRONMENT:
            continue
        # 0.9 accepts NUM_WORKER, but not SPEED, which is only one letter away from SEED.
        meant = near(name.upper(), ENVIRONMENT, 0.9)
        if meant:
            yield f"{name} is not a setting: environment: did you mean {meant}?"
