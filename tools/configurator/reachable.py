"""Which branches of the decisions possible answers reach.

A branch that no possible answers reach is left out of the page: no test could visit it. The proof
is complete: all answers that Copier accepts are known here, by kinds of cards that no refusal
distinguishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .decisions import JOIN, Decisions, Tree
from .files import File
from .unknown import IMPOSSIBLE

Known = dict[str, Any]  # values of atoms


class Possible:
    """All answers that Copier accepts."""

    def __init__(self, decisions: Decisions, questions: list[dict[str, Any]]):
        self._decisions = decisions
        self._domains = decisions.answers.domains
        self._questions = {row["name"]: row for row in questions if "choices" in row}
        self._single = [name for name, row in self._questions.items() if not row["multiple"]]
        self._several = [name for name, row in self._questions.items() if row["multiple"]]
        self._kinds = dict(self._kinds_of_cards())
        self._combinations = self._accepted()
        self._by_values: dict[tuple[str, ...], dict[tuple[Any, ...], list[Known]]] = {}

    def answers(self, known: Known) -> Known | None:
        """Possible answers with these values; none if they exclude each other.

        The other answers are the defaults, as far as possible.
        """
        names = tuple(name for name in self._single if name in known)
        values = tuple(self._kinds.get(known[name], known[name]) for name in names)
        combinations = self._with(names).get(values, [])
        for combination in combinations:
            answers = {**combination, **known}
            refused = [self._refuses_several(name, answers) for name in self._several]
            if not any(refused):
                return answers
        return None

    def refusal(self, name: str, value: Any, known: Known) -> str:
        """Why an answer to a question is refused."""
        row = self._questions[name]
        trees = [one["refused"] for one in row["choices"] if one["value"] == value]
        trees += [row["refused"]] if "refused" in row else []
        texts = [self._text(tree, known) for tree in trees]
        return "".join(texts).strip()

    def _with(self, names: tuple[str, ...]) -> dict[tuple[Any, ...], list[Known]]:
        """Combinations by their answers to some questions: one for each workload and layout, which
        alone decide what else is possible."""
        if names not in self._by_values:
            groups: dict[tuple[Any, ...], dict[Any, Known]] = {}
            for combination in self._combinations:
                values = tuple(combination[name] for name in names)
                kind = (combination["workload"], combination["layout"])
                group = groups.setdefault(values, {})
                group.setdefault(kind, combination)
            combinations = {}
            for values, group in groups.items():
                combinations[values] = list(group.values())
            self._by_values[names] = combinations
        return self._by_values[names]

    def _refuses_several(self, name: str, answers: Known) -> bool:
        """Whether one of several chosen answers to a question is refused."""
        values = [one["value"] for one in self._questions[name]["choices"]]
        chosen = [value for value in values if answers.get(f"{name}.{value}")]
        return any(self.refusal(name, value, answers) for value in chosen)

    def _accepted(self) -> list[Known]:
        """Every combination of answers to the questions with one answer; the defaults first."""
        accepted: list[Known] = [{}]
        for name in self._single:
            values = self._domains[name]
            if name == "gpu":
                values = list(dict.fromkeys(self._kinds.values()))
            longer = []
            for known in accepted:
                usual = self._text(self._questions[name]["default"], known)
                usual_first = sorted(values, key=lambda value: value != usual)
                for value in usual_first:
                    extended = {**known, name: value}
                    if not self.refusal(name, value, extended):
                        longer.append(extended)
            accepted = longer
        return accepted

    def _text(self, tree: Tree, known: Known) -> str:
        """A text with the known answers; nothing is chosen of what is not known."""
        usual = {name: False for name, values in self._domains.items() if values == [False, True]}
        before = self._decisions.answers.known
        self._decisions.answers.known = usual | known
        try:
            return self._decisions.value(tree)
        finally:
            self._decisions.answers.known = before

    def _kinds_of_cards(self) -> Iterator[tuple[str, str]]:
        """For each card the first one that every refusal and default treats alike."""
        trees = []
        for row in self._questions.values():
            trees += [one["refused"] for one in row["choices"]]
            trees += [row[key] for key in ("refused", "default") if key in row]
        different = set(cards(self._decisions, trees))
        columns = sorted(different)
        first: dict[tuple[str, ...], str] = {}
        for index, card in enumerate(self._domains["gpu"]):
            branches = tuple(column[index] for column in columns)
            yield card, first.setdefault(branches, card)


def cards(decisions: Decisions, trees: Iterable[Tree]) -> Iterator[tuple[str, ...]]:
    """The branches of every decision about the card."""
    for tree in trees:
        if isinstance(tree, str):
            kind, branches = decisions.content(tree)
            if kind == "gpu":
                yield tuple(map(str, branches))
            yield from cards(decisions, branches)


class Reached:
    """The branches of files that possible answers reach, each with such answers."""

    def __init__(self, decisions: Decisions, possible: Possible):
        self.branches: dict[tuple[str, int], Known] = {}
        self.needed: dict[tuple[str, int], Known] = {}  # the part of the answers that decides
        self._decisions = decisions
        self._possible = possible
        self._seen: set[tuple[Tree, tuple[tuple[str, Any], ...]]] = set()
        self._kept: dict[str, Tree] = {}

    def visit(self, file: File) -> None:
        """Follow the path of a file, and its content where the project has it."""
        paths = list(self._ends(file.path, {}))
        for text, known in paths:
            if text:
                for _ in self._ends(file.content, known):
                    continue

    def kept(self, tree: Tree) -> Tree:
        """A tree without the branches that were not reached."""
        if not isinstance(tree, str):
            return tree
        if tree not in self._kept:
            self._kept[tree] = self._without(tree)
        return self._kept[tree]

    def _ends(self, tree: Tree, known: Known) -> Iterator[tuple[str, Known]]:
        """The texts that a tree ends with, and the answers that lead there."""
        if not isinstance(tree, str):
            yield self._decisions.texts[tree], known
            return
        key = (tree, tuple(sorted(known.items())))
        if key in self._seen:
            return
        self._seen.add(key)
        atom, branches = self._decisions.content(tree)
        if atom == JOIN:
            for branch in branches:
                yield from self._ends(branch, known)
            return
        values = self._decisions.answers.domains[atom]
        for index, value in enumerate(values):
            if known.get(atom, value) != value:
                continue
            longer = {**known, atom: value}
            answers = self._possible.answers(longer)
            if answers is not None:
                self.branches.setdefault((tree, index), answers)
                self.needed.setdefault((tree, index), longer)
                yield from self._ends(branches[index], longer)

    def _without(self, name: str) -> Tree:
        atom, branches = self._decisions.content(name)
        if atom == JOIN:
            return self._decisions.sequence([self.kept(branch) for branch in branches])
        reached = [index for index in range(len(branches)) if (name, index) in self.branches]
        if not reached:
            return self._decisions.text(IMPOSSIBLE)
        usual = branches[reached[0]]
        kept = []
        for index, branch in enumerate(branches):
            # What no answers reach becomes equal to a branch that they reach.
            branch = branch if index in reached else usual
            kept.append(self.kept(branch))
        return self._decisions.choice(atom, kept)
