"""The questions, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .answers import WRITTEN, is_saved
from .private import Template
from .programs import Programs

# Trees of a question or a choice: whether it is asked, its default, why it is refused.
TREES = ("when", "default", "refused")


def described(template: Template, programs: Programs) -> Iterator[dict[str, Any]]:
    """Each question that the answers file keeps, in asking order."""
    for name, question in template.questions.items():
        if not is_saved(question):
            continue
        row = {"name": name, "help": question.get("help", "")}
        row["when"] = truth(question.get("when", True), programs)
        if name in programs.answers.choices:
            row |= choices(name, question, programs)
        elif f"{name}.default" not in WRITTEN:
            row["fixed"] = question["default"]
        if "validator" in question and f"{name}.validator" not in WRITTEN:
            row["refused"] = programs.text_tree(question["validator"])
        yield row


def choices(name: str, question: dict[str, Any], programs: Programs) -> dict[str, Any]:
    """What a question with choices has in addition."""
    row: dict[str, Any] = {"multiple": bool(question.get("multiselect"))}
    row["choices"] = []
    for label, value, validator in programs.answers.choices[name]:
        refused = programs.text_tree(validator)
        row["choices"].append({"value": value, "label": label, "refused": refused})
    # The default card depends on the family, which the page does not ask.
    default = "auto" if name == "gpu" else str(question["default"])
    row["default"] = programs.text_tree(default)
    return row


def truth(value: bool | str, programs: Programs) -> Any:
    """A tree of true and false."""
    if isinstance(value, bool):
        return ["=", value]
    body = programs.parsed(value)
    return programs.decisions.values(lambda: programs.rendered(body) == "True")


def trees(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the questions have trees, each as a row and its key."""
    for row in rows:
        for holder in [row, *row.get("choices", [])]:
            for key in TREES:
                if key in holder:
                    yield holder, key
