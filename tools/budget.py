"""How large and how dense the code of a rendered project is, and what it may be.

    python tools/budget.py PATH...     # .py files or folders: the figures, and the largest
    functions

Code is counted in Python's own tokens, without comments, docstrings and layout. Neither a formatter
nor a packed line changes that count. Tokens per statement say how much a reader must take in at
once: nanoGPT and torchtitan have 10.
"""

from __future__ import annotations

import ast
import functools
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

VISIBLE_NAMES = 10  # entries that the first `ls` shows
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# Since Python 3.12 an f-string is several tokens. It counts as one, as before.
FSTRING_START = getattr(tokenize, "FSTRING_START", None)
FSTRING_END = getattr(tokenize, "FSTRING_END", None)


class Code(NamedTuple):
    """What some source code has."""

    tokens: int
    statements: int
    largest_function: int  # tokens
    tuple_assignments: int  # from a tuple to a tuple, swaps excepted
    walrus: int

    @property
    def tokens_per_statement(self) -> float:
        return self.tokens / max(self.statements, 1)


class Size(NamedTuple):
    """What a project has, without its tests."""

    files: int
    dependencies: int
    code: Code


class Budget(NamedTuple):
    """What a project may have at most."""

    files: int
    dependencies: int
    tokens: int
    tokens_per_statement: float
    largest_function: int
    tuple_assignments: int
    walrus: int

    def exceeded(self, size: Size) -> list[str]:
        """What is beyond the budget, each as one line."""
        used = {
            "files": size.files,
            "dependencies": size.dependencies,
            "tokens": size.code.tokens,
            "tokens_per_statement": round(size.code.tokens_per_statement, 1),
            "largest_function": size.code.largest_function,
            "tuple_assignments": size.code.tuple_assignments,
            "walrus": size.code.walrus,
        }
        allowed = self._asdict()
        return [
            f"{name}: {used[name]} of {allowed[name]}"
            for name in used
            if used[name] > allowed[name]
        ]


# Each limit is what the code had when it was last measured, plus some air: a clear version must
# fit without packing. Limits go down with the code.
DEFAULT = Budget(74, 7, 41_500, 10.1, 350, 0, 0)
TABULAR = Budget(77, 7, 46_250, 10.2, 350, 0, 0)
FORECAST = Budget(85, 7, 52_200, 10.2, 350, 0, 0)
VISION = Budget(74, 8, 46_300, 10.1, 350, 0, 0)
CHAT = Budget(81, 11, 49_700, 10.1, 350, 0, 0)  # with its default extras, export and lora
# Everything switched on.
LARGEST = Budget(145, 16, 111_500, 10.6, 360, 0, 0)
SCRIPTS = {
    "timeseries": Budget(8, 7, 7_900, 10.9, 400, 0, 0),
    "forecast": Budget(8, 7, 9_080, 11.1, 400, 0, 0),
    "tabular": Budget(8, 7, 8_660, 10.95, 400, 0, 0),
    "windows": Budget(8, 7, 8_970, 10.9, 400, 0, 0),
    "llm": Budget(8, 7, 8_050, 10.9, 400, 0, 0),
    "seq2seq": Budget(8, 7, 8_800, 10.9, 400, 0, 0),
    "graph": Budget(8, 7, 11_830, 10.9, 400, 0, 0),
    "vision": Budget(8, 7, 10_170, 10.9, 400, 0, 0),
}


@functools.cache
def measure_source(source: str) -> Code:
    """Count the code of one file."""
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    tokens = code_tokens(source, docstrings)
    statements = 0
    tuple_assignments = 0
    walrus = 0
    largest_function = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno not in docstrings:
            statements += 1
        if isinstance(node, ast.NamedExpr):
            walrus += 1
        if isinstance(node, ast.Assign) and is_packed(node):
            tuple_assignments += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last_line = node.end_lineno or node.lineno
            inside = [line for line in tokens if node.lineno <= line <= last_line]
            largest_function = max(largest_function, len(inside))
    return Code(len(tokens), statements, largest_function, tuple_assignments, walrus)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that belong to a string which is a statement of its own."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_tokens(source: str, docstrings: set[int]) -> list[int]:
    """The line on which each token of code begins."""
    lines = []
    depth = 0  # of f-strings in f-strings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in docstrings:
            continue
        if token.type == FSTRING_END:
            depth -= 1
            continue
        is_inside_fstring = depth > 0
        if token.type == FSTRING_START:
            depth += 1
        if not is_inside_fstring:
            lines.append(token.start[0])
    return lines


def is_packed(node: ast.Assign) -> bool:
    """Whether an assignment sets several names to several values. A swap such as `a, b = b, a` is
    none."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    names = sorted(ast.unparse(element) for element in target.elts)
    values = sorted(ast.unparse(element) for element in node.value.elts)
    return names != values


def measure_code(paths: Iterable[Path]) -> Code:
    """Count the code of several files or folders."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    counts = [measure_source(file.read_text(encoding="utf-8")) for file in files]
    return Code(
        tokens=sum(count.tokens for count in counts),
        statements=sum(count.statements for count in counts),
        largest_function=max(count.largest_function for count in counts),
        tuple_assignments=sum(count.tuple_assignments for count in counts),
        walrus=sum(count.walrus for count in counts),
    )


def measure(project: Path) -> Size:
    """Measure a freshly rendered project."""
    made_later = {".git", "tests", "runs", "data", ".venv", "__pycache__"}  # tests are apart
    files = [path for path in project.rglob("*") if path.is_file()]
    files = [path for path in files if not made_later.intersection(path.relative_to(project).parts)]
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    is_package = (project / "src").is_dir()
    code = measure_code([project / "src" if is_package else project / "train.py"])
    return Size(len(files), len(declared["project"]["dependencies"]), code)


def main(paths: list[Path]) -> None:
    """Print what files or folders have."""
    code = measure_code(paths)
    print(f"{code.tokens:,} tokens, {code.tokens_per_statement:.1f} a statement")
    print(f"largest function {code.largest_function} tokens")
    print(f"packed assignments {code.tuple_assignments}, walrus {code.walrus}")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
