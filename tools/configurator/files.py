"""The files of all projects: where each is, if it is there, and what it contains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .decisions import Tree
from .private import Template, matcher
from .programs import Programs


class File(NamedTuple):
    """A file of the template."""

    path: Tree  # in the project; empty where the project is without it
    content: Tree
    is_executable: bool


class Pattern:
    """One pattern of `_exclude`, which answers decide."""

    def __init__(self, tree: Tree, programs: Programs):
        self._tree = tree
        self._decisions = programs.decisions
        self._excluded = {}
        self._kept = {}
        for text in programs.decisions.possible(tree):
            if text.startswith("!"):
                self._kept[text] = matcher(text[1:])
            else:
                self._excluded[text] = matcher(text)

    def says(self, path: str) -> bool | None:
        """Whether it excludes a path (True) or keeps it (False). None: it says nothing."""
        specs = [*self._excluded.values(), *self._kept.values()]
        if not any(spec.match_file(path) for spec in specs):
            return None  # and no answer needs to be known
        text = self._decisions.value(self._tree)
        if text in self._excluded:
            return True if self._excluded[text].match_file(path) else None
        return False if self._kept[text].match_file(path) else None


class Files:
    """Walks through the folders that a template can render."""

    def __init__(self, template: Template, programs: Programs):
        self.template = template
        self.programs = programs
        self._folder = programs.text_tree(template.subdirectory)
        self._patterns = []
        for entry in template.exclude:
            for piece in programs.pieces(programs.parsed(entry)):
                self._patterns.append(Pattern(piece, programs))

    def __iter__(self) -> Iterator[File]:
        for folder in sorted(self.programs.decisions.possible(self._folder)):
            root = self.template.root / folder
            for path in sorted(root.rglob("*")):
                if path.is_file() and not self._is_hidden(path):
                    file = self._file(root, path, folder)
                    if self.programs.decisions.possible(file.path) != {""}:
                        yield file

    def _is_hidden(self, path: Path) -> bool:
        """Whether Copier passes over it: git's own files, and those with a template next to them."""
        template = path.with_name(f"{path.name}{self.template.suffix}")
        parts = path.relative_to(self.template.root).parts
        return ".git" in parts or template.exists()

    def _file(self, root: Path, path: Path, folder: str) -> File:
        relative = path.relative_to(root)
        is_template = relative.name.endswith(self.template.suffix)
        if is_template:
            relative = relative.with_name(relative.name.removesuffix(self.template.suffix))
        parts = [self.programs.parsed(part) for part in relative.parts]

        def place() -> str:
            if self.programs.decisions.value(self._folder) != folder:
                return ""
            rendered = []
            for part in parts:
                rendered.append(self.programs.rendered(part))
                if not rendered[-1]:
                    return ""
            target = "/".join(rendered)
            return "" if self._is_excluded(target) else target

        place_tree = self.programs.decisions.tree(place)
        name = path.relative_to(self.template.root).as_posix()
        if self.programs.decisions.possible(place_tree) == {""}:
            content = self.programs.decisions.text("")
        elif is_template:
            content = self.programs.file_tree(name)
        else:
            content = self.programs.decisions.text(path.read_bytes().decode())
        return File(place_tree, content, self.template.is_executable(path))

    def _is_excluded(self, path: str) -> bool:
        for pattern in reversed(self._patterns):  # the last one that says something
            verdict = pattern.says(path)
            if verdict is not None:
                return verdict
        return False
