"""What a setting is, and the sections that every project has. Nothing here imports torch.

`config.py` lists the sections of this project. The text below a setting is its description in
`config.yaml` and in `train --help`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from ..runs import expanded


class Section(BaseModel):
    """A group of settings, each with a default and a description below it.

    Every value arrives as a text, from files, the environment and flags alike; the type of the
    setting decides what it means. Nan and infinity are rejected, also if a value is assigned.
    """

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,
        validate_assignment=True,
    )


# --- kinds of values


def number(value: object) -> object:
    """Read `1e3` for an integer, too. Refuse `1_000`, which is a text in other programs."""
    if not isinstance(value, str):
        return value
    if "_" in value:
        raise ValueError("a number has no underscores")
    with suppress(ValueError):
        return float(value)
    return value


Auto = Literal["auto"]
"""A value that is chosen at the start of a run; the start-up report names the choice."""

Number = BeforeValidator(number)
Positive = Annotated[int, Number, Field(ge=1)]
Natural = Annotated[int, Number, Field(ge=0)]
UpToOne = Annotated[float, Number, Field(gt=0, le=1)]
Factor = Annotated[float, Number, Field(ge=0, le=1)]
BelowOne = Annotated[float, Number, Field(ge=0, lt=1)]
Place = Annotated[str, AfterValidator(expanded)]
"""A path, in which `~` and `$NAME` are replaced."""

Tree = Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})]


# --- the sections that every project has


class Data(Section):
    """Where the samples are, and in which order they come; each loader adds settings."""

    path: Annotated[str, Field(min_length=1), AfterValidator(expanded)] = "data"
    """Folder that `prepare` writes. If nothing was prepared there, training uses example data and
    prints a note."""

    batch_size: Positive = 32
    """Samples per micro-batch. Larger batches use the GPU better and need more memory. Adjust the
    learning rate when you change this."""

    order: str = "auto"  # each workload says which it has
    """Order of the training samples."""

    fraction: UpToOne = 1.0
    """Fraction of the training samples (a fixed subset). Validation and test are unaffected. Use
    0.1 for a quick, fair trial."""

    shuffle_block: Positive = 8192
    """Samples that are shuffled together if `order` is block. Larger values mix better; smaller
    values read more locally."""

    pin_memory: bool = True
    """Pinned host memory lets copies to the GPU overlap with computation. It costs host memory and
    has no effect on a CPU."""


class Training(Section):
    """How long, in which precision, and what a step is made of."""

    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = "auto"
    """auto: bf16 on GPUs with compute capability 8.0 or higher, fp16 on 7.x, fp32 on other GPUs and
    on a CPU. Or set fp32, tf32, fp16 or bf16. The answer `precision: fp8` adds fp8."""

    epochs: Positive = 10
    """Passes over the training samples. The schedule spans the whole run, so this setting changes
    every step."""

    max_steps: Natural = 0
    """Length of the run in optimizer steps. 0 uses `epochs` instead."""

    gradient_accumulation_steps: Positive = 1
    """Micro-batches per optimizer step. Larger values give a larger batch in the same memory, but
    each step takes longer."""

    gradient_clip: Annotated[float, Number, Field(ge=0)] = 1.0
    """Largest norm of all gradients together. Clipping prevents single steps that ruin the weights.
    0 turns it off."""

    gradient_checkpointing: bool = False
    """Activation checkpointing: compute a block's activations again in the backward pass instead of
    storing them. This needs less memory, and each step takes longer."""

    cudnn_benchmark: bool = False
    """Let cuDNN time its convolution algorithms first. This is faster for fixed shapes only, slower
    if shapes change, and off if `deterministic` is set. No effect on a model without
    convolutions."""


class Compile(Section):
    """torch.compile, for each block of the model."""

    enabled: bool | Auto = "auto"
    """Compile each block. The first step is slow, and later steps are faster. auto: on for GPUs
    with compute capability 8.0 or higher, otherwise off. LSTMs (workloads `timeseries` and
    `windows`) are never compiled."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """default, max-autotune-no-cudagraphs, reduce-overhead or max-autotune. The last two do not
    support gradient accumulation. No effect on an LSTM."""

    dynamic: bool | Auto = "auto"
    """Compile kernels for any shape instead of one kernel per shape. auto: if shapes change. true:
    from the start. No effect on an LSTM."""

    fullgraph: bool = True
    """true: stop if the compiler would split a block, and name the place. false: split it silently,
    which is slower. No effect on an LSTM."""


class Evaluation(Section):
    """When the validation samples are measured."""

    every_steps: Natural = 0
    """Optimizer steps between two evaluations. 0: evaluate at the end of each epoch."""

    patience: Natural = 0
    """Evaluations without a better loss before the run stops early. 0 turns early stopping off."""

    batch_size: Natural = 0
    """Samples per evaluation batch. Evaluation keeps nothing for a backward pass, so a larger batch
    than in training fits. 0 uses `data.batch_size`."""

    fraction: UpToOne = 1.0
    """Fraction of the validation samples that training evaluates (a fixed subset). `evaluate` uses
    all of them."""


class Checkpoint(Section):
    """When the state is saved."""

    every_steps: Natural = 0
    """Optimizer steps between two checkpoints. A crash loses at most this much work. 0: save at the
    end of each epoch."""

    keep: Annotated[int, Number, Field(ge=2)] = 2
    """Newest checkpoints to keep, in addition to the best one. The minimum is 2, so that a damaged
    checkpoint has a predecessor."""


class Monitor(Section):
    """What is printed and written while training."""

    every_steps: Positive = 50
    """Optimizer steps between two log entries. Reading the loss waits for the GPU, so small values
    cost speed."""

    progress: bool | Auto = "auto"
    """Progress bar. auto: only in a terminal."""


class Reproducibility(Section):
    """What makes two runs equal."""

    seed: Annotated[int, Number, Field(ge=0, lt=2**32)] = 42
    """Seed of every random generator. The same seed, data and machine give the same losses on a
    CPU; on a GPU, set `deterministic`, too."""

    deterministic: bool | Literal["warn"] = False
    """Use only operations that are bitwise reproducible. Training is slower. true: an operation
    that cannot comply raises an error with its name. warn: it prints a warning."""


class Settings(Section):
    """All settings of a run, by section. `config.load` makes them."""

    data: Data
    model: Any  # these three are outside of engine/
    optimizer: Any
    schedule: Any
    training: Training
    compile: Compile
    evaluation: Evaluation
    checkpoint: Checkpoint
    monitor: Monitor
    reproducibility: Reproducibility
    profiles: dict[str, Tree] = {}

    _origins: dict[str, str] = {}

    @property
    def origins(self) -> dict[str, str]:
        """Where each value came from: `default`, `config.yaml`, `$SEED`, `--data.path`."""
        return dict.fromkeys(catalogue(type(self)), "default") | self._origins

    def value(self, key: str) -> Any:
        """Return the value of a setting, such as `data.path`."""
        return attrgetter(key)(self)

    def to_yaml(self) -> str:
        """Return all values as YAML that `load` reads, with the origin of each as a comment."""
        lines = []
        for key, origin in self.origins.items():
            # In flow style, any value is on one line; the braces around it are cut off.
            setting = yaml.safe_dump(
                {key: self.value(key)},
                default_flow_style=True,
                allow_unicode=True,
                sort_keys=False,
                width=10**6,
            )
            lines.append(f"{setting.strip()[1:-1]:<42}  # {origin}\n")
        return "".join(lines)

    def changed(self) -> list[tuple[str, Any, Any, str]]:
        """List the settings that differ from the defaults: key, value, default and origin."""
        return [
            (key, self.value(key), field.default, self.origins[key])
            for key, field in catalogue(type(self)).items()
            if self.value(key) != field.default
        ]

    def replaced(self, values: Mapping[str, Any], origin: str) -> Self:
        """Return these settings with other values, by key. Raises pydantic's `ValidationError`."""
        settings = self.model_copy(deep=True)
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            setattr(settings.value(section) if section else settings, name, value)
            settings._origins[key] = origin
        return settings


@cache
def catalogue(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return every setting by its key, such as `data.path`, in the order of the schema."""
    settings = {}
    for section, content in model.model_fields.items():
        for name, field in getattr(content.annotation, "model_fields", {}).items():
            settings[f"{section}.{name}"] = field
    return settings
