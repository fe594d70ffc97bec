"""Answers that together visit every branch of the page's decisions, to compare with Copier."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .build import Page
from .decisions import JOIN, Tree
from .reachable import Known, Reached

Branch = tuple[str, int]
TEXTS = yaml.safe_load(Path(__file__).with_name("coverage.yml").read_text(encoding="utf-8"))


def branches(page: Page) -> Reached:
    """The branches of the page's files, each with answers that visit it."""
    reached = Reached(page.decisions, page.possible)
    for file in page.files:
        reached.visit(file)
    return reached


def projects(page: Page) -> list[dict[str, Any]]:
    """Answers to the questions, those first that visit most branches which no others have."""
    reached = branches(page)
    missing = dict.fromkeys(reached.branches)
    # Without extras, a branch of one workload may differ from that of another; with some, not.
    chosen = plain(page)
    while missing:
        known = widened(page, reached, missing)
        visited = visited_by(page, known)
        chosen.append(known)
        missing = {branch: None for branch in missing if branch not in visited}
    chosen = sorted_by_gain([(known, visited_by(page, known)) for known in chosen])
    names = itertools.cycle(TEXTS["project_names"])
    packages = itertools.cycle(TEXTS["package_names"])
    return [answers(page, known, next(names), next(packages)) for known in chosen]


def plain(page: Page) -> list[Known]:
    """The default answers of each workload, without extras."""
    found = []
    for workload in page.answers.domains["workload"]:
        known = page.possible.answers({"workload": workload})
        assert known is not None
        found.append(known)
    return found


def widened(page: Page, reached: Reached, missing: Mapping[Branch, None]) -> Known:
    """Possible answers that visit the first missing branch, and as many others as agree with it."""
    known: Known = {}
    for branch in missing:
        wanted = reached.needed[branch]
        if all(known.get(atom, value) == value for atom, value in wanted.items()):
            both = {**known, **wanted}
            if page.possible.answers(both) is not None:
                known = both
    found = page.possible.answers(known)
    assert found is not None
    return found


def sorted_by_gain(cases: list[tuple[Known, set[Branch]]]) -> list[Known]:
    """Each next one visits most of what those before it have not."""
    seen: set[Branch] = set()
    ordered = []
    while cases:
        cases.sort(key=lambda case: len(case[1] - seen), reverse=True)
        known, visited = cases.pop(0)
        seen |= visited
        ordered.append(known)
    return ordered


def visited_by(page: Page, known: Known) -> set[Branch]:
    """The branches of files that a project visits."""
    complete = {atom: known.get(atom, False) for atom in page.answers.domains}
    visited: set[Branch] = set()

    def visit(tree: Tree) -> str:
        if not isinstance(tree, str):
            return page.decisions.texts[tree]
        atom, inner = page.decisions.content(tree)
        if atom == JOIN:
            return "".join(visit(branch) for branch in inner)
        index = page.answers.domains[atom].index(complete[atom])
        visited.add((tree, index))
        return visit(inner[index])

    for file in page.files:
        if visit(file.path):
            visit(file.content)
    return visited


def answers(page: Page, known: Known, name: str, package: str | None) -> dict[str, Any]:
    """Answers to Copier's questions for values of atoms."""
    given: dict[str, Any] = {"project_name": name, "extras": []}
    for atom, value in known.items():
        question, _, choice = atom.partition(".")
        if choice:
            given[question] += [choice] if value else []
        elif atom == "gpu" and value.startswith("other "):
            given |= {"gpu": "other", "gpu_compute_capability": value.split()[1]}
            given["gpu_memory_gb"] = 11.5
        elif atom == "project_description":
            given |= {atom: 'It says "a: b\\c" & more'} if value else {}
        else:
            given[atom] = value
    if known["layout"] == "script":
        for name in ("loader", "framework", "distributed", "tracker", "extras"):
            del given[name]
    return given | ({"package_name": package} if package else {})


def refusals(page: Page) -> list[dict[str, Any]]:
    """Answers that Copier refuses: each reason of each choice once, and texts that it refuses."""
    return [*dict_unique(refused_choices(page)), *TEXTS["refused"]]


def dict_unique(rows: Iterator[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The first row of each key."""
    first: dict[Any, dict[str, Any]] = {}
    for key, row in rows:
        first.setdefault(key, row)
    return list(first.values())


def refused_choices(page: Page) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Reasons, each with answers."""
    contexts: list[Known] = []
    for workload in page.answers.domains["workload"]:
        for layout in page.answers.domains["layout"]:
            contexts.append({"workload": workload, "layout": layout})
    contexts += [{"gpu": card} for card in page.answers.domains["gpu"]]
    for context, row in itertools.product(contexts, page.questions):
        found = page.possible.answers(context)
        if found is None:
            continue
        name = row["name"]
        for value in [choice["value"] for choice in row.get("choices", [])]:
            chosen = {f"{name}.{value}": True} if row["multiple"] else {name: value}
            reason = page.possible.refusal(name, value, found | chosen)
            if reason:
                given = {name: [value] if row["multiple"] else value}
                yield (name, reason), asked(context) | given


def asked(context: Known) -> dict[str, Any]:
    """Answers for the values of a context."""
    card, _, number = context.get("gpu", "").partition(" ")
    if number:
        return {"gpu": card, "gpu_compute_capability": number}
    return dict(context)
