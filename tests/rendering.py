"""Renders the template as it stands in the working tree, by Copier's API, once per set of answers."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from copier import _template, run_copy
from copier._main import Worker

REPOSITORY = Path(__file__).resolve().parent.parent
ORIGIN = Path(
    os.environ.get("FASTTRAIN_TEMPLATE", REPOSITORY)
)  # another one with a fault: see mutants/
TEMPLATE = ("copier.yml", "template")
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
    """Copies the template's own files into `folder`, without what Python leaves beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TEMPLATE:
        source = ORIGIN / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
            )
        else:
            shutil.copy2(source, folder / name)
    return folder


@functools.cache
def template() -> Path:
    """The template as it stood when the tests began; no git repository, so that Copier need not clone it."""
    return copy_template(scratch() / "template")


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """While open: libyaml reads YAML, each text of the template is read and compiled once for all renders,
    text without a brace is taken as it is, and git is asked once about a template, not about every file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_template, "get_repo", _repository)
        patch.setattr(Worker, "_render_string", _string)
        patch.setattr(
            Worker, "answers_relpath", property(lambda worker: worker.template.answers_relpath)
        )
        patch.setattr(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        patch.setattr(yaml, "safe_load", _load)
        patch.setattr(jinja2.Environment, "compile", _compile)
        patch.setattr(Worker, "_sync_git_index_executable_bit", lambda *_: None, raising=False)
        yield


def _load(source: Any) -> Any:
    return (
        pickle.loads(_parsed(source))
        if isinstance(source, str)
        else yaml.load(source, yaml.SafeLoader)
    )


@functools.cache
def _parsed(text: str) -> bytes:
    return pickle.dumps(yaml.load(text, yaml.SafeLoader))


def _string(worker: Worker, text: str, extra_context: Any = None) -> str:
    return _STRING(worker, text, extra_context) if "{" in text else text


def _compile(
    environment: Any, source: Any, name: Any = None, filename: Any = None, *more: Any
) -> Any:
    # Not by the filename, which is another one in each copy of the template.
    key = (type(environment), environment.keep_trailing_newline, str(source), name, *more)
    if key not in compiled:
        compiled[key] = _COMPILE(environment, source, name, filename, *more)
    return compiled[key]


compiled: dict[Any, Any] = {}
_COMPILE, _STRING = jinja2.Environment.compile, Worker._render_string
_repository = functools.cache(_template.get_repo)


def render_into(folder: Path, *, source: Path | None = None, **answers: Any) -> Path:
    """Renders a project into `folder`. Copier takes unknown answers silently, this raises KeyError."""
    if unknown := set(answers) - set(questions()):
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


@functools.cache
def _render(answers: tuple[tuple[str, Any], ...]) -> Path:
    given: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in answers
    }
    if RENDERS not in os.environ or ORIGIN != REPOSITORY:
        return render_into(Path(tempfile.mkdtemp(prefix="render-", dir=scratch())), **given)
    shared = Path(os.environ[RENDERS]) / hashlib.sha256(repr(answers).encode()).hexdigest()[:16]
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process that wants the same waits for it
        if not shared.exists():
            rendered = render_into(Path(tempfile.mkdtemp(prefix="render-", dir=scratch())), **given)
            os.rename(rendered, shared)  # in one go: nobody ever sees a part of it
    return shared


def render(**answers: Any) -> Path:
    """The project of these answers, everything else as by default; package `my_training`.

    The folder is shared by all tests of a session: read it, or copy it before changing it.
    """
    return _render(
        tuple(
            sorted(
                (name, tuple(value) if isinstance(value, list) else value)
                for name, value in answers.items()
            )
        )
    )
