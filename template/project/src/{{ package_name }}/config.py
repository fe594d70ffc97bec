"""The settings of this project: which exist, other names for them, and where values come from.

Defaults < config.yaml < environment < command line. The schema is `engine/config.py`, `settings.py`
and each `Sections` of a file in `commands/` and `hooks/`. Read a value as
`settings.training.precision`. Nothing here imports torch, numpy or h5py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

from .engine import config as engine
from .engine.config import Fraction, Layer, Sourced, catalogue, defaults, outranks_files
from .engine.errors import UserError
from .engine.plugins import discover
from .engine.sources import Sources, Switch, near
from .engine.tracker import Sections as TrackerSections
from .settings import LEARNING_RATE, Sections

_plugins = [*discover("commands", "Sections"), *discover("hooks", "Sections")]
_sections = [plugin.Sections for plugin in _plugins]


class Optimizer(engine.Optimizer):
    """How weights change at each step."""

    learning_rate: Fraction = LEARNING_RATE


# Its bases are known only when it runs.
class Settings(engine.Settings, *_sections, TrackerSections, Sections):  # type: ignore[misc]
    """Every setting of a run, made by `load`."""

    optimizer: Optimizer = defaults(Optimizer)


SETTINGS = catalogue(Settings)

# --- other names for settings

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
"""Environment names and the setting that each one sets; no other name is read."""

SWITCHES = {
    "use_amp": Switch("training.precision", {False: "fp32", True: "auto"}),
    "allow_unsafe_dataloader": Switch("data.num_workers", {False: 0}),
}
"""Names whose `true` and `false` stand for values of a setting."""

# Names of the projects that this one comes from, accepted in files and as flags.
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
    "use_chunk_loader": "`copier update -d loader=chunk` decides",
    "empty_cache_every_n_epochs": "emptying the GPU's cache takes time and frees nothing live",
}
"""Names of those projects that have no effect, and why."""

HINTS = {
    "lr": "optimizer.learning_rate",
    "workers": "data.num_workers",
    "amp": "training.precision",
    "clip": "training.gradient_clip",
}
"""Short names that are refused, with the setting that was probably meant."""


# --- reading


def load(
    config: Path | None = None,
    profile: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    *,
    resolved: bool = False,
    mistakes: Iterable[UserError] = (),
) -> Settings:
    """Return the settings from a YAML file, one of its profiles, the environment and the flags.

    Profiles and phases that this run does not use are checked too.

    Args:
        resolved: `config` is the `config.resolved.yaml` of a run that is resumed. Settings in it
            that this project no longer has, as of an extra that was taken away, are a note.
        mistakes: what else is wrong, to be raised together with what is wrong here.

    Raises:
        UserErrors: every error in every source, one line each.
    """
    given = sources(tolerant=resolved)
    given.mistakes += mistakes
    file = given.file(config) if config else {}
    profiles = _profiles(given, file, str(config))
    if profile is not None and profile not in profiles:
        remedy = "config.yaml has no `profiles:`"
        if profiles:
            remedy = f"choose one of {', '.join(profiles)}"
        given.mistake(f"unknown profile {profile!r}", "--profile", remedy)
    by_environment = given.texts(_named(environment or {}))
    by_flags = given.texts((key, text, f"--{key}") for key, text in overrides)

    # From the weakest to the strongest.
    layers = [file, profiles.get(profile or "", {}), by_environment, by_flags]
    merged: Layer = {}
    for layer in layers:
        merged |= layer
    phases = _phases(given, merged)
    # Each is checked alone: a stronger value would hide a wrong one.
    for layer in [*layers, *profiles.values(), *phases]:
        given.build(Settings, layer)
    given.reject()

    if phases:
        merged["phases"] = _weakened(merged, phases)
    settings = given.build(Settings, merged)
    settings._origins = {key: value.origin for key, value in merged.items()}
    settings._notes = list(dict.fromkeys([*_misspelt(environment or {}), *given.notes]))
    _reject_conflicts(given, settings)
    return settings


def sources(tolerant: bool = False) -> Sources:
    """Make what turns people's words into settings."""
    return Sources(SETTINGS, ALIASES, SWITCHES, HINTS, OBSOLETE, tolerant)


def _named(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, text, origin) of each environment name that is set."""
    for name, key in ENVIRONMENT.items():
        # An empty name is an unset one: containers pass `SEED=` for what nobody set.
        text = environment.get(name)
        if text:
            yield key, text, f"${name}"


def _profiles(given: Sources, file: Layer, config: str) -> dict[str, Layer]:
    """Return the settings in each profile of a file, by name."""
    trees = {}
    if "profiles" in file:
        trees = given.build(Settings, {"profiles": file["profiles"]}).profiles
    return {name: given.tree(tree, f"{config} profile {name}") for name, tree in trees.items()}


def _phases(given: Sources, merged: Layer) -> list[Layer]:
    """Return the settings in each phase."""
    if "phases" not in merged:
        return []
    phases = given.build(Settings, {"phases": merged["phases"]}).phases
    origin = merged["phases"].origin
    return [
        given.tree(phase.overrides, f"{origin} phase {number}")
        for number, phase in enumerate(phases, 1)
    ]


def _weakened(merged: Layer, overrides: list[Layer]) -> Sourced:
    """Return the phases, without overrides that the environment or a flag outranks."""
    value, origin = merged["phases"]
    phases = []
    for phase, layer in zip(value, overrides, strict=True):
        values = {}
        for key, given in layer.items():
            if key not in merged or not outranks_files(merged[key].origin):
                values[key] = given.value
        phases.append({**phase, "overrides": values})
    return Sourced(phases, origin)


def _reject_conflicts(given: Sources, settings: Settings) -> None:
    """Raise `UserErrors` for values that are fine alone and wrong together, in any phase too."""
    phases = [settings.phase(number) for number in range(1, len(settings.phases) + 1)]
    for variant in [settings, *phases]:
        for what, keys, remedy in variant.conflicts():
            where = dict.fromkeys(variant.origins[key] for key in keys)
            given.mistake(what, " and ".join(where), remedy)
    # A later phase goes on with the weights of the first.
    of_weights = [key for key in SETTINGS if key.startswith("model.") and "dropout" not in key]
    for phase, key in product(phases[1:], [*of_weights, "training.init_from"]):
        value = phase.value(key)
        first = phases[0].value(key)
        if value != first:
            what = f"{key} is {value}, but {first} in phase 1"
            remedy = "set it for all phases: each goes on with the same weights"
            given.mistake(what, phase.origins["training.max_steps"], remedy)
    given.reject()


def _misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each environment name that is almost one of ours, such as NUM_WORKER."""
    for name in environment:
        if name in ENVIRONMENT:
            continue
        # 0.9 tells NUM_WORKER from SPEED, which is only one letter away from SEED too.
        meant = near([name.upper()], ENVIRONMENT, 0.9)
        if meant:
            yield f"{name} is not a setting: environment: did you mean {meant}?"
