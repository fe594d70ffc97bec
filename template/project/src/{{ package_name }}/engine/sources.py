"""Where the values of settings come from: files, the environment and flags. Each value is a text.

`settings.py` decides what a text means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar

import yaml

from .errors import UserError, note

Layer = tuple[str, dict[str, Any]]
"""The name of a source, as error lines show it, and its settings."""

ENVIRONMENT = {
    "DETERMINISTIC": "reproducibility.deterministic",
    "SEED": "reproducibility.seed",
    "NUM_WORKERS": "data.num_workers",
    "PIN_MEMORY": "data.pin_memory",
    "PREFETCH_FACTOR": "data.prefetch_factor",
    "PERSISTENT_WORKERS": "data.persistent_workers",
    "USE_AMP": "training.precision",
    "ALLOW_UNSAFE_DATALOADER": "data.num_workers",
}
"""The environment variables that set something, with their settings; no other one is read.

Of two that set the same, the later one takes precedence.
"""

# What switches set if that is not what they say; "" changes nothing.
SWITCHES = {
    "DETERMINISTIC": {"1": "warn"},
    "USE_AMP": {"0": "fp32", "1": "auto"},
    "ALLOW_UNSAFE_DATALOADER": {"0": "0", "1": ""},
}
# Other words for the two.
DIGITS = {"false": "0", "off": "0", "no": "0", "true": "1", "on": "1", "yes": "1"}

# What other programs call a setting, if its name here is not similar.
ELSEWHERE = {
    "lr": "optimizer.learning_rate",
    "use_amp": "training.precision",
    "log_gpu_stats_every_n_batches": "monitor.every_steps",
}


# If PyYAML was built with libyaml, that is ten times as fast.
class TextLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML in which every value is a text, as in the environment and in flags.

    The schema decides what a text means: `no` is false for a switch, and a name for a path.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        # PyYAML would silently use the last one of two equal keys.
        names = []
        for key, _ in node.value:
            if key.value in names:
                problem = f"duplicate key {key.value!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.append(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file. Raises `UserError`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            tree = yaml.load(file, TextLoader) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"cannot read it as YAML ({' '.join(str(error).split())})"
        raise UserError(
            what, str(path), "give a file of YAML in UTF-8, without conflicts of git"
        ) from error
    if not isinstance(tree, dict):
        what = f"found {value_text(tree)} instead of settings"
        raise UserError(what, str(path), "write `section.key: value`")
    return tree


def flat(layers: Iterable[Layer]) -> Iterator[tuple[str, str, Any]]:
    """Yield origin, key and value of each setting.

    `data: {path: x}` and `data.path: x` mean the same.
    """
    for origin, tree in layers:
        for name, content in tree.items():
            if isinstance(content, dict) and name != "profiles":
                for key, value in content.items():
                    yield origin, f"{name}.{key}", value
            elif content or "." in name:  # a section may be empty
                yield origin, name, content


def from_environment(environment: Mapping[str, str], known: Collection[str]) -> Iterator[Layer]:
    """Yield a layer for each variable that is set; note those without effect.

    known: the settings of this project.
    """
    for name in sorted(environment.keys() - ENVIRONMENT.keys()):
        # 0.9 accepts NUM_WORKER, but not SPEED, which is only one letter away from SEED.
        for meant in get_close_matches(name.upper(), ENVIRONMENT, 1, 0.9):
            note(f"{name} is not a setting: environment: did you mean {meant}?")
    names: dict[str, str] = {}
    for name, key in ENVIRONMENT.items():
        text = environment.get(name, "")
        text = SWITCHES.get(name, {}).get(DIGITS.get(text.lower(), text), text)
        # Containers pass `SEED=` for a variable that is not set.
        if text and key in known:
            if key in names:
                note(f"${names[key]} has no effect: ${name} takes precedence")
            names[key] = name
            yield f"${name}", {key: text}
        elif text:
            note(f"${name} has no effect: this project has no setting {key}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the same in other sections, or a similar one."""
    last = name.lstrip("-").replace("-", "_").rpartition(".")[2]
    ending = f".{ELSEWHERE.get(last, last)}"
    plain_of = {key: f".{key.lstrip('-').replace('-', '_')}" for key in known}
    same = [key for key, plain in plain_of.items() if plain.endswith(ending)]
    # A section alone is no remedy for a setting.
    alike = [key for key in plain_of if "." in key or "." not in name]
    similar = get_close_matches(name, alike, 1, 0.9 if same else 0.7)
    # A typing error in a section is more similar than the same name in other sections.
    meant = similar if similar and "." in name else same or similar
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    return "remove it, or see `train --help`"


def value_text(value: object) -> str:
    """Show a wrong value in an error line: short, and on one line."""
    return shortened(value)[:60]
