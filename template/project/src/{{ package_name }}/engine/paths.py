"""Where a project is, and paths as somebody types them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = "TRAINING_ROOT"  # the environment's name for another folder than the project's
SOURCE = Path(__file__).parents[2]


def project_root() -> Path:
    """Return the folder of settings, data, runs and the commit.

    It is the folder of pyproject.toml above the package, or the current directory where there is
    none, as for a package that was installed elsewhere.
    """
    above = (path for path in (SOURCE, SOURCE.parent) if (path / "pyproject.toml").exists())
    return Path(os.environ.get(ROOT) or next(above, ".")).absolute()


def typed_path(word: str) -> str:
    """Make a path absolute if commands run elsewhere: the `type=` of an argument that is a path."""
    root = project_root()
    is_here = not root.is_dir() or root.samefile(Path.cwd())
    return word if is_here else os.path.abspath(word)


def typed_run(word: str) -> str:
    """Do the same for a run, which is a name or a path."""
    is_path = os.sep in word and os.path.isdir(word)
    return typed_path(word) if is_path else word
