"""Every variant, without running it: invariants of rendered files, each distinct content looked at once."""

from __future__ import annotations

import ast
import filecmp
import functools
import hashlib
import importlib.metadata
import itertools
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from budget import DEFAULT, LARGEST, SCRIPT, TABULAR, TABULAR_SCRIPT, VISIBLE_NAMES, Budget, measure
from copier import run_copy
from link import link
from packaging.requirements import Requirement
from rendering import DEFAULTS, REPOSITORY, questions, render, scratch, template
from tiers import covering
from variants import Answers, all_variants, choices, name, pairwise, scripts, structural

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEMPLATE = template() / "template"  # as it stood when the tests began
PACKAGE = TEMPLATE / "project/src/{{ package_name }}"
# What a tracker's library imports and does not depend on: torch.utils.tensorboard, mlflow's database.
INDIRECT = {"tensorboard": {"tensorboard"}, "mlflow": {"alembic"}}
GIVEN = 'precision: str = "{}"'  # of a script, whose settings have no file of their own
INCLUDE = re.compile(r"{% include (.+) %}\n")

every_variant = pytest.mark.parametrize("answers", all_variants(), ids=name)


def files(project: Path) -> list[Path]:
    return sorted(
        path for path in project.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


@functools.cache
def distinct() -> dict[str, Path]:
    """One file for each distinct rendered content, over all variants; keys are path and hash."""
    found = {}
    for answers in (*all_variants(), *scripts()):
        project = render(**answers)
        for path in files(project):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            found.setdefault(f"{path.relative_to(project).as_posix()}@{digest}", path)
    return found


def distinct_python() -> list[Path]:
    return [path for path in distinct().values() if path.suffix == ".py"]


def run_ruff(*command: str) -> str:
    """Over a tree with each distinct .py once, with the configuration that the user's project has."""
    tree = scratch() / "distinct"
    if not tree.exists():
        for number, path in enumerate(distinct_python()):
            place = tree / str(number) / path.name
            place.parent.mkdir(parents=True)
            place.write_bytes(path.read_bytes())
    configuration = render() / "pyproject.toml"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--no-cache",
            "--config",
            str(configuration),
            str(tree),
        ],
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


# ---- each distinct file ------------------------------------------------------------------------


def test_python_parses_as_the_oldest_supported_version() -> None:
    assert len(distinct_python()) > 30
    for path in distinct_python():
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))


def test_ruff_finds_nothing() -> None:
    assert run_ruff("check", "--output-format=concise") == ""


def test_formatting_changes_nothing() -> None:
    """Else a user's first format would make the next update of those lines a conflict."""
    assert run_ruff("format", "--check") == ""


def test_rules_of_the_repository_are_those_of_the_project() -> None:
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "ruff"
    ]
    theirs = tomllib.loads((render() / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "ruff"
    ]
    assert ours == theirs


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".yml"])
def test_data_files_load(suffix: str) -> None:
    paths = [path for path in distinct().values() if path.suffix == suffix]
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert tomllib.loads(text) if suffix == ".toml" else yaml.safe_load(text)


def test_no_leftovers_of_the_template() -> None:
    for key, path in distinct().items():  # `${{ }}` is GitHub's own
        assert not re.search(
            r"(?<!\$)\{\{|\{%|\{#|\bJinja\b|Undefined", path.read_text(encoding="utf-8")
        ), key


def test_no_artefacts_of_rendering() -> None:
    """As if typed by hand: one newline at the end, no blanks at line ends, no empty lines in heaps."""
    for key, path in distinct().items():
        text = path.read_text(encoding="utf-8")
        if not text:
            assert path.name == "__init__.py", key
            continue
        assert not text.startswith("\n"), key
        assert text.endswith("\n"), key
        assert not text.endswith("\n\n"), key
        assert not re.search(r"[ \t]+$", text, flags=re.MULTILINE), key
        assert "\n\n\n" not in text or path.suffix == ".py", key  # of Python the formatter says it
        assert "\r" not in text, key


def test_documents_fit_the_screen() -> None:
    for key, path in distinct().items():
        if path.suffix == ".md":
            for line in path.read_text(encoding="utf-8").splitlines():
                assert len(line) <= 120 or line.startswith("|"), f"{key}: {line}"


def test_addresses() -> None:
    """The only package index is PyTorch's, with the builds for old and new cards; no path of a machine."""
    for key, path in distinct().items():
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://([^/\s\"')]+)", text))
        if path.suffix != ".py":  # comments there name sources
            assert hosts <= {"download.pytorch.org", "github.com"}, key
        own = [line for line in text.splitlines() if not line.startswith("_src_path: ")]
        assert not re.search(r"/(home|root|work|tmp)/", "\n".join(own)), key


# ---- each variant ------------------------------------------------------------------------------


def imported(project: Path) -> set[str]:
    """Modules of others that the package imports, also inside functions."""
    names = [
        imported_by(path.read_text(encoding="utf-8")) for path in (project / "src").rglob("*.py")
    ]
    return set().union(*names) - set(sys.stdlib_module_names) - {"__future__"}


@functools.cache
def imported_by(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).split(".")[0])
    return names


def declared(project: Path) -> set[str]:
    content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        re.split(r"[<>=!~ ;\[]", line)[0].lower() for line in content["project"]["dependencies"]
    }


@functools.cache
def owners() -> dict[str, str]:
    """Module → distribution, of everything that is installed here."""
    return {
        module: found[0].lower()
        for module, found in importlib.metadata.packages_distributions().items()
    }


@every_variant
def test_dependencies_are_what_is_imported(answers: Answers) -> None:
    project = render(**answers)
    modules = imported(project)
    assert "my_training" not in modules, "inside the package imports are relative"
    indirect = INDIRECT.get(answers.get("tracker", "none"), set())
    assert {owners().get(module, module) for module in modules} | indirect == declared(project)


@every_variant
def test_a_project_knows_no_framework_and_no_tracker_but_its_own(answers: Answers) -> None:
    project, own = render(**answers), {answers["framework"], answers.get("tracker", "none")}
    others = {"lightning", "accelerate", "tensorboard", "wandb", "mlflow"} - own
    assert not others & {
        name.removesuffix("-skinny") for name in declared(project) | imported(project)
    }


def test_stolen_releases_of_lightning_are_excluded() -> None:
    """2.6.2 and 2.6.3 sent credentials away on import (GHSA-w37p-236h-pfx3)."""
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    theirs = render(framework="lightning") / "pyproject.toml"
    required = tomllib.loads(theirs.read_text(encoding="utf-8"))["project"]["dependencies"]
    for lines in (ours["optional-dependencies"]["dev"], required):
        (lightning,) = (Requirement(line) for line in lines if line.startswith("lightning"))
        assert [v for v in ("2.6.1", "2.6.2", "2.6.3", "2.6.4") if v in lightning.specifier] == [
            "2.6.1",
            "2.6.4",
        ]


@every_variant
def test_size_fits_the_budget(answers: Answers) -> None:
    project = render(**answers)
    assert LARGEST.exceeded(measure(project)) == []
    visible = [path.name for path in project.iterdir() if path.name[0] != "."]
    assert len(visible) <= VISIBLE_NAMES, visible


EVERYTHING = {
    "workload": "llm",
    "framework": "lightning",
    "distributed": "fsdp",
    "tracker": "wandb",
}


@pytest.mark.parametrize(
    ("answers", "budget"),
    [
        ({}, DEFAULT),
        ({"workload": "tabular"}, TABULAR),
        ({"workload": "timeseries", "layout": "script"}, SCRIPT),
        ({"workload": "llm", "layout": "script"}, SCRIPT),
        ({"workload": "tabular", "layout": "script"}, TABULAR_SCRIPT),
        (EVERYTHING | {"extras": list(choices("extras"))}, LARGEST),
    ],
    ids=["default", "tabular", "timeseries script", "llm script", "tabular script", "everything"],
)
def test_projects_fit_their_budgets(answers: Answers, budget: Budget) -> None:
    assert budget.exceeded(measure(render(**answers))) == []


def test_the_core_has_no_empty_folder_of_extras() -> None:
    package = render() / "src/my_training"
    assert sorted(path.name for path in package.iterdir() if path.is_dir()) == [
        "commands",
        "engine",
        "hooks",
    ]


@pytest.mark.parametrize("answers", pairwise(*structural(), "precision"), ids=name)
@pytest.mark.first(2)
def test_rendering_again_gives_the_same_bytes(answers: Answers, tmp_path: Path) -> None:
    """The second time by Copier as it is, without what makes renders of tests quick."""
    first, second = render(**answers), tmp_path
    run_copy(str(template()), second, data=DEFAULTS | answers, defaults=True, quiet=True)
    names = [path.relative_to(first).as_posix() for path in files(first)]
    assert names == [path.relative_to(second).as_posix() for path in files(second)]
    assert filecmp.cmpfiles(first, second, names, shallow=False)[1:] == ([], [])


# ---- the template's own files ------------------------------------------------------------------


def test_python_sources_hold_no_jinja() -> None:
    sources = [path for path in TEMPLATE.rglob("*.py") if path.is_file()]
    assert len(sources) > 30
    for path in sources:
        assert not re.search(r"\{\{|\{%|\{#|#\}", path.read_text(encoding="utf-8")), path


def test_templated_python_is_one_include() -> None:
    for path in PACKAGE.rglob("*.jinja"):
        assert INCLUDE.fullmatch(path.read_text(encoding="utf-8")), path


def test_parts_are_rendered_byte_for_byte_and_none_is_dead() -> None:
    """Each part of Python stands in some variant exactly as it is here."""
    unused = {
        path for path in (TEMPLATE / "parts").rglob("*.py") if "__pycache__" not in path.parts
    }
    compiled = []
    for path in PACKAGE.rglob("*.jinja"):
        part = jinja2.Environment().compile_expression(
            INCLUDE.fullmatch(path.read_text(encoding="utf-8"))[1]
        )
        names = path.relative_to(PACKAGE).with_suffix("").parts
        compiled.append((part, [jinja2.Template(name) for name in names]))
    extras = questions()["extras"]["default"]
    for answers in all_variants():
        known = {"precision": "auto", "tracker": "none", "extras": extras, **answers}
        for include, names in compiled:
            place = Path(*(name.render(known) for name in names))
            if place.suffix:  # else a condition is false
                part = template() / include(**known)
                rendered = render(**answers) / "src/my_training" / place
                assert rendered.read_bytes() == part.read_bytes()
                unused.discard(part)
    for answers in scripts():
        for path in render(**answers).glob("*.py"):
            part = TEMPLATE / "parts/script" / answers["workload"] / path.name
            text = part.read_text(encoding="utf-8")
            if path.name == "train.py":  # one word of it is an answer
                assert text.count(GIVEN.format("auto")) == 1
                text = text.replace(GIVEN.format("auto"), GIVEN.format(answers["precision"]))
            assert path.read_text(encoding="utf-8") == text
            unused.discard(part)
    assert unused == set()


def test_each_choice_has_its_part() -> None:
    """A new answer is one line in copier.yml and its files; this names the folder where they are missing."""
    for question in ("workload", "loader", "framework", "distributed", "tracker"):
        parts = {
            path.stem for path in (TEMPLATE / "parts" / question).iterdir() if path.stem[0] != "_"
        }
        assert parts == set(choices(question)), question


@pytest.mark.full
@pytest.mark.parametrize("together", [0, 2])
def test_types(together: int, tmp_path: Path) -> None:
    """mypy over links to the parts of variants with every workload, or two answers; each set once."""
    every = pairwise(*structural(), "precision", "tracker")
    held = [set(itertools.combinations(answers.items(), together)) for answers in every]
    kept = covering(held if together else [{answers["workload"]} for answers in every])
    seen: dict[frozenset[Path], str] = {}
    for answers in (every[number] for number in sorted(kept)):
        folder = tmp_path / name(answers)
        link(folder, **answers)
        parts = frozenset(path.resolve() for path in folder.rglob("*.py"))
        # One package each for one call: projects import by relative names, so that theirs does not matter.
        if parts not in seen:
            seen[parts] = f"variant_{len(seen)}"
            (tmp_path / seen[parts]).symlink_to(folder / "src/my_training")
    (tmp_path / "pasted").mkdir()  # the scripts, as strict as a core
    (tmp_path / "pasted/__init__.py").touch()
    for script in (TEMPLATE / "parts/script").glob("*/train.py"):
        (tmp_path / f"pasted/{script.parent.name}.py").symlink_to(
            REPOSITORY / script.relative_to(template())
        )
    command = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml")]
    command += ["--cache-dir", str(REPOSITORY / ".mypy_cache"), "--no-error-summary"]
    command += [*seen.values(), "pasted"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
    assert 1 < len(seen) <= 40
