"""Decisions: everything that a text can be, as a tree of answers with texts at its ends.

A tree is a number, the text of this number; or a name, a node of this name; or `["=", value]`, a
value that is no text. A node is either `(atom, branches)`, with a tree for each value of the atom,
or `("+", parts)`, trees whose texts are joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateNotFound, UndefinedError

from .answers import PROBES, Answers
from .unknown import IMPOSSIBLE, MARK, OPEN, Asked, NotComputable

JOIN = "+"
MOST = 20_000  # renderings of one piece; more of them mean that it should be cut
Tree = Any
Render = Callable[[], Any]


class Decisions:
    """All texts and nodes of the page. Equal ones are stored once."""

    def __init__(self, answers: Answers, is_reached: Callable[[], bool]):
        """is_reached: whether the conditions around the rendered piece allow the known answers."""
        self.answers = answers
        self.texts: list[str] = []
        self.renderings = 0
        self._is_reached = is_reached
        self._text_numbers: dict[str, int] = {}
        self._nodes: dict[str, tuple[str, list[Tree]]] = {}
        self._node_names: dict[str, str] = {}

    def text(self, text: str) -> int:
        """The number of a text."""
        if text not in self._text_numbers:
            self._text_numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._text_numbers[text]

    def node(self, kind: str, branches: list[Tree]) -> str:
        """The name of a node."""
        key = json.dumps([kind, branches])
        if key not in self._node_names:
            name = f"n{len(self._nodes)}"
            self._node_names[key] = name
            self._nodes[name] = (kind, branches)
        return self._node_names[key]

    def content(self, name: str) -> tuple[str, list[Tree]]:
        """What a node decides by, and its branches."""
        return self._nodes[name]

    def choice(self, atom: str, branches: list[Tree]) -> Tree:
        """A decision, or the branch that all of its values share."""
        if all(branch == branches[0] for branch in branches):
            return branches[0]
        return self.node(atom, branches)

    # ---- growing

    def tree(self, render: Render, leaf: Callable[[Any], Tree] | None = None) -> Tree:
        """All that `render` can give, as decisions about the answers that it reads.

        leaf: what to make of a rendered value, if it is not the text of a leaf.
        """
        before = self.answers.known
        self.answers.known = {}
        first = self.renderings
        try:
            return self._grow(render, leaf or self.text, first)
        finally:
            self.answers.known = before

    def values(self, test: Render) -> Tree:
        """A tree with values of JSON at its ends, not texts."""
        return self.tree(test, lambda value: ["=", value])

    def _grow(self, render: Render, leaf: Callable[[Any], Tree], first: int) -> Tree:
        self.renderings += 1
        if self.renderings - first > MOST:
            known = sorted(self.answers.known)
            raise NotComputable(f"more than {MOST} renderings of one piece; known: {known}")
        try:
            self.answers.has_printed_text = False
            value = self._probed(render, render())
        except Asked as unknown:
            return self._branch(unknown.atom, render, leaf, first)
        except (UndefinedError, TemplateNotFound):
            # Copier would stop here, too. A branch that is never taken is rendered as well: the
            # condition around it excludes these answers.
            return self.text(IMPOSSIBLE)
        return leaf(value)

    def _branch(self, atom: str, render: Render, leaf: Callable[[Any], Tree], first: int) -> Tree:
        known = self.answers.known
        branches = []
        for value in self.answers.domains[atom]:
            known[atom] = value
            branches.append(self._grow(render, leaf, first))
        del known[atom]
        return self.choice(atom, branches)

    def _probed(self, render: Render, value: Any) -> Any:
        """The value. Stops if a typed text changes more than its own place in it."""
        is_other_card = self.answers.known.get("gpu", "").startswith("other ")
        if not (is_other_card or self.answers.has_printed_text or OPEN in str(value)):
            return value
        expected = value
        if isinstance(value, str):
            expected = MARK.sub(lambda mark: str(PROBES[mark[1]]), value)
        self.answers.is_probing = True
        try:
            found = render()
        except Asked as unknown:
            found = f"a question about {unknown.atom}"
        finally:
            self.answers.is_probing = False
        if found == expected:
            return value
        if self._is_reached():
            raise NotComputable(
                "a template computes with a typed text: add a line to COMPUTED: "
                f"{found!r} is not {expected!r}"[:300]
            )
        return IMPOSSIBLE

    # ---- joining and reading

    def sequence(self, parts: Sequence[Tree]) -> Tree:
        """One tree for a list of trees. Texts side by side become one."""
        merged: list[Tree] = []
        for part in parts:
            if isinstance(part, int) and not self.texts[part]:
                continue
            if isinstance(part, int) and merged and isinstance(merged[-1], int):
                merged[-1] = self.text(self.texts[merged[-1]] + self.texts[part])
            else:
                merged.append(part)
        if not merged:
            return self.text("")
        return merged[0] if len(merged) == 1 else self.node(JOIN, merged)

    def mapped(self, tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
        """A tree with other ends."""
        if not isinstance(tree, str):
            return change(tree)
        kind, branches = self.content(tree)
        mapped = [self.mapped(branch, change) for branch in branches]
        return self.sequence(mapped) if kind == JOIN else self.choice(kind, mapped)

    def possible(self, tree: Tree) -> set[str]:
        """All texts that a tree can give."""
        if isinstance(tree, int):
            return {self.texts[tree]}
        kind, branches = self.content(tree)
        parts = [self.possible(branch) for branch in branches]
        if kind != JOIN:
            return set().union(*parts)
        texts = {""}
        for part in parts:
            texts = {text + more for text in texts for more in part}
        return texts

    def value(self, tree: Tree) -> str:
        """The text that a tree gives with the known answers. Asks for those that are missing."""
        while isinstance(tree, str):
            kind, branches = self.content(tree)
            if kind == JOIN:
                return "".join(self.value(branch) for branch in branches)
            known = self.answers.ask(kind)
            tree = branches[self.answers.domains[kind].index(known)]
        return self.texts[tree]
