"""The two sources of an experiment: snapshots of a commit and of the working tree, by git."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.errors import UserError, note
from ..engine.plugins import PACKAGE

NOT_FILES = ("120000", "160000")  # git's modes of symbolic links and submodules
PARTS = ("src", "config.yaml")  # what makes a source; they are relative to the project
# What decides how a source is measured; the folders and files are below the package.
YARDSTICK = rf"src/{PACKAGE}/((engine|commands|measure|prepare)/|(dataset|metrics)\.py)"


def git(*words: str, **environment: str) -> str:
    """Return what git prints. Raises `UserError` with git's own first line."""
    command = ["git", *words]
    where = f"git {words[0]}"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **environment}
        )
    except FileNotFoundError:
        remedy = "install it, and commit the project"
        raise UserError("git is not installed", where, remedy) from None
    if done.returncode:
        said = done.stderr.strip().partition("\n")[0].removeprefix("fatal: ").rstrip(".")
        raise UserError(said or "git failed", where, "commit the project, or name another commit")
    return done.stdout.strip()


def tree_here() -> str:
    """Return the name of a tree with the working tree's sources, new files too.

    The index is not touched. Raises `UserError` if git ignores one of the sources.
    """
    check_ignored()
    parts = [part for part in PARTS if os.path.exists(part)]
    with TemporaryDirectory() as folder:
        index = str(Path(folder, "index"))
        git("add", "--all", "--", *parts, GIT_INDEX_FILE=index)
        return git("write-tree", GIT_INDEX_FILE=index)


def check_ignored() -> None:
    """Raise `UserError` if a `.gitignore` hides a source: a snapshot would be without it."""
    options = ("--others", "--ignored", "--exclude-standard")
    for path in git("ls-files", *options, "-z", "--", *PARTS).split("\0"):
        if path and not re.search(r"__pycache__/|\.egg-info/|/\.|\.pyc$", path):
            what = "git ignores this file, so no commit has it"
            raise UserError(what, path, "change .gitignore, or run `git add --force` on the file")


def changed_files(before: str, after: str) -> list[str]:
    """Return the sources that differ between two trees."""
    options = ("--name-only", "--no-renames", "--relative", "-z")
    text = git("diff", *options, before, after, "--", *PARTS)
    return [path for path in text.split("\0") if path]


def changed_yardstick(files: list[str], is_allowed: bool) -> list[str]:
    """Return those of the changed files that decide how a source is measured.

    Raises `UserError` if there are some and they are not allowed.
    """
    yardstick = [file for file in files if re.match(YARDSTICK, file)]
    if yardstick:
        what = "the edit changes what measures it"
        where = ", ".join(yardstick[:3])
        if not is_allowed:
            raise UserError(what, where, "commit that first, or add --yardstick-changed")
        lost = "its time and memory, and later runs, cannot be compared with those before it"
        note(f"{what} ({where}): the parent's files evaluate it; {lost}")
    return yardstick


def extract(tree: str, folder: Path, config: str | None) -> Path:
    """Write the sources of a tree into a folder. Raises `UserError` if it has none, or has links.

    config: a file of settings that replaces that of the tree.
    """
    names = git("ls-tree", "--name-only", tree, *PARTS).splitlines()
    if "src" not in names:
        raise UserError("this commit has no sources", "src/", "name a later commit")
    for entry in git("ls-tree", "-r", "-z", tree, *PARTS).split("\0"):
        if entry.startswith(NOT_FILES):
            what = "a link or a repository of its own, whose content no snapshot has"
            raise UserError(what, entry.partition("\t")[2], "copy its files, and commit them")
    folder.mkdir()
    archive = folder / "source.tar"
    git("archive", f"--output={archive}", tree, *names)
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()
    if config:
        shutil.copy(config, folder / "config.yaml")
    return folder


def with_yardstick(source: Path, yardstick: Path, folder: Path) -> Path:
    """Write a source into a folder, with the files that measure from another source."""
    shutil.copytree(source, folder)
    for path in files_of(yardstick):
        if re.match(YARDSTICK, path):
            shutil.copy(yardstick / path, folder / path)
    return folder


def files_of(folder: Path) -> list[str]:
    """Return the files below src/, relative to a source."""
    paths = sorted(folder.glob("src/**/*"))
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]


def program(folder: Path) -> str:
    """Hash a source: Python as it runs, without comments, layout and docstrings."""
    hashes = hashlib.sha256()
    for path in files_of(folder):
        content = (folder / path).read_bytes()
        hashes.update(f"{path}\n".encode())
        hashes.update(meaning(content) if path.endswith(".py") else content)
    return hashes.hexdigest()


def meaning(content: bytes) -> bytes:
    """Return what Python reads, without docstrings; the text itself if it has an error."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return content
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for part in body[:]:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    body.remove(part)
    return ast.dump(tree).encode()
