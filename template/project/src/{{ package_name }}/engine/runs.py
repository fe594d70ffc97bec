"""The folders of a project and of its runs."""

from __future__ import annotations

import argparse
import os
import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from .errors import UserError, note, without_secrets
from .files import NUMBER, read_json, write_json

ROOT = "TRAINING_ROOT"  # the environment's name for another folder than the project's
SOURCE = Path(__file__).parents[2]
RUNS = Path("runs")
PLAIN_NAME = r"\w([\w .,+=@-]{0,60}\w)?"  # of a run: a folder on every system
COMPILED = Path(".cache/inductor")  # what torch.compile makes, for all runs
CONFIG = "config.resolved.yaml"  # the settings of a run; a folder with this file is a run


def prepare_process() -> None:
    """Set what torch and other libraries read from the environment. Call it before importing them.

    Expandable segments keep odd shapes from fragmenting the GPU's memory; `empty_cache()` instead
    would cost time and free nothing live. With huge pages, filling a new large tensor on the host
    takes a tenth of the time (1 against 10 GB/s where they are `madvise`). A kept folder of
    compiled code shortens the first compiled step: 4.5 s instead of 44 s on a CPU.
    """
    # A version of CUDA's allocator reads the new name or the old one, and ignores the other.
    value = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    value = os.environ.get("PYTORCH_ALLOC_CONF", value)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.setdefault(name, value)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if os.access(project_root(), os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(project_root() / COMPILED))
    # Plots are files. The backend of a notebook that starts this process may be missing here.
    os.environ["MPLBACKEND"] = "agg"
    # Processes that share memory need sockets in this folder, whose paths have up to 107 bytes.
    if len(os.fsencode(os.environ.get("TMPDIR", ""))) > 64:
        note("$TMPDIR is too long for sockets, so the system's temporary folder is used")
        del os.environ["TMPDIR"]


def project_root() -> Path:
    """Return the folder of settings, data, runs and the commit.

    It is the folder of pyproject.toml above the package, or the current directory where there is
    none, as for a package that was installed elsewhere.
    """
    above = (path for path in (SOURCE, SOURCE.parent) if (path / "pyproject.toml").exists())
    return Path(os.environ.get(ROOT) or next(above, ".")).absolute()


def expanded(path: str) -> str:
    """Replace `~` and `$NAME`, as a shell does, but not in files and in words such as `--a=~/b`.

    Raises ValueError if one of them is not defined.
    """
    path = os.path.expandvars(os.path.expanduser(path))
    unknown = re.search(r"^~[^/]*|\$(\w+|\{.*?\})", path)
    if unknown:
        raise ValueError(f"{unknown.group()} is not defined here")
    return path


def typed_path(word: str) -> str:
    """Make a path absolute if commands run elsewhere: the `type=` of an argument that is a path."""
    try:
        word = expanded(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    root = project_root()
    is_here = not os.path.isdir(root) or root.samefile(Path.cwd())
    return word if is_here else os.path.abspath(word)


def check_input(path: Path) -> None:
    """Raise `UserError` if there is no such file or folder."""
    if not os.path.exists(path):
        raise UserError("no such file or folder", str(path), "check the path")


def typed_run(word: str) -> str:
    """Do the same for a run, which is a name or a path."""
    path = typed_path(word)
    return path if os.sep in word and os.path.isdir(path) else word


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command is about, as its first word or as `--run`."""
    # torchrun takes `--run` for the beginning of a flag of its own, wherever it is.
    run_help = "name or path of the run; under torchrun, use --run-name (default: the newest)"
    add = partial(parser.add_argument, type=typed_run, metavar="RUN", help=run_help)
    add("--run", "--run-name")
    add("run", nargs="?", default=argparse.SUPPRESS)  # an absent word does not replace the flag


# --- runs


def is_run(folder: Path) -> bool:
    """Whether `folder` has the first file that a training writes."""
    return os.path.exists(folder / CONFIG)


def started(run: Path) -> float:
    """Return when the run began, in seconds since the epoch."""
    environment = read_json(run / "env.json", started=NUMBER)
    return float(environment.get("started", run.stat().st_mtime))


def all_runs() -> list[Path]:
    """Return every run in `RUNS`, the newest last; none if there is no such folder."""
    folders = [folder for folder in RUNS.glob("*") if is_run(folder)]
    return sorted(folders, key=lambda run: (started(run), run.name))


def find_run(name_or_path: str | Path | None = None) -> Path:
    """Return the same as `find_training`, but the newest phase of a run that has phases."""
    folder = find_training(name_or_path)
    return max(folder.glob("phase-*"), key=started, default=folder)


def find_training(name_or_path: str | Path | None = None) -> Path:
    """Return the run of this name or at this path; the newest for None or an empty name.

    Raises `UserError` that lists the runs if there is no such run.
    """
    if name_or_path:
        for folder in (RUNS / name_or_path, Path(name_or_path)):
            if is_run(folder):
                return check_links(folder)

    newest_first = all_runs()[::-1]
    if not newest_first:
        raise UserError("no run yet", f"{RUNS}/", "start one with the command train")
    if not name_or_path:
        return check_links(newest_first[0])
    known = ", ".join(run.name for run in newest_first[:8])
    raise UserError(f"no run '{name_or_path}'", f"{RUNS}/", f"the newest runs are {known}")


def check_links(run: Path) -> Path:
    """Return the folder of a run; raise `UserError` if a link in it leads out of it.

    A command would write through the link. A link to the whole folder is the owner's own.
    """
    top = f"{os.path.realpath(run)}{os.sep}"
    for path in run.iterdir():
        if not os.path.realpath(path).startswith(top):
            raise UserError("a link leads out of the run", str(path), "copy what it names here")
    return run


def new_run(name: str | None = None) -> Path:
    """Make and return the folder of a new run, named after the local time unless `name` is given.

    Raises `UserError` if the name is taken or is no plain folder name, or nothing can be written.
    """
    # The commands that the run prints must be readable as such.
    if name is not None and not re.fullmatch(PLAIN_NAME, name):
        what = f"run name {name[:60]!r} is not a plain folder name"
        raise UserError(what, "--name", "use letters, digits, - and _, with no - at the start")
    if not RUNS.is_dir() and os.path.lexists(RUNS):
        remedy = "move it away, or make the folder that it links to"
        raise UserError("it is no folder", f"{RUNS.absolute()}", remedy)
    folder = RUNS / (name or time.strftime("%Y-%m-%d_%H-%M-%S"))
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        if name is None:  # another run has started within this second
            time.sleep(1)
            return new_run()
        remedy = f"choose another name, or continue it with --resume {name}"
        raise UserError(f"run '{name}' exists already", f"{RUNS}/", remedy) from error
    return folder


def version_of(run: Path) -> str:
    """Name the version of the project that made a run, for an error."""
    return f"its commit {read_json(run / 'env.json').get('git') or '(see env.json)'}"


def write_status(run: Path, state: str, reason: str, step: int) -> None:
    """Write status.json. A full disk is no error: what ended the run matters more."""
    with suppress(OSError):
        write_json(
            run / "status.json",
            {"state": state, "reason": without_secrets(reason), "step": step},
        )
