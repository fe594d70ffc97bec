"""Who imports whom in rendered projects, for types too, and what each framework's loop shows."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendering import render
from variants import Answers, choices, extras, name, pairwise

# Modules of the core's own folders that only an extra brings.
OF_EXTRAS = {
    "commands": (
        "benchmark",
        "check",
        "compare",
        "estimate",
        "export",
        "machine",
        "profile",
        "tune",
    ),
    "hooks": ("details", "diagnose", "ema", "finetune", "guard", "phases", "watch"),
}
OF_LANES = ("lanes", "engine.data.lanes", "engine.run.recurrent", "hooks.lanes")
SLOW = {"pyarrow", "matplotlib", "pandas", "h5py"}
"""What reads tables, draws or reads HDF5 is loaded where that is done."""

every_project = pytest.mark.parametrize(
    "answers", pairwise("workload", "loader", "framework", "distributed"), ids=name
)
Edges = dict[str, set[str]]


def package_of(answers: Answers) -> Path:
    return render(**answers, extras=extras(answers["workload"])) / "src/my_training"


def modules(package: Path) -> dict[str, Path]:
    """`engine.data.store` and its file, for all but the files of folders themselves."""
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in files}


def at_start(tree: ast.AST) -> Iterator[ast.AST]:
    """What a module's import runs: nothing in functions, nor below `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_typing and not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from at_start(node)


@functools.cache
def imports_of(source: str, starting: bool) -> list[tuple[int, str]]:
    """(level, dotted name) of each import: all of them, or those that run at the start."""
    tree = ast.parse(source)
    imports = []
    for node in at_start(tree) if starting else ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            imports.append((node.level, ".".join(base)))
            imports += [(node.level, ".".join([*base, alias.name])) for alias in node.names]
    return imports


@functools.cache
def graph(package: Path, starting: bool = False) -> Edges:
    """Each module's imports of the same package, those inside functions and for types included."""
    known = modules(package)
    edges: Edges = {}
    for module, path in known.items():
        edges[module] = set()
        for level, imported in imports_of(path.read_text(encoding="utf-8"), starting):
            target = ".".join([*module.split(".")[:-level], imported])
            if level and target in known:
                edges[module].add(target)
    return edges


def of_an_extra(module: str) -> bool:
    folder, _, inside = module.partition(".")
    return folder == "measure" or module in OF_LANES or inside in OF_EXTRAS.get(folder, ())


@every_project
def test_imports_lead_down_and_in_no_circle(answers):
    """The engine knows nothing above it, the core no extra; not even their types."""
    edges = graph(package_of(answers))
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError
    for folder, names in OF_EXTRAS.items():
        assert {f"{folder}.{inside}" for inside in names} <= edges.keys()
    for module, imports in edges.items():
        if module.startswith("engine."):
            assert [other for other in imports if not other.startswith("engine.")] == [], module
        if module.startswith("commands."):
            assert [other for other in imports if other.startswith("commands.")] == [], module
        if not of_an_extra(module) and module != "config":  # which lists all sections
            assert [other for other in imports if of_an_extra(other)] == [], module


@pytest.mark.parametrize("workload", choices("workload"))
def test_a_training_starts_without_what_it_does_not_use(workload):
    package = render(workload=workload) / "src/my_training"
    edges = graph(package, starting=True)
    paths = modules(package)
    reached = set()
    waiting = ["commands.train", "train", "assemble"]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting += edges[module] - reached
    for module in reached:
        imports = imports_of(paths[module].read_text(encoding="utf-8"), True)
        slow = SLOW & {imported.partition(".")[0] for level, imported in imports if not level}
        assert slow <= ({"h5py"} if workload == "windows" else set()), module


@pytest.mark.parametrize("framework", choices("framework"))
def test_the_loop_shows_the_algorithm(framework):
    """Forward in autocast, backward, clip, step, schedule, log: in train.py, not in what it
    calls."""
    text = (render(framework=framework) / "src/my_training/train.py").read_text(encoding="utf-8")
    for step in (
        "autocast",
        "backward(",
        "clip",
        "scaler.step(",
        "learning_rate(",
        "run.write_record(",
    ):
        assert step in text
