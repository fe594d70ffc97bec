"""The default project of each workload and layout, as files to read and to compare.

    python tools/examples.py build/examples                   # write them
    python tools/examples.py build/examples --against HEAD~1  # and show what changed since a commit

The difference between two commits of the template is what a project gets by an update. Reviewers
of a change read it.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rendering import REPOSITORY, questions, render_into, template

LAYOUTS = ("package", "script")


class Example(NamedTuple):
    """A default project."""

    name: str
    workload: str
    layout: str

    def render(self, folder: Path, source: Path) -> bool:
        """Write it into `folder`; False if this version of the template has no such project."""
        answers = {"workload": self.workload, "layout": self.layout}
        try:
            render_into(folder, source=source, **answers)
        except ValueError:
            shutil.rmtree(folder, ignore_errors=True)
            return False
        # Where the template lay and its version say nothing about the project.
        saved = folder / ".copier-answers.yml"
        lines = saved.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("_src_path:", "_commit:"))]
        saved.write_text("".join(kept), encoding="utf-8")
        return True


def examples() -> list[Example]:
    """All workloads in both layouts, in the order of the interview."""
    workloads: dict[str, Any] = questions()["workload"]["choices"]
    values = [
        workload["value"] if isinstance(workload, dict) else workload
        for workload in workloads.values()
    ]
    return [
        Example(f"{workload}-{layout}", workload, layout)
        for workload in values
        for layout in LAYOUTS
    ]


def write(folder: Path, source: Path) -> list[Example]:
    """Render all examples into `folder`; returns those that exist."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return [example for example in examples() if example.render(folder / example.name, source)]


def template_at(revision: str, folder: Path) -> Path:
    """The template as a commit has it."""
    command = ["git", "archive", "--format=tar", revision, "template", "copier.yml"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True)
    if done.returncode:
        print(f"error: no such commit: {revision}: git log lists them", file=sys.stderr)
        raise SystemExit(2)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def difference(before: Path, after: Path) -> str:
    """What changed, as git shows it: a summary, then all lines."""
    command = ["git", "diff", "--no-index", "--no-prefix", "--stat=100", "--patch"]
    folders = [before.name, after.name]
    done = subprocess.run(
        [*command, *folders], cwd=before.parent, capture_output=True, encoding="utf-8"
    )
    return done.stdout


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the projects go, each in a folder")
    parser.add_argument("--against", metavar="REV", help="show what changed since this commit")
    arguments = parser.parse_args(words)
    folder = arguments.folder
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(scratch) / "before"
        if arguments.against:
            write(before, template_at(arguments.against, Path(scratch) / "template"))
        written = write(folder, template())
        print(f"{len(written)} projects in {folder}", file=sys.stderr)
        if arguments.against:
            after = shutil.copytree(folder, Path(scratch) / "after")
            print(difference(before, after), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
