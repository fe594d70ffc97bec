"""What the configurator needs of Copier's private classes; no other file uses them.

`tests/configurator/test_build.py` runs this with the versions of `TESTED`, and their pages are equal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize

from copier._main import Worker, _pathspec_pattern
from copier._user_data import AnswersMap, Question
from pathspec import PathSpec

TESTED = ("9.15.0", "9.19.1")


class Template:
    """A template as Copier reads it: a version of a repository, or a folder without git."""

    def __init__(self, checkout: Path, scratch: Path, version: str = "HEAD"):
        worker = Worker(
            src_path=str(checkout), dst_path=scratch / "project", vcs_ref=version, quiet=True
        )
        self._template = worker.template
        self.environment = worker.jinja_env
        # Copier compiles the default of a question each time that it renders it.
        compiled = functools.cache(self.environment.from_string)
        setattr(self.environment, "from_string", compiled)  # noqa: B010 (a method)
        self.questions: dict[str, dict[str, Any]] = self._template.questions_data
        self.root: Path = self._template.local_abspath  # a clone, which the caller removes
        self.exclude: list[str] = list(self._template.exclude)
        self.subdirectory: str = self._template.subdirectory
        self.suffix: str = self._template.templates_suffix
        self.version: str = self._template.commit or "unversioned"

    def is_executable(self, path: Path) -> bool:
        """Whether a file of the template is a program. Git knows it, on every system."""
        modes = getattr(self._template, "git_index_modes", {})
        name = PurePosixPath(path.relative_to(self.root).as_posix())
        mode = modes.get(name, path.stat().st_mode)
        return bool(mode & 0o111)

    def default(self, name: str) -> Any:
        """The value of a question that is never asked."""
        question = Question(
            answers=AnswersMap(),
            jinja_env=self.environment,
            var_name=name,
            context={},
            **self.questions[name],
        )
        return question.get_default()

    def choices(self, name: str, context: Mapping[str, Any]) -> dict[str, str]:
        """The titles of a question's choices, by their values."""
        question = Question(
            answers=AnswersMap(),
            jinja_env=self.environment,
            var_name=name,
            context=context,
            **self.questions[name],
        )
        return {str(choice.value): str(choice.title) for choice in question._formatted_choices}


def matcher(text: str) -> PathSpec:
    """What Copier compares paths with, for the lines of a pattern."""
    lines = re.split(r"\r\n|\r|\n", normalize("NFD", text))
    return PathSpec.from_lines(_pathspec_pattern, lines)
