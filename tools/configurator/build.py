"""Build the configurator: `python -m configurator.build CHECKOUT FOLDER`, in the folder tools.

Copier and Jinja do all evaluation here, so the page needs neither. Each text of a project is a tree
of decisions. Jinja renders its texts: when it reads an answer that is not known yet, the rendering
is interrupted, and becomes a decision with one rendering for each value of this answer. So a tree
asks exactly what Jinja asked, and the page only looks up and joins.

Texts that a person types are marks, which the page replaces. A template may print them. One that
computes with them needs a function of the page and a line in COMPUTED.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .decisions import JOIN, Tree
from .files import File, Files
from .private import Template
from .programs import Programs
from .questions import described, trees
from .reachable import Possible, Reached

SOURCE = "gh:org/fasttrain-template"
RELEASE = re.compile(r"v?\d+\.\d+\.\d+")
COMMON = ""  # the name of the texts that several workloads share
EXTRAS = "extras"  # and of those that only projects with an extra have
WINDOW = 24_000  # characters before a text in which a browser still finds what is repeated


class Page:
    """All that the page needs of a template."""

    def __init__(self, template: Template):
        self.version = template.version
        self.programs = Programs(template)
        self.answers = self.programs.answers
        self.decisions = self.programs.decisions
        self.questions = list(described(template, self.programs))
        self.reserved = self.answers["reserved_names"]
        self.possible = Possible(self.decisions, self.questions)
        files = list(Files(template, self.programs))
        reached = Reached(self.decisions, self.possible)
        for file in files:
            reached.visit(file)
        self.files = [
            File(reached.kept(file.path), reached.kept(file.content), file.is_executable)
            for file in files
        ]


class Tables:
    """Numbers for the nodes and texts that the page uses, in the order of their first use."""

    def __init__(self, page: Page):
        self._decisions = page.decisions
        self._atoms = list(page.answers.domains)
        self.nodes: list[Any] = []
        self.texts: list[str] = []
        self._node_numbers: dict[str, int] = {}
        self._text_numbers: dict[int, int] = {}

    def number(self, tree: Tree) -> Any:
        """A tree as the page reads it: a text from 0 on, a node below 0, or `["=", value]`."""
        if isinstance(tree, list):
            return tree
        if isinstance(tree, int):
            return self._text(tree)
        if tree not in self._node_numbers:
            kind, branches = self._decisions.content(tree)
            row = [self.number(branch) for branch in branches]
            atom = kind if kind == JOIN else self._atoms.index(kind)
            self.nodes.append([atom, row])
            self._node_numbers[tree] = -len(self.nodes)
        return self._node_numbers[tree]

    def _text(self, text: int) -> int:
        if text not in self._text_numbers:
            self._text_numbers[text] = len(self.texts)
            self.texts.append(self._decisions.texts[text])
        return self._text_numbers[text]


def grouped_texts(page: Page) -> dict[str, list[int]]:
    """The texts of the files of one workload alone, by workload; those of extras; common ones."""
    workloads = page.answers.domains["workload"]
    no_extras = {atom: 0 for atom in page.answers.domains if atom.startswith("extras.")}
    users: dict[int, set[str]] = {}
    usual: set[int] = set()
    for index, workload in enumerate(workloads):
        reached = reached_texts(page, {"workload": index})
        for text in reached:
            names = users.setdefault(text, set())
            names.add(workload)
        usual |= reached_texts(page, {"workload": index, **no_extras})
    groups: dict[str, list[int]] = {COMMON: [], EXTRAS: []}
    groups.update({workload: [] for workload in workloads})
    for text, names in sorted(users.items()):
        group = COMMON if text in usual else EXTRAS
        if len(names) == 1:
            group = min(names)
        groups[group].append(text)
    for workload in workloads:
        groups[workload] = similar_together(groups[workload], page.decisions.texts)
    return groups


def similar_together(numbers: list[int], texts: list[str]) -> list[int]:
    """The same texts, each after those whose lines it has. A package and its script share many.

    A browser's compression finds what is repeated only within 32 kB.
    """
    lines = {number: set(texts[number].splitlines()) for number in numbers}
    left = numbers[:]
    ordered: list[int] = []
    while left:
        near: set[str] = set()
        size = 0
        for number in reversed(ordered):
            near |= lines[number]
            size += len(texts[number])
            if size > WINDOW:
                break

        def shared(number: int, near: set[str] = near) -> float:
            known = sum(map(len, lines[number] & near))
            return known / (len(texts[number]) + 1)

        ordered.append(max(left, key=shared))
        left.remove(ordered[-1])
    return ordered


def reached_texts(page: Page, known: dict[str, int]) -> set[int]:
    """The texts of all files that answers with these branches can reach."""
    texts: set[int] = set()
    seen: set[Tree] = set()
    for file in page.files:
        paths = collect(page, file.path, known, set())
        if any(page.decisions.texts[text] for text in paths):
            texts |= collect(page, file.content, known, seen)
    return texts


def collect(page: Page, tree: Tree, known: dict[str, int], seen: set[Tree]) -> set[int]:
    """The texts of a tree that answers with these branches can reach."""
    if isinstance(tree, int):
        return {tree}
    if isinstance(tree, list) or tree in seen:
        return set()
    seen.add(tree)
    kind, branches = page.decisions.content(tree)
    if kind in known:
        branches = [branches[known[kind]]]
    found: set[int] = set()
    for branch in branches:
        found |= collect(page, branch, known, seen)
    return found


def data(page: Page, source: str) -> tuple[dict[str, Any], dict[str, tuple[int, list[str]]]]:
    """What data.js has, and the texts of files: the first number and the texts of each group."""
    tables = Tables(page)
    for holder, key in trees(page.questions):
        holder[key] = tables.number(holder[key])
    files: list[dict[str, Any]] = [{"path": tables.number(file.path)} for file in page.files]
    first_texts = len(tables.texts)
    groups = {}
    for name, texts in grouped_texts(page).items():
        first = len(tables.texts)
        for text in texts:
            tables.number(text)
        groups[name] = (first, tables.texts[first:])
    for row, file in zip(files, page.files, strict=True):
        row["content"] = tables.number(file.content)
        if file.is_executable:
            row["executable"] = True
    content = {
        "version": page.version,
        "source": source,
        "atoms": list(page.answers.domains.items()),
        "questions": page.questions,
        "groups": page.answers.groups,
        "files": files,
        "nodes": tables.nodes,
        "reserved": page.reserved,
        "texts": tables.texts[:first_texts],
        "contents": list(groups),
    }
    return content, groups


def write_data(page: Page, source: str, folder: Path) -> None:
    """Write data.js and the texts of the files, as scripts that also run from the disk."""
    content, groups = data(page, source)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "data.js", "globalThis.CONFIGURATOR=", content)
    for name, (first, texts) in groups.items():
        target = f"(globalThis.CONTENTS??={{}})[{json.dumps(name)}]="
        write(folder / contents_file(name), target, [first, texts])


def contents_file(group: str) -> str:
    """The file with the texts of a workload, or with those of several."""
    return f"contents-{group}.js" if group else "contents.js"


def write(path: Path, assignment: str, value: Any) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    path.write_text(f"{assignment}{text};\n", encoding="utf-8")


def newest_release(checkout: Path) -> str:
    """The tag of the newest release; HEAD where there is none."""
    command = ["git", "tag", "--list", "--sort=-version:refname"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, encoding="utf-8")
    releases = [tag for tag in done.stdout.split() if RELEASE.fullmatch(tag)]
    return releases[0] if releases else "HEAD"


def read_page(checkout: Path) -> Page:
    """The page of a checkout's newest release, which Copier takes, too. Without one, of HEAD."""
    with tempfile.TemporaryDirectory() as scratch:
        template = Template(checkout, Path(scratch), newest_release(checkout))
        try:
            return Page(template)
        finally:
            if template.root != checkout.resolve():
                shutil.rmtree(template.root, ignore_errors=True)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the data of the configurator's page.")
    parser.add_argument("checkout", type=Path, help="a checkout of the template")
    parser.add_argument("folder", type=Path, help="where data.js and contents*.js go")
    parser.add_argument("--source", default=SOURCE, help=f"the template's address ({SOURCE})")
    arguments = parser.parse_args(words)
    page = read_page(arguments.checkout)
    write_data(page, arguments.source, arguments.folder)
    print(
        f"{arguments.folder}: {len(page.files)} files, {page.decisions.renderings} renderings, "
        f"version {page.version}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
