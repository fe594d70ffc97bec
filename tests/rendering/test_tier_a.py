"""Every variant, without running it: invariants of rendered files, each distinct content looked at
once."""

import ast
import filecmp
import functools
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from budget import CHAT, DEFAULT, FORECAST, LARGEST, TABULAR, VISIBLE_NAMES, VISION, measure
from budget import SCRIPTS as BUDGETS_OF_SCRIPTS
from copier import run_copy
from link import ENVIRONMENT, link
from packaging.requirements import Requirement
from rendering import DEFAULTS, REPOSITORY, render, scratch, template
from tiers import covering
from variants import (
    SCRIPTS,
    all_variants,
    extras,
    name,
    pairwise,
    scripts,
    structural,
)

TEMPLATE = template() / "template"  # as it stood when the tests began
PACKAGE = TEMPLATE / "project/src/{{ package_name }}"
OWNERS = {"model.py", "dataset.py", "optimizer.py", "settings.py", "examples.py", "layers.py"}
# What a tracker's library imports and does not depend on: torch.utils.tensorboard, mlflow's
# database.
INDIRECT = {"tensorboard": {"tensorboard"}, "mlflow": {"alembic"}}
every_variant = pytest.mark.parametrize("answers", all_variants(), ids=name)


def files(project):
    return sorted(
        path for path in project.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


@functools.cache
def distinct():
    """One file for each distinct rendered content, over all variants; keys are path and hash."""
    files_by_content = {}
    for answers in (*all_variants(), *scripts()):
        project = render(**answers)
        for path in files(project):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            files_by_content.setdefault(f"{path.relative_to(project).as_posix()}@{digest}", path)
    return files_by_content


def distinct_python():
    return [path for path in distinct().values() if path.suffix == ".py"]


def run_ruff(*command):
    """Over a tree with each distinct .py once, with the configuration that the user's project
    has."""
    tree = scratch() / "distinct"
    if not tree.exists():
        for number, path in enumerate(distinct_python()):
            (tree / f"{number}").mkdir(parents=True)
            shutil.copy(path, tree / f"{number}")
    words = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config"]
    words += [str(render() / "pyproject.toml"), str(tree)]
    done = subprocess.run(words, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def read_toml(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


# ---- each distinct file ------------------------------------------------------------------------


def test_ruff_finds_nothing():
    assert run_ruff("check", "--output-format=concise") == ""


def test_formatting_changes_nothing():
    """Else a user's first format would make the next update of those lines a conflict."""
    assert run_ruff("format", "--check") == ""


def test_rules_of_the_repository_are_those_of_the_project():
    ours = read_toml(REPOSITORY / "pyproject.toml")
    theirs = read_toml(render() / "pyproject.toml")
    del ours["tool"]["ruff"]["lint"]["pycodestyle"]
    del ours["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert ours["tool"]["ruff"] == theirs["tool"]["ruff"]


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".yml"])
def test_data_files_load(suffix):
    paths = [path for path in distinct().values() if path.suffix == suffix]
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert tomllib.loads(text) if suffix == ".toml" else yaml.safe_load(text)


def test_no_leftovers_of_the_template():
    """One newline at the end, no blanks at line ends, no heaps of empty lines."""
    for key, path in distinct().items():  # `${{ }}` is GitHub's own
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!\$)\{\{|\{%|\{#|^ *# @|\bJinja\b|Undefined", text, re.M), key
        assert not re.search(r"\A\n|[ \t\r]$|\n\n\Z|[^\n]\Z", text, flags=re.MULTILINE), key
        assert "\n\n\n" not in text or path.suffix == ".py", key  # of Python the formatter says it


def test_addresses():
    """The only package index is PyTorch's, with the builds for old and new cards; no path of a
    machine."""
    for key, path in distinct().items():
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".py":  # comments there name sources
            assert hosts_in(text) <= {"download.pytorch.org", "github.com"}, key
        own = re.sub(r"(?m)^_src_path: .*$", "", text)
        assert not re.search(r"/(home|root|work|tmp)/", own), key
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]:
        hosts = hosts_in(page.read_text(encoding="utf-8"))
        assert hosts <= {"download.pytorch.org", "github.com", "org.github.io"}, page


def hosts_in(text):
    return set(re.findall(r"https?://([^/\s\"')>]+)", text))


# ---- each variant ------------------------------------------------------------------------------


def imported(project):
    """Modules of others that the package imports, also inside functions."""
    sources = (path.read_text(encoding="utf-8") for path in (project / "src").rglob("*.py"))
    names = set().union(*map(imported_by, sources))
    return names - set(sys.stdlib_module_names) - {"__future__"}


@functools.cache
def imported_by(source):
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).split(".")[0])
    return names


def declared(project):
    lines = read_toml(project / "pyproject.toml")["project"]["dependencies"]
    return {Requirement(line).name.lower() for line in lines}


@functools.cache
def owners():
    """Module → distribution, of everything that is installed here."""
    installed = importlib.metadata.packages_distributions()
    return {module: names[0].lower() for module, names in installed.items()}


@every_variant
def test_dependencies_are_what_is_imported(answers):
    project = render(**answers)
    modules = imported(project) - {"timm"}  # which only the setting `model.timm` needs
    assert "my_training" not in modules, "inside the package imports are relative"
    indirect = INDIRECT.get(answers.get("tracker", "none"), set())
    assert {owners().get(module, module) for module in modules} | indirect == declared(project)


def test_stolen_releases_of_lightning_are_excluded():
    """2.6.2 and 2.6.3 sent credentials away on import (GHSA-w37p-236h-pfx3)."""
    for project in (REPOSITORY, render(framework="lightning")):
        text = (project / "pyproject.toml").read_text(encoding="utf-8")
        (line,) = re.findall(r'"(lightning>.*)"', text)
        versions = ("2.6.1", "2.6.2", "2.6.3", "2.6.4")
        assert [*Requirement(line).specifier.filter(versions)] == ["2.6.1", "2.6.4"]


@every_variant
def test_size_fits_the_budget(answers):
    project = render(**answers)
    assert LARGEST.exceeded(measure(project)) == []
    visible = [path.name for path in project.iterdir() if path.name[0] != "."]
    assert len(visible) <= VISIBLE_NAMES, visible


EVERYTHING = {
    "workload": "llm",
    "framework": "lightning",
    "distributed": "fsdp",
    "tracker": "wandb",
    "extras": extras("llm"),
}
BUDGETS = {
    "default": ({}, DEFAULT),
    "tabular": ({"workload": "tabular"}, TABULAR),
    "forecast": ({"workload": "forecast"}, FORECAST),
    "vision": ({"workload": "vision"}, VISION),
    "chat": ({"workload": "chat"}, CHAT),
    **{
        f"{workload} script": ({"workload": workload, "layout": "script"}, budget)
        for workload, budget in BUDGETS_OF_SCRIPTS.items()
    },
    "everything": (EVERYTHING, LARGEST),
}


@pytest.mark.parametrize(("answers", "budget"), BUDGETS.values(), ids=BUDGETS)
def test_projects_fit_their_budgets(answers, budget):
    assert budget.exceeded(measure(render(**answers))) == []


@pytest.mark.parametrize("answers", pairwise(*structural(), "precision"), ids=name)
@pytest.mark.first(2)
def test_rendering_again_gives_the_same_bytes(answers, tmp_path):
    """The second time by Copier as it is, without what makes renders of tests quick."""
    first = render(**answers)
    second = tmp_path
    run_copy(str(template()), second, data=DEFAULTS | answers, defaults=True, quiet=True)
    names = [path.relative_to(first).as_posix() for path in files(first)]
    assert names == [path.relative_to(second).as_posix() for path in files(second)]
    assert filecmp.cmpfiles(first, second, names, shallow=False)[1:] == ([], [])


# ---- the template's own files ------------------------------------------------------------------


def test_python_is_rendered_byte_for_byte_and_none_is_dead():
    """Each file of Python is in some variant exactly as it is here; of a script it is a piece."""
    contents = {path.read_bytes() for path in distinct_python()}
    moved = PACKAGE / "config.py"  # only an update writes it: test_update.py
    for part in {*(TEMPLATE / "parts").rglob("*.py"), *PACKAGE.rglob("*.py")} - {moved}:
        content = part.read_bytes()
        is_piece = part.is_relative_to(TEMPLATE / "parts/script")
        assert content in contents or is_piece, part
        assert any(content in whole for whole in contents), part


def conditional():
    """The sources that have conditions in comments, by their place in the package."""
    sources = {}
    for path in PACKAGE.rglob("*.py.jinja"):
        source = path.read_text(encoding="utf-8")
        if re.search(r"(?m)^ *# @", source):
            sources[path.relative_to(PACKAGE).as_posix()] = source
    return sources


def test_conditions_are_comments_that_the_formatter_leaves_alone():
    """So the file with all branches is Python, and formatting it changes no project."""
    sources = conditional()
    assert "engine/compute/optimization.py.jinja" in sources
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename=x.py", "-"]
    lint = [sys.executable, "-m", "ruff", "check", "--select=F", "--stdin-filename=x.py", "-"]
    nothing = dict.fromkeys(("workload", "distributed", "tracker", "loader"), "none")
    nothing |= {"precision": "fp32", "extras": []}
    for place, source in sources.items():
        assert not re.search(r"\{[{%#]", source), place
        # Jinja would remove a blank line below a condition.
        assert not re.search(r"(?m)^ *# @.*\n\n", source), place
        linted = subprocess.run(lint, input=source, capture_output=True, text=True)
        assert linted.returncode == 0, (place, linted.stdout)
        formatted = subprocess.run(command, input=source, capture_output=True, text=True).stdout
        assert statements(formatted) == statements(source) != [], place
        whole = EVERYTHING | {"precision": "fp8", "loader": "chunk"}
        for answers in (nothing, nothing | {"workload": "windows"}, whole):
            before, after = (
                ast.dump(ast.parse(ENVIRONMENT.from_string(text).render(answers)))
                for text in (source, formatted)
            )
            assert before == after, place


def statements(source):
    return re.findall(r"(?m)^ *(# @.*)$", source)


def test_files_of_the_owner_have_no_conditions():
    """Else an added extra would conflict with an owner's file; each is the same or one part."""
    assert not OWNERS & {place.removesuffix(".jinja") for place in conditional()}
    for stub in [PACKAGE / f"{file}.jinja" for file in OWNERS]:
        if stub.exists():
            assert re.fullmatch(r"\{% include .* %\}\n", stub.read_text(encoding="utf-8")), stub


def each_answer(*names):
    """Some variants that together have each answer to these questions."""
    variants = pairwise(*names)
    chosen = covering([{*map(str, answers.items())} for answers in variants])
    return [variants[number] for number in sorted(chosen)]


@pytest.mark.full
def test_types(tmp_path):
    """mypy over links to the parts, in variants that have each of them once."""
    packages = []
    for number, answers in enumerate(each_answer(*structural(), "precision", "tracker")):
        folder = tmp_path / f"project_{number}"
        link(folder, **answers)
        # One package each for one call: projects import by relative names alone.
        packages.append(f"variant_{number}")
        (tmp_path / packages[-1]).symlink_to(folder / "src/my_training")
    scripts_folder = tmp_path / "pasted"
    scripts_folder.mkdir()
    (scripts_folder / "__init__.py").touch()
    for workload in SCRIPTS:
        source = render(workload=workload, layout="script") / "train.py"
        (scripts_folder / f"{workload}.py").symlink_to(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml")]
    command += ["--cache-dir", str(REPOSITORY / ".mypy_cache"), "--no-error-summary"]
    done = subprocess.run([*command, *packages, "pasted"], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b""), done.stdout.decode() + done.stderr.decode()
