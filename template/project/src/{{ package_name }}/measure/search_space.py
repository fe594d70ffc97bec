"""The space of `tune --search`: a range or a list of values for each setting.

optimizer.learning_rate=1e-4..1e-2   a range; logarithmic if the ends differ by a factor of 10
model.width=32,64,128                one of these values
"""

from __future__ import annotations

from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ..engine.errors import UserError, UserErrors
from ..engine.settings import catalogue
from ..engine.sources import suggestion
from ..settings import Settings
from .trials import Overrides

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]
"""Distributions by dotted key of the settings."""

FLAG = "--search"
SETTINGS = catalogue(Settings)
LOGARITHMIC = 10  # a range is logarithmic from this ratio of its ends on
FIXED = {  # these settings are the same in all trials, so that losses can be compared
    "data.path": "losses on different data cannot be compared",
    "evaluation.metric": "values of different metrics cannot be compared",
    "reproducibility.seed": "all trials share one seed; the best is repeated with others",
}


def parse(words: str, settings: Settings) -> Space:
    """Parse a space such as `KEY=LOW..HIGH KEY=VALUE,VALUE`.

    settings: the values of the other keys. Raises `UserErrors` with all errors.
    """
    errors: list[UserError] = []
    space = Space()
    for word in words.split():
        parse_word(word, settings, errors, space)
    if not words.split():
        remedy = "write KEY=LOW..HIGH or KEY=VALUE,VALUE"
        errors.append(UserError("nothing to search", FLAG, remedy))
    if errors:
        raise UserErrors(errors)
    return space


def parse_word(word: str, settings: Settings, errors: list[UserError], space: Space) -> None:
    """Add one key to the space, or its errors to the others."""
    key, equals, text = word.partition("=")
    obstacle = obstacle_to(key, space)
    if not obstacle and not equals:
        obstacle = f"write {key}=LOW..HIGH or {key}=VALUE,VALUE"
    if obstacle:
        errors.append(UserError(f"{key} cannot be searched", FLAG, obstacle))
        return

    low, dots, high = text.partition("..")
    setting = SETTINGS.get(key)
    is_text = setting is not None and setting.annotation is str  # a path may have two dots
    is_range = bool(dots) and not is_text
    texts = (low, high) if is_range else text.split(",")
    num_errors = len(errors)
    variants = []
    for text in texts:
        variants.append(settings.merged([(FLAG, {key: text})], errors))
        if len(errors) > num_errors:
            return
    values = [variant.value(key) for variant in variants]
    if is_range and is_increasing(values):
        space[key] = between(*values)
    elif is_range:
        remedy = "use two numbers, the smaller one first"
        errors.append(UserError(f"{word} is not a range", FLAG, remedy))
    elif len({repr(value) for value in values}) < 2:
        remedy = f"write {key}=LOW..HIGH or {key}=VALUE,VALUE"
        errors.append(UserError(f"{word} has only one value", FLAG, remedy))
    else:
        space[key] = CategoricalDistribution(list(dict.fromkeys(values)))


def obstacle_to(key: str, space: Space) -> str:
    """Return why a setting cannot be searched; empty if it can."""
    if key in FIXED:
        return FIXED[key]
    if key not in SETTINGS:
        return suggestion(key, SETTINGS)
    if key in space:
        return "it occurs twice"
    return ""


def is_increasing(values: list[Any]) -> bool:
    """Whether these are two numbers, the smaller one first."""
    if not all(type(value) in (int, float) for value in values):
        return False
    return values[0] < values[1]


def between(low: float, high: float) -> FloatDistribution | IntDistribution:
    """Return the distribution of a range; it has integers if both ends are integers."""
    log = low > 0 and high / low >= LOGARITHMIC
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def tidy(parameters: Overrides, space: Space) -> Overrides:
    """Return the settings of a trial, with numbers rounded to four digits for readability."""
    rounded = dict(parameters)
    for key, scale in space.items():
        if isinstance(scale, FloatDistribution):
            value = float(f"{parameters[key]:.4g}")
            rounded[key] = min(max(value, scale.low), scale.high)
    return rounded


def inside(settings: Settings, space: Space) -> Overrides | None:
    """Return the configured values of the keys; None if one is outside the space."""
    present = {key: settings.value(key) for key in space}
    for key, scale in space.items():
        value = present[key]
        if isinstance(scale, CategoricalDistribution):
            if value not in scale.choices:
                return None
        elif isinstance(value, str) or not scale.low <= value <= scale.high:
            return None
    return present
