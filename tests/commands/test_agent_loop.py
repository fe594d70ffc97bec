"""The loop of docs/how-to/agents.md tries five edits, and commits the one that helps."""

import re
import runpy
import subprocess
import sys

import pytest
from forking import forked_sides
from rendering import document, replace
from running import PACKAGE, run
from sizes import TINY
from test_experiment import GIT, LENGTH, OUTPUT, copied

MODEL = f"src/{PACKAGE}/model.py"
FUTURE = "from __future__ import annotations\n"
RATE = re.compile(r"\n  learning_rate: .+\n")
EDITS = {
    "1-rate": ("config.yaml", "\n  learning_rate: 0.0001\n", "\n  learning_rate: 0.005\n"),
    "2-comment": (MODEL, OUTPUT, f"{OUTPUT}  # a comment"),
    "3-worse": (MODEL, OUTPUT, f"{OUTPUT} + 3"),
    "4-syntax": (MODEL, OUTPUT, "return self.head(x.float()"),
    "5-yardstick": (f"src/{PACKAGE}/dataset.py", FUTURE, f"{FUTURE}\nNEW = 1\n"),
}


def git(folder, *words):
    done = subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.full
def test_the_loop_keeps_the_edit_that_helps(tmp_path, monkeypatch, capsys):
    project = copied(tmp_path / "project", workload="tabular")
    config = project / "config.yaml"
    text, count = RATE.subn("\n  learning_rate: 0.0001\n", config.read_text())
    assert count == 1
    config.write_text(text)
    with (project / ".gitignore").open("a") as file:
        file.write("/edits/\n.out\n.err\n")
    (program,) = re.findall(r"```python\n(.+?)```", document("agents").read_text(), re.DOTALL)
    assert len([line for line in program.split("\n\nend = ")[1].splitlines() if line]) <= 20
    (project / "try_edits.py").write_text(program)
    git(project, "add", "--all")
    git(project, "commit", "-qm", "start")
    (project / "edits").mkdir()
    for name, (file, old, new) in EDITS.items():
        replace(project / file, old, new)
        (project / "edits" / f"{name}.patch").write_text(git(project, "diff"))
        git(project, "reset", "-q", "--hard")

    real = subprocess.run

    def forked(command, **options):
        """A fork for the command of the project, instead of an interpreter that imports torch."""
        if command[1:4] == ["-m", PACKAGE, "experiment"]:
            done = run(project, *command[3:], cwd=project, before=forked_sides)
            return subprocess.CompletedProcess(command, done.code)
        return real([*GIT, *command[1:]] if command[0] == "git" else command, **options)

    monkeypatch.chdir(project)
    monkeypatch.setattr(subprocess, "run", forked)
    monkeypatch.setattr(sys, "argv", ["try_edits.py", *TINY["tabular"], *LENGTH])
    runpy.run_path("try_edits.py")
    said = [line for line in capsys.readouterr().out.splitlines() if line[0].isdigit()]
    assert said == [
        "1-rate: kept",
        "2-comment: not kept, exit code 1",
        "3-worse: not kept, exit code 1",
        "4-syntax: not kept, exit code 1",
        "5-yardstick: not kept, exit code 2",
    ]
    monkeypatch.undo()
    assert git(project, "log", "--format=%s").split("\n")[:2] == [
        "1-rate: kept by experiment",
        "start",
    ]
    assert git(project, "status", "--porcelain") == ""
