"""How big a rendered project is, against what it may be: every file must earn its place."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRAIN_LINES = 200  # the loop reads top to bottom
FILE_LINES = 300  # any file
SCRIPT_LINES = {"tabular": 500}  # of `layout: script` all is one file: settings, data, model, engine and loop
ANY_SCRIPT_LINES = 450
SCREEN = 8  # entries of the first `ls`


class Size(NamedTuple):
    """Of a project without its tests; lines are of code: no blanks, comments, docstrings."""

    files: int
    lines: int
    engine: int  # modules of engine/, without __init__
    dependencies: int


class Budget(NamedTuple):
    """What a project may have, and what we want it to have."""

    limit: Size
    aim: Size


# Nothing but a line here, defended by its author, raises a limit: a later feature of the core and its lines.
FEATURES = {  # files, lines, dependencies
    "prepare in streams: tables of any kind and size, every odd cell named, a dry run": (3, 366, 1),
    "a run belongs to one process at a time": (0, 22, 0),
    "one line where a library cannot be loaded, or the output is closed": (0, 12, 0),
    "hooks whole: four more moments, states in checkpoints, another attempt after an error": (0, 67, 0),
    "rows are means, also of what a model measures, resumed the same; each group's own rate": (0, 28, 0),
    "a first run that ends: train --minutes measures steps, under each framework; early lines": (0, 44, 0),
    "resume and answers that are not silent: changed settings recorded, remedies, words": (0, 47, 0),
    "a start from other weights, partly fitting ones too, of any file; frozen weights by phase": (1, 144, 0),
    "optimizer muon: one optimizer of torch's Muon and AdamW, which weights get which": (0, 27, 0),
    "prepare at half the speed of reading: sums, medians and rows in few passes; bytes in 8 bits": (0, 76, 0),
    "pictures of what a model does, at evaluations, for report and trackers": (2, 130, 0),
    "the report's scale, metrics and best, the loss without a model; divergence is an alert": (0, 91, 0),
    "from any directory: settings, data and runs of the project's folder; read-only ones": (0, 24, 0),
    "what keeps torch from loading in one line; notes of constant columns and of no test rows": (0, 19, 0),
    "weights of a hook: `--weights` of the verbs that open a run, for the extra ema": (0, 16, 0),
    "an epoch's rest of samples moves the weights by its share, not as a whole step": (0, 8, 0),
}


def raised(files: int, lines: int, engine: int, dependencies: int) -> Size:
    more_files, more_lines, more_dependencies = map(sum, zip(*FEATURES.values(), strict=True))
    return Size(files + more_files, lines + more_lines, engine, dependencies + more_dependencies)


# Limits go down with the code, and up by `FEATURES` alone.
DEFAULT = Budget(raised(48, 3950, 24, 7), raised(44, 3700, 20, 7))
TABULAR = Budget(raised(46, 3700, 24, 7), raised(42, 3400, 20, 7))
# Everything on. More dependencies come with a framework, a tracker, a tokenizer.
# Extras that came later raise only these, by what they bring; weights.py stands in the engine.
LATER = {"ema": (1, 0, 0), "check": (3, 499, 0), "tune --search": (4, 523, 1)}  # files, lines, dependencies
MORE_FILES, MORE_LINES, MORE_DEPENDENCIES = map(sum, zip(*LATER.values(), strict=True))
DEPENDENCIES = 14 + MORE_DEPENDENCIES
ANY = raised(77 + MORE_FILES, 6900 + MORE_LINES, 28 + 1, DEPENDENCIES)  # of other answers
LARGEST = Budget(raised(74 + MORE_FILES, 6300 + MORE_LINES, 28, DEPENDENCIES), raised(74, 5800, 26, 14))


@functools.cache
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
    lines = python_files(project)
    engine = [path for path in lines if "/engine/" in path and not path.endswith("__init__.py")]
    return Size(len(files), sum(lines.values()), len(engine), len(declared["project"]["dependencies"]))
