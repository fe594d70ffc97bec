"""Templates as trees.

A template is cut at its outermost `{{ }}`, `{% if %}` and `{% include %}`. Each piece is a tree of
its own, so twenty independent conditions are twenty small trees, not one with 2**20 ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import TemplateNotFound, UndefinedError, nodes
from jinja2.runtime import Context, missing

from .answers import Answers
from .decisions import Decisions, Tree
from .private import Template
from .unknown import IMPOSSIBLE, Asked, Mark

# Expressions that the page computes, and the name of the mark that each becomes.
COMPUTED = {
    "extras | sort | join(', ') or 'none'": "extras",
    "_copier_answers | to_nice_yaml": "answers",
    r"""project_description | replace('\\', '\\\\') | replace('"', '\\"')""": "toml_description",
    "'%g' | format(card.memory_gb)": "memory",
}
Body = Sequence[Any]  # nodes of Jinja


class Programs:
    """Makes trees of Jinja's templates, with one environment."""

    def __init__(self, template: Template):
        self.answers = Answers(template)
        self.decisions = Decisions(self.answers, self._is_reached)
        self.environment = template.environment
        self.environment.context_class = context_of(self.answers)
        # The conditions around a piece, each as the body that gives the number of its branch.
        self._around: list[tuple[Body, str]] = []
        self._files: dict[str, Body] = {}
        self._included: dict[Any, Tree] = {}
        self._compiled: dict[Any, Any] = {}
        self._computed = []
        for expression, name in COMPUTED.items():
            (output,) = self.parsed("{{" + expression + "}}")
            self._computed.append((output.nodes[0], str(Mark(name))))

    def parsed(self, source: str, name: str | None = None) -> Body:
        """The nodes of a template."""
        return self.environment.parse(source, name).body

    def file(self, name: str) -> Body:
        """The nodes of a file of the template."""
        if name not in self._files:
            assert self.environment.loader is not None
            source, _, _ = self.environment.loader.get_source(self.environment, name)
            self._files[name] = self.parsed(source, name)
        return self._files[name]

    def text_tree(self, source: str) -> Tree:
        """The tree of a template that is no file."""
        pieces = self.pieces(self.parsed(source))
        return self.decisions.sequence(pieces)

    def file_tree(self, name: str) -> Tree:
        """The tree of a file."""
        pieces = self.pieces(self.file(name))
        return self.decisions.sequence(pieces)

    def rendered(self, body: Body) -> str:
        """What Jinja makes of nodes, with the known answers."""
        key = tuple(map(id, body))
        if key not in self._compiled:
            tree = nodes.Template(list(body), lineno=1)
            tree.set_environment(self.environment)
            code = self.environment.compile(tree, None, None)
            template = self.environment.template_class.from_code(
                self.environment, code, self.environment.globals
            )
            # The body is kept: another one could get the id of a lost one.
            self._compiled[key] = (template, body)
        template, _ = self._compiled[key]
        return str(template.render())

    def pieces(self, body: Body, outer: Sequence[Any] = ()) -> list[Tree]:
        """Nodes as a list of trees.

        outer: the definitions (`set`, `macro`) that apply to them.
        """
        pieces: list[Tree] = []
        definitions = list(outer)
        for statement in body:
            if isinstance(statement, nodes.Assign | nodes.AssignBlock | nodes.Macro):
                definitions.append(statement)
            elif isinstance(statement, nodes.Output):
                pieces += [self._printed(child, definitions) for child in statement.nodes]
            elif isinstance(statement, nodes.If):
                pieces.append(self._condition(statement, definitions))
            elif isinstance(statement, nodes.Include):
                pieces.append(self._include(statement, definitions))
            else:
                pieces.append(self._whole([statement], definitions))
        return pieces

    # ---- kinds of pieces

    def _whole(self, body: Body, definitions: Sequence[Any]) -> Tree:
        """Nodes as one tree, which Jinja renders."""
        complete = [*needed(body, definitions), *body]
        return self.decisions.tree(lambda: self.rendered(complete))

    def _printed(self, child: Any, definitions: Sequence[Any]) -> Tree:
        if isinstance(child, nodes.TemplateData):
            return self.decisions.text(child.data)
        for expression, mark in self._computed:
            if expression == child:
                return self.decisions.text(mark)
        return self._whole([printing(child)], definitions)

    def _condition(self, statement: nodes.If, definitions: Sequence[Any]) -> Tree:
        """`if`, each of whose bodies is a template of its own."""
        branches = [(statement.test, statement.body)]
        branches += [(other.test, other.body) for other in statement.elif_]
        tests = [test for test, _ in branches]
        bodies = [inside for _, inside in branches]
        bodies.append(statement.else_)
        last = len(tests)
        number: list[Any] = [printing_number(last)]
        for index in reversed(range(last)):
            printed: list[Any] = [printing_number(index)]
            number = [nodes.If(tests[index], printed, [], number, lineno=1)]
        body = [*needed(tests, definitions), *number]
        trees = []
        for index, inside in enumerate(bodies):
            self._around.append((body, str(index)))
            pieces = self.pieces(inside, definitions)
            self._around.pop()
            trees.append(self.decisions.sequence(pieces))
        return self.decisions.tree(lambda: self.rendered(body), lambda text: trees[int(text)])

    def _include(self, statement: nodes.Include, definitions: Sequence[Any]) -> Tree:
        """`include`, whose name Jinja renders, and whose content is a template of its own."""
        printed = [printing(statement.template)]
        body = [*needed(printed, definitions), *printed]
        names = self.decisions.tree(lambda: self.rendered(body))

        def content(text: int) -> Tree:
            name = self.decisions.texts[text]
            around = tuple((id(outer[-1]), branch) for outer, branch in self._around)
            key = (name, *map(id, definitions), *around)
            if key not in self._included:
                try:
                    pieces = self.pieces(self.file(name), definitions)
                except TemplateNotFound:
                    missed = "" if statement.ignore_missing else IMPOSSIBLE
                    pieces = [self.decisions.text(missed)]
                self._included[key] = self.decisions.sequence(pieces)
            return self._included[key]

        return self.decisions.mapped(names, content)

    def _is_reached(self) -> bool:
        for body, branch in self._around:
            try:
                if self.rendered(body) != branch:
                    return False
            except Asked:
                continue
            except UndefinedError:
                return False
        return True


def printing(child: Any) -> nodes.Output:
    """`{{ child }}`"""
    return nodes.Output([child], lineno=1)


def printing_number(number: int) -> nodes.Output:
    """The output of a number."""
    data = nodes.TemplateData(str(number))
    return printing(data)


def needed(body: Iterable[Any], definitions: Sequence[Any]) -> list[Any]:
    """The definitions that nodes use."""
    body = list(body)
    used = {name for node in body for name in names(node)}
    includes = any(node.find(nodes.Include) for node in body)
    found: list[Any] = []
    for definition in reversed(definitions):
        stored = {name.name for name in definition.find_all(nodes.Name) if name.ctx == "store"}
        stored.add(getattr(definition, "name", None))
        if stored & used or includes:
            found.insert(0, definition)
            used |= {name.name for name in definition.find_all(nodes.Name)}
    return found


def names(node: Any) -> Iterable[str]:
    """The names of variables in a node."""
    if isinstance(node, nodes.Name):
        yield node.name
    for inner in node.find_all(nodes.Name):
        yield inner.name


def context_of(answers: Answers) -> type[Context]:
    """A context of Jinja in which names of questions are answers."""

    class AnswersContext(Context):
        def resolve_or_missing(self, key: str) -> Any:
            found = super().resolve_or_missing(key)
            if found is missing and key in answers:
                return answers[key]
            return found

    return AnswersContext
