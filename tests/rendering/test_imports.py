"""Who imports whom in rendered projects, for types too."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rendering import render
from variants import choices, extras, name, pairwise

every_project = pytest.mark.parametrize(
    "answers", pairwise("workload", "loader", "framework", "distributed"), ids=name
)
Edges = dict[str, set[str]]


def modules(package: Path) -> dict[str, Path]:
    """`engine.data.store` and its file, for all but the files of folders themselves."""
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in files}


@functools.cache
def imports_of(source: str) -> list[tuple[int, str]]:
    """(level, dotted name) of each import of a part of the package."""
    imports = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            imports.append((node.level, ".".join(base)))
            imports += [(node.level, ".".join([*base, alias.name])) for alias in node.names]
    return imports


def graph(package: Path) -> Edges:
    """Each module's imports of the same package, those inside functions and for types included."""
    known = modules(package)
    edges: Edges = {}
    for module, path in known.items():
        edges[module] = set()
        for level, imported in imports_of(path.read_text(encoding="utf-8")):
            target = ".".join([*module.split(".")[:-level], imported])
            if level and target in known:
                edges[module].add(target)
    return edges


@every_project
def test_imports_lead_down_and_in_no_circle(answers):
    """The engine knows nothing above it, the core no extra; not even their types."""
    core = modules(render(**answers) / "src/my_training")
    package = render(**answers, extras=extras(answers["workload"])) / "src/my_training"
    edges = graph(package)
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError
    for module, path in modules(package).items():
        imports = edges[module]
        if module.startswith("engine."):
            assert [other for other in imports if not other.startswith("engine.")] == [], module
        if module.startswith("commands."):
            assert [other for other in imports if other.startswith("commands.")] == [], module
        if module in core and core[module].read_bytes() == path.read_bytes():
            assert imports <= core.keys(), module


STARTED = """
import sys
import my_training.assemble, my_training.commands.train, my_training.train
assert not {"pyarrow", "matplotlib", "pandas"} & sys.modules.keys()
"""


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_a_training_starts_without_what_reads_tables_or_draws(workload):
    environment = {**os.environ, "PYTHONPATH": str(render(workload=workload) / "src")}
    subprocess.run([sys.executable, "-c", STARTED], env=environment, check=True)
