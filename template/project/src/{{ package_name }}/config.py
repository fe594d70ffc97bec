"""The settings: what exists, the defaults, the ranges.

Defaults < config.yaml < environment < command line. This page, `settings.py` and each `Sections` of
a file in `commands/` and `hooks/` are the whole schema. Read a value as
`settings.training.precision`. Nothing here imports torch, numpy or h5py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from . import settings as yours
from .engine import config as engine
from .engine.config import Auto, Given, Layer, Section, Sources, defaults, outranks_files
from .engine.errors import UserError
from .engine.tracker import Sections as TrackerSections
from .settings import LEARNING_RATE, Sections


class Optimizer(Section):
    """How weights change at each step."""

    name: Literal["adamw", "adafactor", "muon"] = Field(
        "adamw", description="adafactor takes less memory"
    )
    learning_rate: float = Field(LEARNING_RATE, gt=0, le=1, description="peak learning rate")
    weight_decay: float = Field(
        0.01, ge=0, le=1, description="decoupled weight decay, matrices only"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean of squared gradients")
    epsilon: float = Field(1e-8, gt=0, le=1, description="added to the denominator")
    fused: bool = Field(True, description="one kernel for all weights instead of several for each")


class Schedule(Section):
    """How the learning rate moves over the run."""

    name: Literal["cosine", "onecycle", "linear", "constant"] = Field("cosine", description="shape")
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = Field(
        "auto", description="steps up to the peak"
    )
    final_factor: float = Field(
        0.1, ge=0, le=1, description="last learning rate as a share of the peak"
    )


Names = Annotated[tuple[str, ...], BeforeValidator(engine.separated)]
Precision = Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"]


class Training(Section):
    """How long, in which precision, and what a step is made of."""

    precision: Precision = Field(
        "auto", description="auto is bf16 from sm 8.0, fp16 on 7.x, else fp32"
    )
    fp8_emulation: bool = Field(
        False, description="round as fp8 does on any device, slowly, to test"
    )
    epochs: int = Field(10, ge=1, description="passes over the training samples")
    max_steps: int = Field(0, ge=0, description="optimizer steps of the run; 0 goes by epochs")
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="micro-batches to an optimizer step"
    )
    gradient_clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 is off")
    gradient_checkpointing: bool = Field(
        False, description="recompute activations: less memory, more time"
    )
    cudnn_benchmark: bool = Field(
        False, description="time cuDNN's convolutions first; for fixed shapes only"
    )
    init_from: str = Field(
        "", description="run, checkpoint, folder or file whose weights a new run takes"
    )
    freeze: Names = Field((), description="names of weights that stay as they are, with * and ?")


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class Compile(Section):
    """torch.compile, for each block of the model."""

    enabled: bool | Auto = Field(
        "auto", description="auto is on for GPUs from compute capability 8.0"
    )
    mode: CompileMode = Field(
        "default", description="how long the compiler searches; CUDA graphs or not"
    )
    dynamic: bool | Auto = Field(
        "auto", description="one kernel for many shapes; auto: after a change"
    )
    fullgraph: bool = Field(True, description="stop where the compiler would split a block")


class Evaluation(Section):
    """When the validation samples are measured."""

    every_steps: int = Field(0, ge=0, description="optimizer steps; 0 is at the end of each epoch")
    patience: int = Field(
        0, ge=0, description="evaluations without a better loss before stopping; 0 is off"
    )
    batch_size: int = Field(0, ge=0, description="samples in a batch; 0 is data.batch_size")
    fraction: float = Field(
        1.0, gt=0, le=1, description="fraction of the validation samples measured"
    )


class Checkpoint(Section):
    """When the state is saved."""

    every_steps: int = Field(0, ge=0, description="optimizer steps; 0 is at the end of each epoch")
    keep: int = Field(2, ge=2, description="newest checkpoints kept, apart from the best")


class Monitor(Section):
    """What is printed and written while training."""

    every_steps: int = Field(
        50, ge=1, description="optimizer steps between two lines and rows of metrics"
    )
    progress: bool | Auto = Field("auto", description="progress bar; auto is on in a terminal")


class Reproducibility(Section):
    """What makes two runs equal."""

    seed: int = Field(42, ge=0, lt=2**32, description="seed of every random generator")
    deterministic: bool = Field(
        False, description="only operations that repeat bit for bit; slower"
    )


class Phase(Section):
    """One stage of a run in several stages; `overrides` are settings that differ in it."""

    name: str
    steps: Annotated[int, Field(ge=1)]
    overrides: Any = None


_plugged = [*engine.found("commands", "class Sections"), *engine.found("hooks", "class Sections")]
_more = [module.Sections for module in _plugged]


# Its bases are known only when it runs.
class Settings(*_more, TrackerSections, Sections):  # type: ignore[misc]
    """Every setting of a run, made by `load`, which also says where each value came from."""

    optimizer: Optimizer = defaults(Optimizer)
    schedule: Schedule = defaults(Schedule)
    training: Training = defaults(Training)
    compile: Compile = defaults(Compile)
    evaluation: Evaluation = defaults(Evaluation)
    checkpoint: Checkpoint = defaults(Checkpoint)
    monitor: Monitor = defaults(Monitor)
    reproducibility: Reproducibility = defaults(Reproducibility)
    phases: tuple[Phase, ...] = Field((), description="stages, each with name, steps and overrides")
    profiles: dict[str, Any] = Field({}, description="named overlays for --profile")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _notes: list[str] = PrivateAttr(default_factory=list)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value came from: `default`, `config.yaml`, `$SEED`, `--data.path`."""
        return {key: self._origins.get(key, "default") for key in SETTINGS}

    @property
    def notes(self) -> list[str]:
        """Lines that a person should read, though nothing is wrong."""
        return self._notes

    def value(self, key: str) -> Any:
        """Return the value of a dotted key."""
        return attrgetter(key)(self)

    def resolved(self) -> dict[str, Any]:
        """Return every value as plain data; `load` of the same data gives the same settings.

        Overrides of phases that the environment or a flag outranks are left out, else they would
        come back when the run is resumed.
        """
        tree = self.model_dump(mode="json")
        for number, phase in enumerate(tree["phases"], 1):
            overlay = self._overlay(number)
            phase["overrides"] = {key: given.value for key, given in overlay.items()}
        return tree

    def to_yaml(self) -> str:
        """`resolved()` as YAML, the origin of each value behind it as a comment."""
        lines = engine.annotated_yaml(self.resolved(), self.origins)
        return "\n".join([*lines, ""])

    def changed(self) -> list[dict[str, Any]]:
        """List what differs from the defaults and where it came from, for `changed` of env.json."""
        rows = []
        for key, setting in SETTINGS.items():
            if key == "profiles":
                continue
            value = self.value(key)
            if key == "phases":
                value = tuple(self.resolved()["phases"])  # as data
            if value != setting.default:
                origin = self.origins[key]
                row = {"name": key, "value": value, "default": setting.default, "origin": origin}
                rows.append(row)
        return rows

    def without_effect(self, keys: Iterable[str], why: str) -> list[str]:
        """Return a note for each of `keys` that the environment or a flag sets in vain."""
        notes = []
        for key, origin in self.origins.items():
            if key in keys and outranks_files(origin):
                notes.append(f"{origin} has no effect: {why}")
        return notes

    def phase(self, number: int) -> Settings:
        """Return the settings of phase `number`, counted from 1.

        They hold its overrides, and its steps as training.max_steps.

        Raises:
            UserError: if there is no such phase, or its settings exclude each other.
        """
        count = len(self.phases)
        if not 1 <= number <= count:
            what = f"there is no phase {number}"
            raise UserError(what, "--phase", f"the configuration has {count}")
        steps = self.phases[number - 1].steps
        return self.lasting(steps, self._origin_of_phase(number), self._overlay(number))

    def lasting(self, steps: int, origin: str, overlay: Layer | None = None) -> Settings:
        """Return these settings, with those of `overlay`, for so many optimizer steps."""
        layer = self._layer() | (overlay or {})
        layer["training.max_steps"] = Given(steps, origin)
        return _checked(sources(), layer, self.notes)

    def _layer(self) -> Layer:
        return {key: Given(self.value(key), origin) for key, origin in self._origins.items()}

    def _origin_of_phase(self, number: int) -> str:
        return f"{self.origins['phases']} phase {number}"

    def _overlay(self, number: int) -> Layer:
        """Return the overrides of phase `number` that no environment name and no flag outranks."""
        given = sources()
        overrides = given.tree(self.phases[number - 1].overrides, self._origin_of_phase(number))
        overlay = _without_switches(given, overrides, self._layer(), [])
        return {
            key: value for key, value in overlay.items() if not outranks_files(self.origins[key])
        }

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        """Yield values that are fine alone and wrong together."""
        yield from super().conflicts()
        mode = self.compile.mode
        graphs = self.compile.enabled and mode in ("reduce-overhead", "max-autotune")
        if graphs and self.training.gradient_accumulation_steps > 1:
            keys = ["compile.mode", "training.gradient_accumulation_steps"]
            what = f"compile.mode {mode} overwrites accumulated gradients (pytorch#169545)"
            yield what, keys, f"set {keys[0]} to default or {keys[1]} to 1"
        if self.reproducibility.deterministic and self.training.cudnn_benchmark:
            keys = ["reproducibility.deterministic", "training.cudnn_benchmark"]
            what = "cudnn_benchmark picks kernels by time, so runs differ"
            yield what, keys, "switch one of the two off"


class Switches(Section):
    """Names that older projects have; each stands for a value of a setting."""

    use_amp: bool | None = Field(None, description="0 is fp32; 1 turns fp32 or tf32 into auto")
    allow_unsafe_dataloader: bool | None = Field(
        None, description="0 reads without worker processes"
    )


SETTINGS = engine.catalogue(Settings)
SWITCHES = engine.catalogue(Switches)

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

HINTS = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "workers": "data.num_workers",
    "amp": "training.precision",
    "dtype": "training.precision",
    "clip": "training.gradient_clip",
    "accumulate": "training.gradient_accumulation_steps",
    "warmup": "schedule.warmup_steps",
}
"""Short names that are refused, with the setting that was probably meant."""

# Names of older projects, if settings.py knows some.
ALIASES: dict[str, str] = getattr(yours, "ALIASES", {})
OBSOLETE: dict[str, str] = getattr(yours, "OBSOLETE", {})


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
        UserErrors: every mistake in every source, one line each.
    """
    environment = environment or {}
    given = sources(tolerant=resolved)
    given.mistakes += mistakes
    file = given.file(config) if config else {}
    profiles, phases = _overlays(given, file, str(config))
    if profile is not None and profile not in profiles:
        choices = f"choose one of {', '.join(profiles)}"
        remedy = choices if profiles else "config.yaml has no `profiles:`"
        given.mistake(f"unknown profile {profile!r}", "--profile", remedy)

    # From the weakest to the strongest.
    layers = [
        file,
        profiles.get(profile or "", {}),
        given.texts(_named(environment)),
        given.texts((key, text, f"--{key}") for key, text in overrides),
    ]
    # Each is checked alone: a stronger value would hide a wrong one.
    for layer in [*layers, *profiles.values(), *phases]:
        given.build(Settings, _without_switches(given, layer, {}, []))

    notes = list(dict.fromkeys([*_misspelt(environment), *given.notes]))
    settings = _checked(given, _merged(given, layers, notes), notes)
    _same_model([settings.phase(number) for number in range(1, len(settings.phases) + 1)])
    return settings


def sources(tolerant: bool = False) -> Sources:
    """Make what turns people's words into settings: see there."""
    return Sources(SETTINGS | SWITCHES, ALIASES, HINTS, OBSOLETE, tolerant)


def _overlays(given: Sources, file: Layer, config: str) -> tuple[dict[str, Layer], list[Layer]]:
    """Return the profiles by name and the overrides of each phase."""
    overlays: Layer = {key: file[key] for key in ("phases", "profiles") if key in file}
    parts = given.build(Settings, overlays)
    profiles = {}
    for name, tree in parts.profiles.items():
        profiles[name] = given.tree(tree, f"{config} profile {name}")
    phases = []
    for number, phase in enumerate(parts.phases, 1):
        phases.append(given.tree(phase.overrides, f"{config} phase {number}"))
    return profiles, phases


def _named(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, text, origin) of each environment name that is set."""
    for name, key in ENVIRONMENT.items():
        # An empty name is an unset one: containers pass `SEED=` for what nobody set.
        text = environment.get(name)
        if text:
            yield key, text, f"${name}"


def _merged(given: Sources, layers: list[Layer], notes: list[str]) -> Layer:
    """Return all layers as one, from the weakest to the strongest."""
    layer: Layer = {}
    for stronger in layers:
        layer |= _without_switches(given, stronger, layer, notes)
    return layer


def _checked(given: Sources, layer: Layer, notes: list[str]) -> Settings:
    """Return settings without a mistake and without a conflict."""
    settings = given.build(Settings, layer)
    given.reject()
    origins = {key: value.origin for key, value in layer.items()}
    for what, keys, remedy in settings.conflicts():
        where = dict.fromkeys(origins.get(key, "default") for key in keys)
        given.mistake(what, " and ".join(where), remedy)
    given.reject()
    settings._origins = origins
    settings._notes = notes
    return settings


def _same_model(phases: list[Settings]) -> None:
    """Raise `UserError` where a phase could not continue with the weights of the first."""
    keys = [key for key in SETTINGS if key.startswith("model.") and not key.endswith("dropout")]
    keys.append("training.init_from")
    for key, phase in product(keys, phases[1:]):
        value = phase.value(key)
        first = phases[0].value(key)
        if value != first:
            what = f"{key} is {value}, but {first} in phase 1"
            where = phase.origins["training.max_steps"]
            remedy = "set it for all phases: each goes on with the same weights"
            raise UserError(what, where, remedy)


def _without_switches(given: Sources, layer: Layer, below: Layer, notes: list[str]) -> Layer:
    """Replace the switches in `layer` by the settings that they stand for.

    below: the weaker layers.
    """
    asked = {key: value for key, value in layer.items() if key in SWITCHES}
    layer = {key: value for key, value in layer.items() if key not in SWITCHES}
    switches = given.build(Switches, asked)

    precision = (below | layer).get("training.precision", Given("auto", "default")).value
    if switches.use_amp is False:
        layer["training.precision"] = Given("fp32", asked["use_amp"].origin)
    elif switches.use_amp and precision in ("fp32", "tf32"):
        origin = asked["use_amp"].origin
        layer["training.precision"] = Given("auto", origin)
        notes.append(f"{origin} turns training.precision {precision} into auto")

    if switches.allow_unsafe_dataloader is False:
        origin = asked["allow_unsafe_dataloader"].origin
        if "data.num_workers" in layer:
            notes.append(f"{origin} is 0, so {layer['data.num_workers'].origin} has no effect")
        layer["data.num_workers"] = Given(0, origin)
    return layer


def _misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each environment name that is almost one of ours, such as NUM_WORKER."""
    for name in environment:
        if name in ENVIRONMENT:
            continue
        # 0.9 tells NUM_WORKER from SPEED, which is only one letter away from SEED too.
        meant = engine.near([name.upper()], ENVIRONMENT, 0.9)
        if meant:
            yield f"{name} is not a setting: environment: did you mean {meant}?"
