"""Makes Copier quicker, by what gives the same each time: renders are most of what the tests do.

It replaces private functions of Copier. A test of test_tier_a.py compares with Copier as it is.
"""

import contextlib
import functools
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jinja2
import yaml
from copier import _template
from copier._main import Worker

COMPILED: dict[Any, Any] = {}
_COMPILE = jinja2.Environment.compile
_STRING = Worker._render_string
_repository = functools.cache(_template.get_repo)


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """While open: libyaml reads YAML, each text of the template is read and compiled once for all
    renders, text without a brace is taken as it is, and git is asked once about a template, not
    about every file."""
    asked_once = property(lambda worker: worker.template.answers_relpath)
    quicker: list[Any] = [
        mock.patch.object(_template, "get_repo", _repository),
        mock.patch.object(Worker, "_render_string", _string),
        mock.patch.object(Worker, "answers_relpath", asked_once),
        mock.patch.object(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader)),
        mock.patch.object(yaml, "safe_load", _load),
        mock.patch.object(jinja2.Environment, "compile", _compile),
    ]
    if hasattr(Worker, "_sync_git_index_executable_bit"):
        synced = mock.patch.object(Worker, "_sync_git_index_executable_bit")
        quicker.append(synced)
    with contextlib.ExitStack() as stack:
        for patch in quicker:
            stack.enter_context(patch)
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
    if key not in COMPILED:
        COMPILED[key] = _COMPILE(environment, source, name, filename, *more)
    return COMPILED[key]
