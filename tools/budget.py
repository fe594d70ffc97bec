"""How big a rendered project is, against what it may be: every file must earn its place."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRAIN_LINES = 200  # the loop reads top to bottom
FILE_LINES = 300  # any file
SCREEN = 8  # entries of the first `ls`


class Size(NamedTuple):
    """Of a project without its tests; lines are of code: no blanks, comments, docstrings."""

    files: int
    lines: int
    dependencies: int


DEFAULT = Size(70, 7000, 8)  # the default project may have this much
LARGEST = Size(80, 7500, 14)  # any project; more dependencies come with lightning, a tracker, a tokenizer


def code_lines(source: str) -> int:
    """Lines of `source` that hold code: no blanks, comments, docstrings."""
    prose = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate((line.strip() for line in source.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in prose for number, line in lines)


def python_files(project: Path) -> dict[str, int]:
    """Code lines of each module of the package, by its path in the project."""
    return {
        path.relative_to(project).as_posix(): code_lines(path.read_text(encoding="utf-8"))
        for path in sorted((project / "src").rglob("*.py"))
    }


def measure(project: Path) -> Size:
    """The size of a freshly rendered project."""
    made_later = {".git", "tests", "runs", "data", ".venv", "__pycache__"}
    files = [path for path in project.rglob("*") if path.is_file()]
    files = [path for path in files if not made_later.intersection(path.relative_to(project).parts)]
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return Size(len(files), sum(python_files(project).values()), len(declared["project"]["dependencies"]))
