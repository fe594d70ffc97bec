"""Writes template/parts/config/settings.yaml from the schema: `make config`, after a setting
changed.

The file has every setting of every variant; conditions of Jinja choose those of a project.
"""

import textwrap
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from importing import catalogue_of
from rendering import render
from variants import choices

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "template/parts/config/settings.yaml"
# Answers that change settings, apart from workload and loader: how Jinja asks for each.
PARTS = {
    "finetune": "'finetune' in extras",
    "lanes": "'lanes' in extras",
    "folds": "'folds' in extras",
    "watch": "'watch' in extras",
    "lora": "'lora' in extras",
    "ema": "'ema' in extras",
    "estimate": "'estimate' in extras",
    "muon": "'muon' in extras",
    "replay": "'replay' in extras",
    "wandb": "tracker in ['wandb', 'mlflow']",
    "fp8": "precision == 'fp8'",
}
# The workload that has a part; others have the part of llm.
WORKLOADS = {"lanes": "timeseries", "lora": "seq2seq", "folds": "tabular"}
QUESTIONS = {"tracker": "wandb", "precision": "fp8"}  # the other parts are extras


class Place(NamedTuple):
    """A variant."""

    workload: str
    loader: str
    part: str = ""


def settings_of(place: Place) -> dict[str, str]:
    """The lines of each setting in config.yaml, by key."""
    answers: dict[str, Any] = {"workload": place.workload, "loader": place.loader, "extras": []}
    for question, part in QUESTIONS.items():
        if place.part == part:
            answers[question] = part
    if place.part and place.part not in QUESTIONS.values():
        answers["extras"] = [place.part]
    settings = {}
    for key, field in catalogue_of(render(**answers)).items():
        settings[key] = lines_of(key.partition(".")[2], field)
    return settings


def lines_of(name: str, field: Any) -> str:
    """A setting below its description."""
    comment = textwrap.fill(" ".join(field.description.split()), 96, break_on_hyphens=False)
    listed = yaml.safe_dump([list(field.default) if field.default == () else field.default])
    value = listed.removeprefix("- ").strip().replace("''", '""')
    if name == "precision":
        value = "{{ precision }}"
    # git merges your edit of the value with a new description, as they are not adjacent lines.
    return f"{textwrap.indent(comment, '  # ')}\n  #\n  {name}: {value}\n"


def condition(chosen: list[Place], universe: list[Place]) -> str:
    """How Jinja tells the chosen places from the others; empty if there are no others."""
    values = {name: {getattr(place, name) for place in chosen} for name in Place._fields}

    def fitting(names: Iterable[str]) -> list[Place]:
        return [
            place
            for place in universe
            if all(getattr(place, name) in values[name] for name in names)
        ]

    names = list(Place._fields)
    assert fitting(names) == chosen, chosen
    for name in Place._fields:
        others = [other for other in names if other != name]
        if fitting(others) == chosen:
            names = others
    terms = []
    for name in names:
        if name != "part":
            terms.append(f"{name} in {sorted(values[name])}")
            continue
        excluded = {place.part for place in fitting(set(names) - {"part"})} - values["part"]
        if "" in values["part"]:
            terms += [f"not {PARTS[part]}" for part in sorted(excluded)]
        else:
            terms.append(" or ".join(PARTS[part] for part in sorted(values["part"])))
    return " and ".join(terms)


def conditional(text: str, where: str) -> str:
    return f"{{% if {where} %}}\n{text}{{% endif %}}\n" if where else text


def written() -> str:
    """The content of the file."""
    places = [Place(*names) for names in product(choices("workload"), choices("loader"))]
    for part in PARTS:
        places.append(Place(WORKLOADS.get(part, "llm"), "memmap", part))
    known = {place: settings_of(place) for place in places}
    sections = [key.partition(".")[0] for settings in known.values() for key in settings]
    content = []
    for section in dict.fromkeys(sections):
        having = [
            place for place in places if any(section_of(key) == section for key in known[place])
        ]
        blocks = [f"{section}:\n"]
        groups = [having]
        if section == "model":  # in the order of each workload
            groups = [
                [place for place in having if place.workload == workload]
                for workload in choices("workload")
            ]
        for group in groups:
            keys = dict.fromkeys(key for place in group for key in known[place])
            own = [key for key in keys if section_of(key) == section]
            settings = "".join(setting_of(key, group, known) for key in own)
            blocks.append(conditional(settings, condition(group, having)))
        content.append(conditional("".join(blocks), condition(having, places)))
    return "".join(content)


def section_of(key: str) -> str:
    return key.partition(".")[0]


def setting_of(key: str, group: list[Place], known: dict[Place, dict[str, str]]) -> str:
    """A setting, as each place of the group has it."""
    texts: dict[str, list[Place]] = {}
    for place in group:
        if key in known[place]:
            texts.setdefault(known[place][key], []).append(place)
    blocks = [conditional(f"{text}\n", condition(places, group)) for text, places in texts.items()]
    return "".join(blocks)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(written(), encoding="utf-8")
