"""Pages of docs/ that have no test of their own: their commands run, and what they say is so.

Commands of Copier run in test_update.py. What needs a network, a container, a scheduler, several
GPUs or a browser is in NOT_HERE, with its first words.
"""

import ast
import re
import shlex
from functools import cache

import pytest
from forking import forked_trainings, forked_trials
from importing import imported
from rendering import REPOSITORY, document, render
from running import PACKAGE, check_run
from variants import choices, extras

NEW = ("troubleshooting", "glossary", "comparison", "optimizations", "extras")
PAGES = ("start", "update", "rented-gpu", "measure", "monitor", *NEW, "several-gpus")
NOT_HERE = (
    "accelerate ",
    "docker ",
    "pipx ",
    "python3 -m venv ",
    "sbatch ",
    "torchrun ",
    "uv ",
)
# Fewer steps than the page's command, where that takes minutes.
SHORTER = {
    "benchmark": ("--processes", "1", "--steps", "2", "--warmup", "1"),
    "tune": ("--minutes", "0.01"),
    "train": ("--max-steps", "2"),
}


def page(name):
    return document(name).read_text(encoding="utf-8")


def command_lines(name):
    """The commands in the blocks of a page, without comments; one may be in two lines."""
    text = page(name).replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.+?)```", text, flags=re.DOTALL)
    blocks += re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    first_words = ("cd ", "copier ", "git ", "make", "python -m ", *NOT_HERE)
    return [line for line in lines if line.startswith(first_words)]


def project_words(line):
    """The words of a command of the project, also of one behind `make`; else none."""
    words = shlex.split(line)
    if words[:3] == ["python", "-m", PACKAGE]:
        return words[3:]
    if words[0] == "make" and len(words) > 1 and words[1] not in ("setup", "doctor", "add"):
        arguments = "".join(words[2:]).removeprefix("ARGS=")
        return [words[1], *shlex.split(arguments)]
    return []


def shortened(words):
    more = SHORTER.get(words[0], ())
    if words[0] == "train" and "--max-steps" in words:
        more = ()
    if words[0] == "train" and "--minutes" in words:
        more = ("--minutes", "0.02")  # the later one holds
    if "--search" in words:
        more = ("--training.max_steps", "2", "--trials", "1")
    return (*words, *more)


def documented():
    lines = {line for name in PAGES for line in command_lines(name) if project_words(line)}
    return sorted(lines)


@pytest.fixture(scope="module")
def project():
    """A project with every extra; Muon needs a model with blocks."""
    return render(workload="tabular", extras=extras("tabular"), distributed="ddp")


@pytest.fixture(scope="module")
def place(project, tmp_path_factory):
    """A folder with a run of few steps, for commands that need one."""
    folder = tmp_path_factory.mktemp("pages")
    words = ("train", "--training.max_steps", "4", "--max-steps", "2")
    check_run(project, *words, cwd=folder)
    return folder


@pytest.mark.parametrize("line", documented())
@pytest.mark.first(2)
def test_a_documented_command_works(line, project, place, tmp_path):
    words = project_words(line)
    if words[0] in ("try", "train-gpus", "test", "prove-update"):  # their own tests run them
        target = re.compile(rf"^{words[0]}:.*## ", flags=re.MULTILINE)
        assert target.search((project / "Makefile").read_text(encoding="utf-8"))
        return
    before = {
        "benchmark": forked_trials(project),
        "tune": forked_trainings(project) if "--search" in words else forked_trials(project),
    }.get(words[0])
    if words[:2] == ["train", "--resume"] and words[2:]:
        place = tmp_path  # the command that began this run may be in another process
        begun = [first for first in documented() if f" --name {words[2]}" in first]
        first = project_words(begun[0]) if begun else ["train", "--name", words[2]]
        check_run(project, *shortened(first), cwd=place)
    check_run(project, *shortened(words), cwd=place, before=before)


def test_every_command_is_of_a_known_kind():
    """`documented` of test_update.py has those of Copier."""
    for name in PAGES:
        for line in command_lines(name):
            known = (*NOT_HERE, "copier ", "git ", "cd ", "make setup", "make doctor", "make add ")
            assert project_words(line) or line.startswith(known), (name, line)


# ---- what the pages quote ----------------------------------------------------------------------


@cache
def printed():
    """What the code of all projects can print, as patterns: a field of a text is anything."""
    patterns = set()
    for path in [*REPOSITORY.glob("template/**/*.py"), *REPOSITORY.glob("template/**/*.py.jinja")]:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError:  # with statements of Jinja
            continue
        for node in ast.walk(tree):
            pattern = pattern_of(node)
            if len(re.sub(r"\.\*|\\", "", pattern)) >= 7:
                patterns.add(pattern)
    return [re.compile(pattern) for pattern in patterns]


def pattern_of(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\\\{\w+\\\}", ".*", re.escape(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(
            pattern_of(value) if isinstance(value, ast.Constant) else ".*" for value in node.values
        )
    return ""


def quoted():
    """The lines of errors, notes and alerts in all pages, without their kind."""
    lines = []
    for path in (REPOSITORY / "docs").rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        lines += re.findall(r"^    (?:error|note|alert): (.+)$", text, flags=re.MULTILINE)
        lines += re.findall(r"`(?:error|note|alert): (.+?)`", text)
    return sorted(
        {line for line in lines if not line.startswith(("WHAT HAPPENED", "<what happened>"))}
    )


@pytest.mark.parametrize("line", quoted())
def test_a_quoted_line_is_one_that_is_printed(line):
    """Its first part, up to a colon, is a text of the code."""
    matches = [pattern.match(line) for pattern in printed()]
    ends = [match.end() for match in matches if match is not None]
    assert max(ends, default=0) >= len(line.partition(": ")[0])


# ---- what the pages list -----------------------------------------------------------------------


@pytest.mark.parametrize("extra", choices("extras"))
def test_the_files_of_an_extra_are_those_of_the_page(extra):
    workload = next(name for name in choices("workload") if extra in extras(name))
    added = files(render(workload=workload, extras=[extra])) - files(render(workload=workload))
    section = page("extras").partition("## The files of each extra\n")[2].partition("\n## ")[0]
    (text,) = re.findall(rf"^\| `{extra}` \| (.+?) \|", section, flags=re.MULTILINE)
    assert added == set(re.findall(r"`([^`]+)`", text))


def files(folder):
    """By their names, those of the package by their names in it."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    names = {str(path.relative_to(folder)) for path in paths if path.name != "__init__.py"}
    return {name.removeprefix(f"src/{PACKAGE}/") for name in names}


def test_the_settings_that_a_resume_keeps_are_those_of_the_page():
    section = page("troubleshooting").partition("## A resume is rejected\n")[2]
    fixed = imported(render(), "commands.train").FIXED
    assert set(fixed) <= set(re.findall(r"`([\w.]+)`", section.partition("\nTo resume")[0]))
