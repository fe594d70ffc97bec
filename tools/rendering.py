"""Render the template of the working tree, by Copier's API, once per set of
answers."""

import atexit
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from copier import run_copy
from quick_copier import quickly

REPOSITORY = Path(__file__).resolve().parent.parent
ORIGIN = Path(os.environ.get("FASTTRAIN_TEMPLATE", REPOSITORY))  # with a fault: see mutants/
RENDERS = "FASTTRAIN_RENDERS"  # folder of projects that all processes of a test session share
DEFAULTS = {"project_name": "my-training"}


@functools.cache
def questions() -> dict[str, dict[str, Any]]:
    """The questions of copier.yml by name, in asking order, without the computed ones."""
    content = yaml.safe_load((ORIGIN / "copier.yml").read_text(encoding="utf-8"))
    return {
        name: question
        for name, question in content.items()
        if not name.startswith("_") and question.get("when") is not False
    }


@functools.cache
def scratch() -> Path:
    """A folder that goes when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="fasttrain-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def copy_template(folder: Path) -> Path:
    """Copy the template's own files into `folder`, without Python's caches."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
    shutil.copytree(ORIGIN / "template", folder / "template", ignore=ignored)
    shutil.copy2(ORIGIN / "copier.yml", folder)
    return folder


@functools.cache
def template() -> Path:
    """The template as it stood when the tests began; no git repository, so that Copier need not
    clone it."""
    return copy_template(scratch() / "template")


def render_into(folder: Path, *, source: Path | None = None, **answers: Any) -> Path:
    """Renders a project into `folder`. Copier takes unknown answers silently, this raises
    KeyError."""
    unknown = set(answers) - set(questions())
    if unknown:
        raise KeyError(f"copier.yml asks no {sorted(unknown)}; it asks {list(questions())}")
    with quickly():
        run_copy(
            str(source or template()),
            folder,
            data=DEFAULTS | answers,
            defaults=True,
            quiet=True,
            vcs_ref="HEAD" if source else None,
        )
    return folder


def document(name: str) -> Path:
    """A page of docs/ by its name, for example `update`; the benchmarks have pages of equal
    names."""
    pages = (REPOSITORY / "docs").rglob(f"{name}.md")
    (page,) = [path for path in pages if path.parent.name != "benchmarks"]
    return page


@functools.cache
def _render(answers: tuple[tuple[str, Any], ...]) -> Path:
    given: dict[str, Any] = {}
    for name, value in answers:
        given[name] = list(value) if isinstance(value, tuple) else value
    if RENDERS not in os.environ or ORIGIN != REPOSITORY:
        return render_into(Path(tempfile.mkdtemp(prefix="render-", dir=scratch())), **given)
    shared = Path(os.environ[RENDERS]) / hashlib.sha256(repr(answers).encode()).hexdigest()[:16]
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process that wants the same waits for it
        if not shared.exists():
            rendered = render_into(Path(tempfile.mkdtemp(prefix="render-", dir=scratch())), **given)
            os.rename(rendered, shared)  # in one go: nobody ever sees a part of it
    return shared


def replace(path: Path, old: str, new: str) -> None:
    """An edit of a file that fails where its place is gone."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path}: {text.count(old)} × {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def render(**answers: Any) -> Path:
    """The project of these answers, everything else as by default; package `my_training`.

    The folder is shared by all tests of a session: read it, or copy it before changing it.
    """
    pairs = []
    for name, value in sorted(answers.items()):
        pairs.append((name, tuple(value) if isinstance(value, list) else value))
    return _render(tuple(pairs))
