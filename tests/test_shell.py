"""The shells around the code: Makefile and tests of a rendered project, tools and documents of this one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import budget
import pytest
from link import link
from rendering import REPOSITORY, questions, render, render_into
from variants import choices, gpus

# The environment of the tests, found by name as a user's active one is.
SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
for inherited in (
    "ARGS",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
    "MFLAGS",
):  # of the `make test` around it
    SHELL.pop(inherited, None)


def shell(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=SHELL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("targets", "answers"),
    [  # each command of theirs is an interpreter of its own
        (["test"], {"workload": "tabular", "extras": []}),
        (["test"], {}),
        (["lint", "test"], {"framework": "lightning", "loader": "memmap", "tracker": "wandb"}),
    ],
    ids=str,
)
@pytest.mark.first(1)
def test_own_tests_of_a_project_pass(targets: list[str], answers: dict[str, str], tmp_path: Path) -> None:
    project = render_into(tmp_path / "a project of größe", **answers)
    assert "passed" in shell(project, "make", *targets)


def test_targets_of_a_project(tmp_path: Path) -> None:
    """The README's first three commands; set-up as far as it goes without an index of packages."""
    project = render_into(tmp_path / "project")
    short = "ARGS=--training.max_steps 20 --schedule.warmup_steps 5"
    shell(project, "make", "train", short)
    baseline = shell(project, "make", "--dry-run", "train-baseline", short).split()
    assert baseline[-6:] == ["train", "--no-optimize", *short.partition("=")[2].split()]
    assert "r2" in shell(project, "make", "evaluate")
    (newest,) = (
        project / line for line in shell(project, "make", "report").splitlines() if line.startswith("runs/")
    )
    assert newest.read_text(encoding="utf-8").startswith("# ")
    listed = shell(project, "make")
    targets = re.findall(
        r"^([a-z-]+):", (project / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert [line.split()[0] for line in listed.splitlines()] == targets


@pytest.mark.parametrize(
    ("gpu", "arguments"),
    [
        ("auto", '"torch>=2.10" '),
        ("v100", '"torch>=2.10,<2.15" --index-url https://download.pytorch.org/whl/cu126'),
        ("h100", '"torch>=2.10" --index-url https://download.pytorch.org/whl/cu130'),
        ("cpu", '"torch>=2.10" --index-url https://download.pytorch.org/whl/cpu'),
    ],
)
def test_set_up_takes_torch_from_where_the_card_has_it(gpu: str, arguments: str) -> None:
    lines = shell(render(gpu=gpu), "make", "--dry-run", "setup").splitlines()
    assert [line for line in lines if "torch" in line] == [f".venv/bin/python -m pip install {arguments}"]


@pytest.mark.parametrize("where", [".", "packages/trainer"])
def test_hooks_go_into_a_repository_that_is_the_projects_own(where: str, tmp_path: Path) -> None:
    """Inside a larger one they would take the place of the root's."""
    project = render_into(tmp_path / where, extras=["pre_commit"])
    shell(tmp_path, "git", "init", "--quiet")
    recipe = (project / "Makefile").read_text(encoding="utf-8").partition("\nsetup:")[2].partition("\n\n")[0]
    (line,) = re.findall(r"@(if .*?; fi)$", recipe, flags=re.DOTALL | re.MULTILINE)
    hook = project / ".venv/bin/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\necho installed\n")
    hook.chmod(0o755)
    said = shell(project, "sh", "-c", line.replace("$$", "$").replace("\\\n", " "))
    assert ("installed" in said.split()) == (where == ".")
    assert ("no hooks installed" in said) == (where != ".")


def test_linked_parts_run_in_place(tmp_path: Path) -> None:
    link(tmp_path, framework="lightning")
    train = tmp_path / "src/my_training/train.py"
    assert train.resolve() == REPOSITORY / "template/parts/framework/lightning.py"
    command = [sys.executable, "-m", "my_training", "--help"]
    environment = {**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "train" in done.stdout


def test_code_is_counted_without_prose() -> None:
    source = (
        '"""Doc.\n\nMore."""\n\n# why\nx = 1  # what\n\n\ndef f():\n    """Doc."""\n    return """a\nb"""\n'
    )
    # x = 1 | def f ( ) : | return "..."
    code = budget.measure_source(source)
    assert (code.tokens, code.statements, code.largest_function) == (10, 3, 7)
    assert budget.measure_source("a, b = b, a\nc, d = a, b\n").tuple_assignments == 1
    assert budget.measure(render()).files == len(
        [p for p in render().rglob("*") if p.is_file() and not {"tests", "__pycache__"} & set(p.parts)]
    )


def documents() -> list[Path]:
    return [
        REPOSITORY / "README.md",
        REPOSITORY / "CHANGELOG.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert (path.parent / target).exists(), target


def test_package_indexes_are_named_by_no_document() -> None:
    for path in documents():
        hosts = set(re.findall(r"https?://([^/\s\"')>]+)", path.read_text(encoding="utf-8")))
        assert hosts <= {"download.pytorch.org", "github.com"}, path


def test_figures_of_the_documents() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert f" {len(gpus())} cards " in readme
    asked = [question for question in questions().values() if "gpu ==" not in str(question.get("when"))]
    assert f"asks {len(asked)} questions" in (REPOSITORY / "docs/start.md").read_text(encoding="utf-8")
    for question in (
        "workload",
        "layout",
        "precision",
        "loader",
        "framework",
        "distributed",
        "tracker",
        "extras",
    ):
        (row,) = re.findall(rf"^\| {question} \| (.+?) \|", readme, flags=re.MULTILINE)
        assert set(choices(question)) <= set(re.findall(r"`(\w+)`", row)), question


def test_continuous_integration_calls_the_command_of_the_readme() -> None:
    script = REPOSITORY / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
    assert "make test" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shell(REPOSITORY, "bash", "-n", str(script))
    assert shutil.which("make")


def test_tables_of_the_figures_are_those_that_were_measured(tmp_path: Path) -> None:
    """A page of docs/benchmarks holds what `benchmarks/publish.py` makes of the JSON beside it."""
    shutil.copytree(REPOSITORY / "docs/benchmarks", tmp_path / "docs/benchmarks")
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(REPOSITORY / "benchmarks/publish.py", tmp_path / "benchmarks")
    shell(tmp_path, sys.executable, "benchmarks/publish.py")
    kept = sorted((REPOSITORY / "docs/benchmarks").glob("*.json"))
    assert kept
    for figures in kept:
        page = figures.with_suffix(".md").name
        assert (tmp_path / "docs/benchmarks" / page).read_text() == figures.with_suffix(".md").read_text()
