"""Copier as users start it, by its newest and its lowest version, and git."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from copier._cli import CopierApp
from quick_copier import quickly
from rendering import REPOSITORY, render_into

OLD = "0.0.1"
LOWEST = REPOSITORY / ".venv-copier-lowest/bin/copier"
COPIERS = {"newest": [sys.executable, "-m", "copier"], "lowest": [str(LOWEST)]}


@pytest.fixture(scope="module", autouse=True)
def _clean_home(tmp_path_factory):
    """No settings of this machine's user: neither git's nor Copier's."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        for name in ("HOME", "XDG_CONFIG_HOME"):
            patch.setenv(name, str(home))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.delenv("COPIER_SETTINGS_PATH", raising=False)  # may name templates that are trusted
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "tests")
            patch.setenv(f"GIT_{role}_EMAIL", "tests@localhost")
        yield


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def commit(folder: Path, tag: str = "") -> Path:
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", tag or "work")
    if tag:
        git(folder, "tag", tag)
    return folder


def run_copier(which: str, *arguments: str, cwd: Path) -> str:
    """By the command line, without a terminal to ask on; what it says. Fails where Copier does, or
    speaks of trust."""
    if which == "newest":
        said = in_process(*arguments, cwd=cwd)
    else:
        command = [*COPIERS[which], *arguments]
        done = subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
        said = done.stderr
    assert "trust" not in said.lower()
    return said


def in_process(*arguments: str, cwd: Path) -> str:
    """In this interpreter, where Copier is loaded."""
    said = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stderr(said), quickly():
        code = CopierApp.run(["copier", *arguments], exit=False)[1]
    assert code == 0, said.getvalue()
    return said.getvalue()


def flags(answers: dict[str, Any]) -> list[str]:
    """`-d name=value` for each; a list as YAML writes it in one line."""
    words = []
    for name, value in answers.items():
        words += ["-d", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def copied(
    upstream: Path, folder: Path, version: str = OLD, which: str = "newest", **answers: Any
) -> Path:
    """A project of that version, committed."""
    words = ("copy", "--defaults", "-r", version, *flags(answers), str(upstream), str(folder))
    run_copier(which, *words, cwd=folder.parent)
    return commit(folder)


def refusal(folder: Path, **answers: object) -> str:
    """The text with which Copier's API refuses `answers`; fails where it takes them or writes
    something."""
    target = folder / "project"
    with pytest.raises(ValueError, match=r"Invalid choice|Validation error") as caught:
        render_into(target, **answers)
    assert not target.exists()
    return str(caught.value)
