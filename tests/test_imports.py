"""Who imports whom in rendered projects, and what each framework's loop shows."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendering import render
from variants import Answers, choices, name, pairwise

YOURS = {"model", "dataset", "settings", "pictures", "train", "assemble", "config"}
EXTRAS = list(choices("extras"))
# Modules of the core's own folders that only an extra brings.
OF_EXTRAS = {
    "commands": ("benchmark", "check", "estimate", "export", "profile", "tune"),
    "hooks": ("ema", "watch", "guard"),
}

every_project = pytest.mark.parametrize(
    "answers", pairwise("workload", "loader", "framework", "distributed"), ids=name
)


def package_of(answers: Answers) -> Path:
    return render(**answers, extras=EXTRAS) / "src/my_training"


def runtime(
    tree: ast.AST, inside: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Imports that run, and whether they stand in a function; none below `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, inside
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        else:
            yield from runtime(node, inside or isinstance(node, ast.FunctionDef | ast.Lambda))


@functools.cache
def imports_of(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The same of a file's text, which most projects share."""
    return list(runtime(ast.parse(source)))


def modules(package: Path) -> dict[str, Path]:
    """`engine.store` and its file, for all but the files of folders themselves."""
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in files}


@functools.cache
def graph(package: Path) -> dict[str, dict[str, bool]]:
    """Each module's imports of the same package; True where one of them is at the top level."""
    known, found = modules(package), {}
    for module, path in known.items():
        imports: dict[str, bool] = {}
        for node, inside in imports_of(path.read_text(encoding="utf-8")):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            parent = module.split(".")[: -node.level]
            base = [*parent, *(node.module.split(".") if node.module else ())]
            for target in (base, *([*base, alias.name] for alias in node.names)):
                if (other := ".".join(target)) in known:
                    imports[other] = imports.get(other, False) or not inside
        found[module] = imports
    return found


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules of a circle, first to last; empty where there is none."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        done.add(module)
        return next(
            filter(None, (walk(other, [*way, module]) for other in sorted(edges[module]))), []
        )

    return next(filter(None, (walk(module, []) for module in edges)), [])


def of_an_extra(module: str) -> bool:
    folder, _, rest = module.partition(".")
    return folder == "measure" or rest in OF_EXTRAS.get(folder, ())


@every_project
def test_no_module_imports_itself_through_others(answers: Answers) -> None:
    imports = graph(package_of(answers))
    top = {
        module: {other for other, is_top in found.items() if is_top}
        for module, found in imports.items()
    }
    assert cycle(top) == [], "at the top level"
    assert cycle({module: set(found) for module, found in imports.items()}) == [], (
        "also inside functions"
    )


@every_project
def test_the_engine_knows_nothing_of_yours_and_no_verb(answers: Answers) -> None:
    for module, imports in graph(package_of(answers)).items():
        if module.startswith("engine."):
            wrong = [
                o
                for o in imports
                if o in YOURS or o.split(".")[0] in ("commands", "hooks", "measure")
            ]
            assert wrong == [], module


@every_project
def test_the_core_imports_no_extra(answers: Answers) -> None:
    package = package_of(answers)
    assert {f"{folder}.{name}" for folder, names in OF_EXTRAS.items() for name in names} <= modules(
        package
    ).keys()
    for module, imports in graph(package).items():
        if not of_an_extra(module):
            assert [other for other in imports if of_an_extra(other)] == [], module


SLOW = {"pyarrow", "matplotlib", "pandas", "h5py"}
"""What reads tables, draws or reads HDF5 is loaded where that is done."""


@pytest.mark.parametrize("workload", choices("workload"))
def test_a_training_starts_without_what_it_does_not_use(workload: str) -> None:
    package = render(workload=workload) / "src/my_training"
    imports, paths = graph(package), modules(package)
    reached, waiting = set(), ["commands.train", "train", "assemble"]
    while waiting:
        reached.add(module := waiting.pop())
        waiting += [
            other for other, is_top in imports[module].items() if is_top and other not in reached
        ]
    for module in reached:
        nodes = [
            node for node, inside in imports_of(paths[module].read_text("utf-8")) if not inside
        ]
        names = [
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [
            str(node.module)
            for node in nodes
            if isinstance(node, ast.ImportFrom) and not node.level
        ]
        slow = SLOW.intersection(name.partition(".")[0] for name in names)
        assert slow <= ({"h5py"} if workload == "windows" else set()), module


def test_a_circle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("framework", choices("framework"))
def test_the_loop_shows_the_algorithm(framework: str) -> None:
    """Forward in autocast, backward, clip, step, schedule, log: in train.py, not in what it calls."""
    tree = ast.parse(
        (render(framework=framework) / "src/my_training/train.py").read_text(encoding="utf-8")
    )
    nodes = list(ast.walk(tree))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {str(node.arg) for node in nodes if isinstance(node, ast.keyword)}
    assert names & {"backward", "manual_backward"}
    assert "autocast" in names
    assert any("clip" in name for name in names)
    for call in ("precision.step", "schedule.set", "monitor.log"):
        assert any(found.endswith(call) for found in calls), call
