"""The answers that templates read: known ones, typed ones, and those that follow from others."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from .private import Template
from .unknown import Asked, Mark, NotComputable, Number, Several

# What Copier tells a template about a copy.
COPIERS: dict[str, Any] = {
    "_copier_conf": {"answers_file": PurePosixPath(".copier-answers.yml")},
    "_copier_operation": "copy",
}
# Compute capabilities of cards that are not listed, of which the page offers these. Copier takes
# every number.
CAPABILITIES = (
    "8.0 5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.6 8.7 8.9 9.0 10.0 10.1 10.3 11.0 12.0 12.1"
)
# Typed texts for a second rendering of each piece that prints one: nothing else may differ.
PROBES = {
    "project_name": "a 'b' \"c\" \\d $e <f> É {g}",
    "package_name": "Ab_cD9",
    "distribution_name": "ab-cd9",
    "project_description": "x 'y' \"z\" \\w & É: #",
    "gpu_memory_gb": 7.25,
}
# What the page's modules names.js and template.js compute as copier.yml says, and the hash of that
# text. If copier.yml says something else, the build stops.
WRITTEN = {
    "project_name.validator": "c313ff0a",
    "package_name.default": "42fc2b24",
    "package_name.validator": "1c506ec8",
    "project_description.validator": "69b11c8f",
    "gpu_compute_capability.validator": "f000c110",
    "gpu_memory_gb.validator": "b1fc9cc4",
    "distribution_name.default": "e86eb688",
}


class Choice(NamedTuple):
    """One choice of a question."""

    label: str
    value: str
    validator: str  # a template that gives the reason why it cannot be chosen


class Answers:
    """What Jinja gets for the name of a question.

    An atom is one thing that is decided: the answer to a question with choices, one choice of
    several (`extras.check`), or whether the description is empty. `known` has those that are
    decided; Jinja's question for another one raises `Asked`.
    """

    def __init__(self, template: Template):
        self.template = template
        self.known: dict[str, Any] = {}
        self.domains: dict[str, list[Any]] = {}  # the values of each atom, in asking order
        self.choices: dict[str, list[Choice]] = {}
        self.is_probing = False
        self.has_printed_text = False
        self._reads: list[dict[str, Any]] = []  # what each value that is being computed has read
        self._computed: dict[tuple[str, bool], list[tuple[dict[str, Any], Any]]] = {}
        self._check_written()
        families = self["gpu_families"]
        self.groups = [(family["label"], family["cards"]) for family in families.values()]
        for name, question in template.questions.items():
            if is_saved(question):
                self._declare(name, question)

    def __contains__(self, name: object) -> bool:
        return name in self.template.questions or name in COPIERS

    def __getitem__(self, name: str) -> Any:
        if name in COPIERS:
            return COPIERS[name]
        question = self.template.questions[name]
        if name in self.choices:
            return self._chosen(name, question)
        if name == "gpu_compute_capability":
            return self._capability(question)
        if name == "gpu_memory_gb":
            return PROBES[name] if self.is_probing else Number(question["default"])
        if name == "project_description":
            return self._typed(name, is_filled=True) if self.ask(name) else ""
        if f"{name}.default" in WRITTEN or question.get("when") is not False:
            return self._typed(name)
        return self._follows(name)

    def ask(self, atom: str) -> Any:
        """The known value of an atom."""
        if atom not in self.known:
            raise Asked(atom)
        for reads in self._reads:
            reads[atom] = self.known[atom]
        return self.known[atom]

    # ---- the questions

    def _declare(self, name: str, question: dict[str, Any]) -> None:
        choices = question.get("choices")
        if name == "gpu":
            self._declare_gpu()
        elif isinstance(choices, dict):
            self.choices[name] = [choice(label, value) for label, value in choices.items()]
            values = [one.value for one in self.choices[name]]
            if question.get("multiselect"):
                self.domains |= {f"{name}.{value}": [False, True] for value in values}
            else:
                self.domains[name] = values
        elif name == "project_description":
            self.domains[name] = [False, True]

    def _declare_gpu(self) -> None:
        """One value for each card, and one for each compute capability of another card."""
        families = self["gpu_families"]
        titles: dict[str, str] = {}
        # In the order that Copier's refusal of an unknown card has: that of all families.
        for family in ["any", *families]:
            context = {
                "gpu_family": family,
                "gpu_so_far": "",
                "gpus": self["gpus"],
                "gpu_families": families,
            }
            titles |= self.template.choices("gpu", context)
        self.choices["gpu"] = [Choice(label, value, "") for value, label in titles.items()]
        listed = [value for value in titles if value != "other"]
        self.domains["gpu"] = listed + [f"other {number}" for number in CAPABILITIES.split()]

    def _check_written(self) -> None:
        for key, expected in WRITTEN.items():
            name, _, field = key.partition(".")
            text = str(self.template.questions[name][field])
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            if digest != expected:
                raise NotComputable(
                    f"{key} in copier.yml changed: change it in the page's modules, too, "
                    f"then write {digest} into WRITTEN"
                )

    # ---- their answers

    def _chosen(self, name: str, question: dict[str, Any]) -> Any:
        if question.get("multiselect"):
            return Several(name, [choice.value for choice in self.choices[name]], self.ask)
        if name == "gpu":
            return self.ask("gpu").partition(" ")[0]
        return self.ask(name)

    def _capability(self, question: dict[str, Any]) -> str:
        card, _, number = self.ask("gpu").partition(" ")
        return number if card == "other" else question["default"]

    def _typed(self, name: str, is_filled: bool = False) -> Any:
        self.has_printed_text = True
        return PROBES[name] if self.is_probing else Mark(name, is_filled)

    def _follows(self, name: str) -> Any:
        """A value that Copier computes; once for equal answers to what it reads."""
        computed = self._computed.setdefault((name, self.is_probing), [])
        for reads, value in computed:
            if reads.items() <= self.known.items():
                for atom in reads:
                    self.ask(atom)  # so that a value around this one has read it, too
                return value
        reads = {}
        self._reads.append(reads)
        try:
            value = self.template.default(name)
        finally:
            self._reads.pop()
        computed.append((reads, value))
        return value


def is_saved(question: dict[str, Any]) -> bool:
    """Whether the answers file keeps the answer to a question."""
    return question.get("when") is not False and not question.get("secret")


def choice(label: str, value: Any) -> Choice:
    """A choice of copier.yml, which may have a validator."""
    if isinstance(value, dict):
        return Choice(label, value["value"], value.get("validator", ""))
    return Choice(label, value, "")
