"""The configurator's page gives what Copier gives: files, bytes, modes, refusals."""

import contextlib
import hashlib
import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from budget import measure_source
from configured import SOURCE, built, in_node, needs_node
from copier import run_copy
from copier._main import Worker
from quick_copier import quickly
from rendering import REPOSITORY, template

pytestmark = needs_node

PARTS = 20  # of the projects that together visit every branch
REFUSAL = re.compile(
    r"(?:Invalid choice for|Validation error for question) '(\w+)': (.*)", re.DOTALL
)


@pytest.fixture
def origin(monkeypatch):
    """Copier writes the version and the address of the page into the answers."""
    remembered = Worker._answers_to_remember

    def named(worker):
        return {**remembered(worker), "_commit": built().version, "_src_path": SOURCE}

    monkeypatch.setattr(Worker, "_answers_to_remember", named)


def copiers(answers: dict, folder: Path) -> dict:
    """What Copier makes of answers: files as [hash, executable] by path, or a refusal."""
    try:
        with quickly(), contextlib.redirect_stderr(None):
            run_copy(str(template()), folder, data=dict(answers), defaults=True, quiet=True)
    except ValueError as error:
        return {"problem": list(REFUSAL.findall(str(error))[0])}
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            executable = bool(path.stat().st_mode & 0o111)
            files[path.relative_to(folder).as_posix()] = [digest, executable]
    return {"files": files}


def part_of(rows: list, part: int, size: int) -> list:
    """Some rows; the last part has what is left."""
    last = None if part == PARTS - 1 else (part + 1) * size
    return rows[part * size : last]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.first(4)
@pytest.mark.usefixtures("origin")
def test_projects_are_equal_to_copiers_byte_by_byte(part, tmp_path):
    rows = part_of(built().projects, part, 10)
    for number, (answers, page) in enumerate(
        zip(rows, in_node("render.js", str(built().folder), given=rows), strict=True)
    ):
        folder = tmp_path / str(number)
        expected = copiers(answers, folder)
        assert page["files"] == expected["files"], (answers, page["saved"])
        assert page["again"], f"the answers of a link to {answers} give another project"
        shutil.rmtree(folder)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.first(5)
def test_refusals_have_copiers_reasons(part, tmp_path):
    rows = part_of(built().refused, part, 4)
    for number, (answers, page) in enumerate(
        zip(rows, in_node("render.js", str(built().folder), given=rows), strict=True)
    ):
        expected = copiers(answers, tmp_path / str(number))
        assert "problem" in expected, answers
        assert page.get("problem") == expected["problem"], answers


@pytest.mark.full
def test_a_swapped_decision_is_found():
    """The projects visit every branch: wherever two branches change places, one of them differs."""
    rows = [row for row in built().projects if "project_description" not in row]
    swaps = in_node("swaps.js", str(built().folder), "25", given=rows)
    assert len(swaps) == 25
    assert [swap for swap in swaps if not swap["found"]] == []


def test_yaml_is_pyyamls():
    draw = random.Random(5)
    signs = [
        *"aZ09 _-:#'\"?,[]{}&*!|>%@`~=<.\\/$",
        "é",
        "日",
        "🚀",
        " ",
        "word",
        ": ",
        " #",
        "true",
    ]
    rows = []
    for _ in range(2_000):
        text = "".join(draw.choices(signs, k=draw.choice([0, 1, 2, 3, 5, 9, 30, 120])))
        extras = draw.sample(["a", "b", "cc"], draw.randrange(4))
        memory = draw.choice([1.0, 24.0, 16.25])
        rows.append({"a": text, "project": text[::-1], "extras": extras, "memory": memory})
    written = in_node("functions.js", "yaml", given=rows)
    for row, text in zip(rows, written, strict=True):
        assert text == yaml.dump(row, indent=4, allow_unicode=True, default_flow_style=False)


def test_tokens_are_those_of_the_budgets():
    paths = sorted((REPOSITORY / "template").rglob("*.py"))
    sources = [path.read_text(encoding="utf-8") for path in paths]
    counted = in_node("functions.js", "pythonTokens", given=sources)
    expected = [measure_source(source).tokens for source in sources]
    assert dict(zip(map(str, paths), counted, strict=True)) == dict(
        zip(map(str, paths), expected, strict=True)
    )


def test_words_survive_a_posix_shell():
    words = [row["project_name"] for row in built().projects if "project_name" in row]
    words += ["a'b", '$HOME `ls` \\ " ;&|', "*", "-x", "new word"]
    quoted = in_node("functions.js", "posixWord", given=words)
    script = "printf '%s\\0' " + " ".join(quoted)
    said = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == words


def test_words_for_powershell_are_quoted_for_it():
    quoted = in_node("functions.js", "powershellWord", given=["a'b", "$HOME `x`", "plain", "a,b"])
    assert quoted == ["'a''b'", "'$HOME `x`'", "plain", "'a,b'"]


def test_commands_have_what_differs_and_a_release():
    before = {"workload": "llm", "extras": ["check"]}
    after = {"workload": "llm", "gpu": "h100", "extras": ["tune", "check"], "project_name": "A'b"}
    rows = [
        {"version": "v1.2.3", "before": before, "after": after},
        {"version": "v1.2.3-4-gabc", "before": {}, "after": {}},
    ]
    (posix, powershell), (usual, _) = in_node("commands.js", str(built().folder), given=rows)
    words = shlex.split(posix[0])
    assert words[:5] == ["copier", "copy", "--defaults", "-r", "v1.2.3"]
    assert words[5:7] == ["-d", "project_name=A'b"]
    assert words[-2:] == [SOURCE, "a-b"]
    assert "'project_name=A''b'" in powershell[0]
    # An update never renames a project: its own edits would stay behind in the old folder.
    assert shlex.split(posix[1])[5:] == ["-d", "gpu=h100", "-d", "extras=[check, tune]"]
    assert usual == [f"copier copy --defaults {SOURCE} my-training", ""]


@pytest.mark.usefixtures("origin")
def test_extras_that_a_workload_has_by_default_are_copiers(tmp_path):
    rows = [{"workload": "chat"}, {"workload": "chat", "extras": []}]
    pages = in_node("render.js", str(built().folder), given=rows)
    for number, (answers, page) in enumerate(zip(rows, pages, strict=True)):
        assert page["files"] == copiers(answers, tmp_path / str(number))["files"]
        assert page["again"]
    assert pages[0]["files"].keys() > pages[1]["files"].keys()
