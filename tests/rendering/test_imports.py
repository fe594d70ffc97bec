"""Who imports whom in the template and in rendered projects, for types too."""

from __future__ import annotations

import ast
import fnmatch
import functools
import graphlib
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from rendering import render
from variants import choices, extras, name, pairwise

every_project = pytest.mark.parametrize(
    "answers", pairwise("workload", "loader", "framework", "distributed"), ids=name
)
ROOT = Path(__file__).parents[2]
PARTS = ROOT / "template/parts"
PACKAGE = ROOT / "template/project/src/{{ package_name }}"
Edges = dict[str, set[str]]


def modules(package):
    """`engine.loading.store` and its file, for all but the files of folders themselves."""
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in files}


@functools.cache
def imports_of(source):
    """(level, dotted name) of each import of a part of the package."""
    imports = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            imports.append((node.level, ".".join(base)))
            imports += [(node.level, ".".join([*base, alias.name])) for alias in node.names]
    return imports


def graph(sources):
    """Each module's imports of the same package, those inside functions and for types included."""
    edges: Edges = {}
    for module, texts in sources.items():
        edges[module] = set()
        for level, imported in chain(*map(imports_of, texts)):
            target = ".".join([*module.split(".")[:-level], imported])
            if level and target in sources:
                edges[module].add(target)
    return edges


def template_sources():
    """The sources of each module in the template: with all branches, and all parts of a stub."""
    parts = {path.relative_to(ROOT).as_posix(): path for path in PARTS.rglob("*.py")}
    sources = {}
    for path in [*PACKAGE.rglob("[!_]*.py"), *PACKAGE.rglob("*.py.jinja")]:
        text = path.read_text(encoding="utf-8")
        texts = [text]
        stub = re.fullmatch(r"\{% include (.*) %\}\n", text)
        if stub:
            first, *others = re.findall('"(.*?)"', stub[1])
            chosen = fnmatch.filter(parts, f"{first}[!_]*{others[-1]}") if others else [first]
            texts = [parts[part].read_text(encoding="utf-8") for part in chosen]
        place = path.relative_to(PACKAGE).as_posix()
        sources[re.sub(r"\.py(\.jinja)?$", "", place).replace("/", ".")] = texts
    return sources


def floor(module):
    """The engine, the owner's files with what prepares data, what builds and trains, commands."""
    top = module.partition(".")[0]
    above = dict.fromkeys(("assemble", "folds", "trained", "train", "hooks", "measure"), 2)
    return {"engine": 0, "commands": 3, **above}.get(top, 1)


def test_imports_of_the_template_lead_down_and_in_no_circle():
    """Whatever is answered. Nothing is imported by a name in a text, where no tool follows it."""
    sources = template_sources()
    edges = graph(sources)
    assert len(edges["train"]) > 1 < len(edges["dataset"]), "stubs have the imports of their parts"
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError
    for module, imports in edges.items():
        assert [other for other in imports if floor(other) > floor(module)] == [], module
        if floor(module) == 3:
            assert [other for other in imports if floor(other) == 3] == [], module
        assert not re.search(r"import_module\(f?.\.", "".join(sources[module])), module


@every_project
def test_the_core_imports_no_extra(answers):
    """Not even its types."""
    core = modules(render(**answers) / "src/my_training")
    package = modules(render(**answers, extras=extras(answers["workload"])) / "src/my_training")
    edges = graph({name: [path.read_text(encoding="utf-8")] for name, path in package.items()})
    for module, path in package.items():
        if module in core and core[module].read_bytes() == path.read_bytes():
            assert edges[module] <= core.keys(), module


# What several modules define by contract: a command, a hook, what engine/interfaces.py describes,
# and a checkpoint, which is of one file or sharded.
CONTRACT = {"main", "arguments", "report_lines", "Hook", "Samples", "Loader", "Model", "Checkpoint"}


@every_project
def test_a_name_means_one_thing(answers):
    """No function or class has its name in two modules of a project without extras."""
    found: dict[str, str] = {}
    for module, path in modules(render(**answers) / "src/my_training").items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in CONTRACT:
                assert node.name not in found, f"{node.name}: {module}, {found[node.name]}"
                found[node.name] = module


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
