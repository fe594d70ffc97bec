"""The settings: what exists, the defaults, the ranges. Defaults < config.yaml < environment < command line.

This page and `settings.py` are the whole schema. Read a value as `settings.training.precision`.
Nothing here imports torch, numpy or h5py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from .engine.errors import UserError
from .engine.sections import Auto, Section, catalogue, defaults
from .engine.sources import Given, Layer, Sources, annotated_yaml, near_misses
from .engine.tracker import Sections as TrackerSections
from .settings import LEARNING_RATE, Sections


class Optimizer(Section):
    """How weights change at each step."""

    name: Literal["adamw", "adafactor"] = Field(
        "adamw", description="update rule; adafactor keeps a row and a column of each matrix: less memory"
    )
    learning_rate: float = Field(LEARNING_RATE, gt=0, le=1, description="peak learning rate")
    weight_decay: float = Field(0.01, ge=0, le=1, description="decoupled weight decay, matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean of squared gradients")
    epsilon: float = Field(1e-8, gt=0, le=1, description="added to the denominator")
    fused: bool = Field(True, description="one kernel for all weights instead of several for each")


class Schedule(Section):
    """How the learning rate moves over the run."""

    name: Literal["cosine", "onecycle", "linear", "constant"] = Field("cosine", description="shape")
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = Field(
        "auto",
        description="steps from 0 up to the peak; auto is 100, a tenth of a shorter run, 0.3 of onecycle",
    )
    final_factor: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the peak")


class Training(Section):
    """How long, in which precision, and what a step is made of."""

    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"] = Field(
        "auto",
        description="auto is bf16 from compute capability 8.0, fp16 on 7.x, else fp32; fp8 from 8.9 on"
        " gains for large compiled models only and loses for small ones",
    )
    fp8_emulation: bool = Field(False, description="round as fp8 does on any device, slowly, to test")
    epochs: int = Field(10, ge=1, description="passes over the training samples")
    max_steps: int = Field(0, ge=0, description="optimizer steps of the run; 0 goes by epochs")
    gradient_accumulation_steps: int = Field(1, ge=1, description="micro-batches to an optimizer step")
    gradient_clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 is off")
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in backward: less memory, more time"
    )
    cudnn_benchmark: bool = Field(False, description="time cuDNN's convolutions first; for fixed shapes only")


class Compile(Section):
    """torch.compile, for each block of the model."""

    enabled: bool | Auto = Field("auto", description="auto is on for GPUs from compute capability 8.0")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = Field(
        "default", description="how much time the compiler spends, and whether it uses CUDA graphs"
    )
    dynamic: bool | Auto = Field(
        "auto", description="one kernel for many shapes; auto decides after a change"
    )
    fullgraph: bool = Field(True, description="stop where the compiler would split a block")


class Evaluation(Section):
    """When the validation samples are measured."""

    every_steps: int = Field(0, ge=0, description="optimizer steps; 0 is at the end of each epoch")
    patience: int = Field(0, ge=0, description="evaluations without a better loss before stopping; 0 is off")
    batch_size: int = Field(0, ge=0, description="samples in a batch; 0 is data.batch_size")


class Checkpoint(Section):
    """When the state is saved."""

    every_steps: int = Field(0, ge=0, description="optimizer steps; 0 is at the end of each epoch")
    keep: int = Field(2, ge=2, description="newest checkpoints kept, apart from the best")


class Monitor(Section):
    """What is printed and written while training."""

    every_steps: int = Field(50, ge=1, description="optimizer steps between two lines and rows of metrics")
    progress: bool | Auto = Field("auto", description="progress bar; auto is on in a terminal")
    price_per_hour: float = Field(0.0, ge=0, description="of the machine, for report and estimate; 0 is none")


class Reproducibility(Section):
    """What makes two runs equal."""

    seed: int = Field(42, ge=0, lt=2**32, description="seed of every random generator")
    deterministic: bool = Field(False, description="only operations that repeat bit for bit; slower")


class Phase(Section):
    """One stage of a run in several stages; `overrides` are settings that differ in it."""

    name: str
    steps: Annotated[int, Field(ge=1)]
    overrides: Any = None


class Settings(TrackerSections, Sections):
    """Every setting of a run. Made by `load`, which also says where each value came from."""

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
        """Where each value came from: `default`, `config.yaml`, `$SEED`, `--optimizer.learning_rate`."""
        return {key: self._origins.get(key, "default") for key in SETTINGS}

    @property
    def notes(self) -> list[str]:
        """Lines a person should read, though nothing is wrong."""
        return self._notes

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        found: Any = self
        for name in key.split("."):
            found = getattr(found, name)
        return found

    def resolved(self) -> dict[str, Any]:
        """Every value as plain data; `load` of the same data gives the same settings.

        Overrides of phases that the environment or a flag outranks are left out, else they would
        come back when the run is resumed.
        """
        tree = self.model_dump(mode="json")
        for number, phase in enumerate(tree["phases"], 1):
            phase["overrides"] = {key: given.value for key, given in self._overlay(number).items()}
        return tree

    def to_yaml(self) -> str:
        """`resolved()` as YAML, the origin of each value behind it as a comment."""
        return annotated_yaml(self.resolved(), self.origins) + "\n"

    def without_effect(self, keys: Iterable[str], why: str) -> list[str]:
        """A note for each of `keys` that the environment or a flag sets in vain."""
        given = [origin for key, origin in self.origins.items() if key in keys and outranks_files(origin)]
        return [f"{origin} has no effect: {why}" for origin in given]

    def phase(self, number: int) -> Settings:
        """The settings of phase `number`, counted from 1: its overrides, its steps as training.max_steps.

        Raises:
            UserError: if there is no such phase, or its settings exclude each other.
        """
        count, origin = len(self.phases), f"{self.origins['phases']} phase {number}"
        if not 1 <= number <= count:
            raise UserError(f"there is no phase {number}", "--phase", f"the configuration has {count}")
        length: Layer = {"training.max_steps": Given(self.phases[number - 1].steps, origin)}
        return _checked(_sources(), self._layer() | self._overlay(number) | length, self.notes)

    def _layer(self) -> Layer:
        given = {key: origin for key, origin in self.origins.items() if origin != "default"}
        return {key: Given(self.value(key), origin) for key, origin in given.items()}

    def _overlay(self, number: int) -> Layer:
        """The overrides of phase `number` that neither the environment nor a flag outranks."""
        sources, layer = _sources(), self._layer()
        tree = sources.tree(self.phases[number - 1].overrides, f"{self.origins['phases']} phase {number}")
        overlay = _without_switches(sources, tree, layer, [])
        return {key: given for key, given in overlay.items() if not outranks_files(self.origins[key])}

    def conflicts(self) -> Iterator[tuple[str, list[str], str]]:
        """Values that are fine alone and wrong together."""
        yield from super().conflicts()
        uses_graphs = self.compile.mode in ("reduce-overhead", "max-autotune") and self.compile.enabled
        if uses_graphs and self.training.gradient_accumulation_steps > 1:
            yield (
                f"compile.mode {self.compile.mode} overwrites accumulated gradients (pytorch#169545)",
                ["compile.mode", "training.gradient_accumulation_steps"],
                "set compile.mode to default or training.gradient_accumulation_steps to 1",
            )
        if self.reproducibility.deterministic and self.training.cudnn_benchmark:
            yield (
                "training.cudnn_benchmark picks kernels by time, so runs would differ despite deterministic",
                ["reproducibility.deterministic", "training.cudnn_benchmark"],
                "switch one of the two off",
            )


class Switches(Section):
    """Names that older projects have; each stands for a value of a setting, or for nothing any more."""

    use_amp: bool | None = Field(None, description="0 is fp32; 1 turns fp32 or tf32 into auto")
    allow_unsafe_dataloader: bool | None = Field(None, description="0 reads without worker processes")
    use_chunk_loader: bool | None = Field(None, description="no effect: the loader is an answer")
    empty_cache_every_n_epochs: int | None = Field(None, ge=0, description="no effect: it frees nothing live")


SETTINGS = catalogue(Settings)
SWITCHES = catalogue(Switches)

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

_LOADER_KEYS = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
ALIASES = {
    **{f"train.batch.{name}": f"data.{name}" for name in _LOADER_KEYS},
    **{f"training.{name}": f"data.{name}" for name in _LOADER_KEYS},
    "data.gradient_accumulation_steps": "training.gradient_accumulation_steps",
    **{
        f"{section}.{name}": key
        for section in ("data", "training")
        for name, key in (
            ("use_amp", "use_amp"),
            ("use_chunk_loader", "use_chunk_loader"),
            ("empty_cache_every_n_epochs", "empty_cache_every_n_epochs"),
            ("log_gpu_stats_every_n_batches", "monitor.every_steps"),
        )
    },
    "training.chunk_size_gb": "data.chunk_size_gb",
}
"""Other spellings that are accepted, from configurations that people already have."""

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


def load(
    config: Path | None = None,
    profile: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings from a YAML file, one of its profiles, the environment and the command line.

    A run goes on with `config` set to its own `config.resolved.yaml`. Profiles and phases that this
    run does not use are checked too.

    Raises:
        UserErrors: every mistake in every source, one line each.
    """
    sources, environment = _sources(), environment or {}
    notes = [
        f"{name} is not a setting: environment: did you mean {meant}?"
        for name, meant in near_misses(environment, ENVIRONMENT).items()
    ]
    file = sources.file(config) if config else {}
    overlays = {origin: sources.tree(tree, origin) for origin, tree in _overlays(file)}
    chosen = f"{config} profile {profile}"
    if profile is not None and chosen not in overlays:
        sources.mistakes.append(_no_profile(profile, file))
    # An empty name is an unset one: containers pass `SEED=` for a variable that nobody set.
    names = [
        (key, environment[name], f"${name}") for name, key in ENVIRONMENT.items() if environment.get(name)
    ]
    flags = [(key, text, f"--{key}") for key, text in overrides]
    layers = [file, overlays.get(chosen, {}), sources.texts(names), sources.texts(flags)]
    for each in [*layers, *overlays.values()]:  # one by one: a stronger value would hide a wrong one
        sources.build(Settings, _without_switches(sources, each, {}, []))
    layer: Layer = {}
    for stronger in layers:
        layer |= _without_switches(sources, stronger, layer, notes)
    settings = _checked(sources, layer, notes)
    _same_model([settings.phase(number) for number in range(1, len(settings.phases) + 1)])
    return settings


def outranks_files(origin: str) -> bool:
    """Whether a value comes from the environment or the command line."""
    return origin.startswith(("$", "--"))


def nearest(name: str) -> str | None:
    """The setting that `name` is probably a misspelling of."""
    return _sources().nearest(name)


def _sources() -> Sources:
    return Sources(SETTINGS | SWITCHES, ALIASES, HINTS)


def _checked(sources: Sources, layer: Layer, notes: list[str]) -> Settings:
    """Settings without a mistake and without a conflict."""
    settings = sources.build(Settings, layer)
    sources.reject()
    assert settings is not None
    origins = {key: given.origin for key, given in layer.items()}
    for what, keys, remedy in settings.conflicts():
        where = dict.fromkeys(origins.get(key, "default") for key in keys)
        sources.mistakes.append(UserError(what, " and ".join(where), remedy))
    sources.reject()
    settings._origins, settings._notes = origins, notes
    return settings


def _same_model(phases: list[Settings]) -> None:
    """Raises `UserError` where a phase could not go on with the weights of the first."""
    keys = [key for key in SETTINGS if key.startswith("model.") and not key.endswith("dropout")]
    for key, phase in product(keys, phases[1:]):
        if (value := phase.value(key)) != (first := phases[0].value(key)):
            what, where = f"{key} is {value}, but {first} in phase 1", phase.origins["training.max_steps"]
            raise UserError(what, where, "set it for all phases: each goes on with the same weights")


def _without_switches(sources: Sources, layer: Layer, below: Layer, notes: list[str]) -> Layer:
    """Replaces the switches in `layer` by the settings that they stand for, given the weaker layers."""
    asked = {key: given for key, given in layer.items() if key in SWITCHES}
    layer = {key: given for key, given in layer.items() if key not in SWITCHES}
    switches = sources.build(Switches, asked) or defaults(Switches)
    precision = (below | layer).get("training.precision", Given("auto", "default")).value
    if switches.use_amp is False:
        layer["training.precision"] = Given("fp32", asked["use_amp"].origin)
    elif switches.use_amp and precision in ("fp32", "tf32"):
        origin = asked["use_amp"].origin
        layer["training.precision"] = Given("auto", origin)
        notes.append(
            f"{origin} turns training.precision {precision} into auto: bf16 or fp16 by the GPU, fp32 on a CPU"
        )
    if switches.allow_unsafe_dataloader is False:
        origin = asked["allow_unsafe_dataloader"].origin
        if "data.num_workers" in layer:
            notes.append(f"{origin} is 0, so {layer['data.num_workers'].origin} has no effect")
        layer["data.num_workers"] = Given(0, origin)
    if switches.use_chunk_loader is not None:
        origin = asked["use_chunk_loader"].origin
        notes.append(f"{origin}: use_chunk_loader has no effect: `copier update -d loader=chunk` decides")
    if switches.empty_cache_every_n_epochs:
        origin = asked["empty_cache_every_n_epochs"].origin
        notes.append(f"{origin}: emptying the GPU's cache takes time and frees nothing live; it is not done")
    return layer


def _overlays(file: Layer) -> Iterator[tuple[str, Any]]:
    """(origin, settings) of every profile and phase; what is malformed is reported by the schema."""
    profiles, phases = file.get("profiles"), file.get("phases")
    if profiles and isinstance(profiles.value, Mapping):
        for name, overlay in profiles.value.items():
            yield f"{profiles.origin} profile {name}", overlay
    if phases and isinstance(phases.value, list):
        for number, phase in enumerate(phases.value, 1):
            if isinstance(phase, Mapping):
                yield f"{phases.origin} phase {number}", phase.get("overrides")


def _no_profile(profile: str, file: Layer) -> UserError:
    given = file.get("profiles", Given({}, ""))
    names = ", ".join(map(str, given.value)) if isinstance(given.value, Mapping) else ""
    remedy = f"choose one of {names}" if names else "profiles stand in config.yaml under `profiles:`"
    return UserError(f"unknown profile {profile!r}", "--profile", remedy)
