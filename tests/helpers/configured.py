"""The configurator's data, built once for all processes of a test session, and what its modules
give in Node."""

import fcntl
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from configurator import build, bundle, coverage
from rendering import RENDERS, template

SOURCE = "gh:org/fasttrain-template"
CHECKS = bundle.HERE / "checks"
needs_node = pytest.mark.skipif(not bundle.has_node(), reason="not run: there is no Node")


class Built(NamedTuple):
    """A page's data, and answers that visit all of it."""

    folder: Path
    version: str
    projects: list[dict[str, Any]]
    refused: list[dict[str, Any]]


@functools.cache
def built() -> Built:
    folder = Path(os.environ.get(RENDERS) or tempfile.mkdtemp()) / "configurator"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process that wants the same waits for it
        if not folder.exists():
            page = build.read_page(template())
            content = [page.version, coverage.projects(page), coverage.refusals(page)]
            unfinished = folder.with_name("configurator-unfinished")
            build.write_data(page, SOURCE, unfinished)
            (unfinished / "answers.json").write_text(json.dumps(content), encoding="utf-8")
            os.rename(unfinished, folder)
    return Built(folder, *json.loads((folder / "answers.json").read_text(encoding="utf-8")))


def in_node(program: str, *arguments: str, given: Any = None) -> Any:
    """What a program of `checks` prints as JSON."""
    command = ["node", str(CHECKS / program), *arguments]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def page_folder(target: Path) -> Path:
    """The whole page; skips the test without the libraries."""
    if not bundle.ESBUILD.exists():
        pytest.skip("not run: tools/configurator/node_modules is missing; npm ci makes it")
    shutil.copytree(built().folder, target)
    bundle.write_page(target)
    return target
