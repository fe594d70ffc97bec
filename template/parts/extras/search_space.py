"""What `tune --search` tries: a range or a list of values for each setting, checked by the schema.

optimizer.learning_rate=1e-4..1e-2   numbers between two; on a logarithmic scale from a factor of 10 on
model.width=32,64,128                one of these
"""

from __future__ import annotations

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ..config import Settings, sources
from .trials import Overrides, changed

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]
"""Distributions by dotted key of the settings."""

FLAG = "--search"
LOGARITHMIC = 10  # from this ratio of a range's ends on
FIXED = {  # settings that trials share, or they would not compare
    "data.path": "losses on other data do not compare",
    "reproducibility.seed": "all trials have the same; the best is repeated with others",
}


def parse(words: str, settings: Settings) -> Space:
    """The space that `KEY=LOW..HIGH` and `KEY=VALUE,VALUE` describe, separated by blanks.

    settings: what the other keys have. Raises `UserErrors`: every mistake, a line each.
    """
    given, space = sources(), Space()
    for word in words.split():
        key, _, text = word.partition("=")
        name = given.aliases.get(key, key)
        known, before = given.settings.get(name), len(given.mistakes)
        if name in FIXED or name in space or (known and "." not in name):
            why = FIXED.get(name, "it is given twice" if name in space else "it is no setting of a section")
            given.mistake(f"{key} cannot be searched", FLAG, why)
            continue
        low, dots, high = text.partition("..")
        ranged = dots and not (known and known.allowed == "text")  # a path may have two dots
        layers = [given.texts([(key, part, FLAG)]) for part in ((low, high) if ranged else text.split(","))]
        made = [given.build(Settings, layer) for layer in layers]
        if len(given.mistakes) > before or not known:
            continue
        raw, values = [layer[name].value for layer in layers], [each.value(name) for each in made]
        if not ranged and len({repr(value) for value in values}) < 2:
            given.mistake(f"{word} leaves no choice", FLAG, f"write {key}=LOW..HIGH or {key}=VALUE,VALUE")
        elif not ranged:
            space[name] = CategoricalDistribution(list(dict.fromkeys(raw)))
        elif not all(type(value) in (int, float) for value in values) or values[0] >= values[1]:
            given.mistake(f"{word} is no range", FLAG, "give two numbers, the smaller one first")
        else:
            space[name] = between(*values)
        for value in raw:  # those of several keys together end their trial
            for what, _, remedy in changed(settings, {name: value}).conflicts():
                given.mistake(what, FLAG, remedy)
    if not words.split():
        given.mistake("nothing to search", FLAG, "write KEY=LOW..HIGH or KEY=VALUE,VALUE")
    given.reject()
    return space


def between(low: float, high: float) -> FloatDistribution | IntDistribution:
    """Whole numbers where the schema makes whole ones of both ends."""
    log = low > 0 and high / low >= LOGARITHMIC
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def tidy(parameters: Overrides, space: Space) -> Overrides:
    """The settings of a trial: numbers of a range with four digits, which are as good and can be read."""
    found = dict(parameters)
    for key, scale in space.items():
        if isinstance(scale, FloatDistribution):
            found[key] = min(max(float(f"{parameters[key]:.4g}"), scale.low), scale.high)
    return found


def inside(settings: Settings, space: Space) -> Overrides | None:
    """The present values of the keys; None where one is not in the space."""
    present = {key: settings.value(key) for key in space}
    for key, scale in space.items():
        value = present[key]
        if isinstance(scale, CategoricalDistribution):
            if value not in scale.choices:
                return None
        elif isinstance(value, str) or not scale.low <= value <= scale.high:
            return None
    return present
