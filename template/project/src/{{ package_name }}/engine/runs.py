"""Where runs lie, `runs/<name>/` in the project, and on what they run: device, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError
from .files import read_json, write_json, write_text
from .gpus import this_card

if TYPE_CHECKING:
    import torch

RUNS = Path("runs")
# Any of these marks a folder as a run, however early it died.
MARKS = ("config.resolved.yaml", "status.json", "env.json", "metrics.jsonl", "checkpoints")


def prepare_process() -> None:
    """How torch takes memory from CUDA and from the system; comes before its import, which may read this.

    Segments that grow in place, so that odd shapes do not fragment memory: instead of `empty_cache()`,
    which costs time and frees nothing live. Both names, old and new: CUDA reads one and ignores the other.
    And huge pages for large tensors on the host: filling a new one takes a tenth of the time (1 against
    10 GB/s where they are `madvise`).
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = next((os.environ[name] for name in names if name in os.environ), "expandable_segments:True")
    for name in names:
        os.environ.setdefault(name, given)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def is_run(folder: Path) -> bool:
    """Whether `folder` holds anything that a training leaves."""
    return folder.is_dir() and any((folder / mark).exists() for mark in MARKS)


def started(run: Path) -> float:
    """When the run began, in seconds since the epoch; its settings are written once, at the start."""
    settings = run / "config.resolved.yaml"
    return (settings if settings.exists() else run).stat().st_mtime


def all_runs(runs: Path = RUNS) -> list[Path]:
    """Every run in `runs`, the newest last; empty where there is no such folder."""
    return sorted(filter(is_run, runs.glob("*")), key=lambda run: (started(run), run.name))


def find_run(name_or_path: str | Path | None = None, runs: Path = RUNS) -> Path:
    """The run of this name or at this path; the newest for None or an empty name.

    Raises UserError that lists the runs where there is no such run.
    """
    newest_first = all_runs(runs)[::-1]
    if not newest_first and not name_or_path:
        raise UserError("no run yet", f"{runs}/", "start one with the verb train")
    for folder in (runs / name_or_path, Path(name_or_path)) if name_or_path else newest_first:
        if is_run(folder):
            return folder
    shown = ", ".join(run.name for run in newest_first[:8])
    more = f" and {len(newest_first) - 8} more" if len(newest_first) > 8 else ""
    known = f"runs are {shown}{more}" if shown else "there is no run yet: start one with the verb train"
    raise UserError(f"no run '{name_or_path}'", f"{runs}/", known)


def new_run(name: str | None = None, runs: Path = RUNS) -> Path:
    """Makes and returns the folder of a new run, named after the local time unless `name` is given.

    Raises UserError for a name that is taken or is no plain folder name, and where nothing can be written.
    """
    if name is not None and (not name or name.strip(" .") != name or Path(name).name != name or "\\" in name):
        what = f"run name {name!r} is not a plain folder name"
        raise UserError(what, "--name", "use letters, digits, - and _")
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    # Two runs that start within one second both get a folder; mkdir decides the race.
    candidates = [name] if name is not None else [stamp, *(f"{stamp}_{number}" for number in range(2, 100))]
    for candidate in candidates:
        try:
            (runs / candidate).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            remedy = "make that folder writable, or name another by $TRAINING_ROOT"
            what = f"cannot make the run folder: {error.strerror}"
            raise UserError(what, str((runs / candidate).absolute()), remedy) from error
        return runs / candidate
    remedy = f"choose another name, or continue it with --resume {name}"
    raise UserError(f"run '{candidates[0]}' exists already", f"{runs}/", remedy)


def amend(run: Path, text: str, since: str) -> None:
    """Puts settings in place of a run's, its changed lines marked; its time, which dates it, stays."""
    path = run / "config.resolved.yaml"
    written, old, new = path.stat(), path.read_text(encoding="utf-8").splitlines(), text.splitlines()
    if len(old) == len(new):  # else of another version: values alone, without where they came from
        bare = [[line.partition("  # ")[0] for line in lines] for lines in (old, new)]
        new = [o if was == now else f"{n}, {since}" for o, n, was, now in zip(old, new, *bare, strict=True)]
    write_text(path, "\n".join([*new, ""]))
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))


def write_status(run: Path, state: str, reason: str, step: int, resumed: bool = False) -> None:
    """status.json; what ended a run matters more than its status, so that a full disk is no error."""
    resumes = read_json(run / "status.json").get("resumes", []) + [step] * resumed
    with suppress(OSError):
        write_json(run / "status.json", {"state": state, "reason": reason, "step": step, "resumes": resumes})


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Keeps a run for this process as long as it lives. Raises `UserError` where another one has it.

    A lock of POSIX records: it ends with its process however that ends, also over NFS, and is not inherited.
    """
    with open(run / ".lock", "a+") as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            what = f"the run is in use by {file.read() or 'another process'}"
            raise UserError(what, str(run), "wait until that ends, or start a new run") from error
        except (ImportError, OSError):  # Windows, or a file system without locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on host {platform.node()}")
        file.flush()
        yield


# --- on what a run takes place


def write_environment(run: Path, device: torch.device, **facts: object) -> None:
    """env.json: versions, device, commit, command and `facts`; `started` stays that of the first call."""
    begun = read_json(run / "env.json").get("started", time.time())
    where = {"versions": versions(), "gpu": device_line(device), "git": git_state()}
    write_json(run / "env.json", {**where, **facts, "started": begun, "argv": sys.argv[1:]})


def device_line(device: torch.device) -> str:
    """The device as lines and the report name it: name, capability, memory."""
    import torch

    card = this_card(device)
    if card.capability is None:
        return f"CPU, {torch.get_num_threads()} threads"
    return f"{card.name}, sm {card.sm}, {card.memory_gb:.1f} GB"


def versions() -> dict[str, str]:
    """Of what decides speed and numbers."""
    import torch

    cuda = torch.version.cuda or torch.version.hip or "none"
    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": cuda}


def git_state() -> str:
    """Commit of the project, with `+changes` where files differ from it; empty outside git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=5).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("+changes" if commit and git("status", "--porcelain") else "")
    return ""
