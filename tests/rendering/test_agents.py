"""`AGENTS.md` of a project and of this repository: short, true, and its commands run."""

import re
import shlex
import subprocess
import sys

import pytest
from rendering import REPOSITORY, render
from running import PACKAGE, check_run
from scripts import CASES, run_script
from sizes import TINY
from variants import choices, extras

FEW = ("--training.max_steps", "4")
PACKAGES = [{"workload": workload} for workload in choices("workload")]
LONGEST = {"workload": "forecast", "extras": extras("forecast"), "project_description": "It sells."}
PACKAGES.insert(1, LONGEST)
SCRIPTS = [workload for workload in choices("workload") if workload != "chat"]


def commands_of(path):
    """The commands in a page's blocks, without their comments, as words."""
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 60, path
    assert (path.with_name("CLAUDE.md")).read_text() == "@AGENTS.md\n"
    blocks = "".join(re.findall(r"^```sh\n(.+?)^```", text, flags=re.MULTILINE | re.DOTALL))
    return [shlex.split(line, comments=True) for line in blocks.splitlines()]


def check_files(path, root):
    """Each file in a page's list is there."""
    text = path.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.+?)^```", text, flags=re.MULTILINE | re.DOTALL)
    folder = root
    for line in block.splitlines():
        name = line.split()[0]
        if name.startswith("src/"):
            folder = root / name
        elif line.startswith(" "):
            assert (folder / name).exists(), name
        else:
            assert (root / name).exists(), name


@pytest.mark.parametrize("answers", PACKAGES, ids=lambda answers: "-".join(map(str, answers)))
@pytest.mark.first(2)
def test_commands_of_a_package_run(answers, tmp_path):
    project = render(**answers)
    commands = commands_of(project / "AGENTS.md")
    check_files(project / "AGENTS.md", project)
    targets = [words[1] for words in commands if words[0] == "make"]
    assert {"setup", "test", "lint"} <= {*targets}
    python = f"PYTHON={sys.executable}"
    subprocess.run(["make", "-n", python, *targets], cwd=project, check=True, capture_output=True)
    programs = [words[3:] for words in commands if words[:3] == ["python", "-m", PACKAGE]]
    assert len(programs) + len(targets) == len(commands) > 5
    for words in programs:
        tiny = (*TINY[answers["workload"]], *FEW) if words[0] == "train" else ()
        check_run(project, *words, *tiny, cwd=tmp_path)


@pytest.mark.parametrize("workload", SCRIPTS)
@pytest.mark.first(1)
def test_commands_of_a_script_run(workload, tmp_path):
    project = render(workload=workload, layout="script")
    commands = commands_of(project / "AGENTS.md")
    check_files(project / "AGENTS.md", project)
    assert commands[:2] == [["pytest"], ["ruff", "check"]]
    for words in commands[2:]:
        assert words[:2] == ["python", "train.py"]
        few = () if "--resume" in words else (*CASES[workload].script.split(), "--max-steps", "4")
        done = run_script(project, *words[2:], *few, cwd=tmp_path)
        assert done.code == 0, done.err


def test_the_repositorys_own_are_true():
    commands = commands_of(REPOSITORY / "AGENTS.md")
    check_files(REPOSITORY / "AGENTS.md", REPOSITORY)
    targets = [words[1] for words in commands if words[0] == "make"]
    dry = subprocess.run(["make", "-n", *targets], cwd=REPOSITORY, capture_output=True, text=True)
    assert dry.returncode == 0, dry.stderr
    for words in commands:
        if words[0] == "python":
            assert (REPOSITORY / words[1]).is_file(), words
