"""Which workloads repeat bit for bit on a GPU: trained again, and killed and resumed.

Every workload trains 40 steps of its default project, with the default settings and with the
profile `deterministic`. `replay` trains each run again. A second run is killed by SIGKILL after step
27 and resumed from its checkpoint of step 20. Compared are the loss of each micro-batch, each
gradient norm, a hash of all gradients of each step, and the final weights. Four rows at a time, so
nothing is timed. Takes about 5 minutes on an H200.

    make bench-gpu PART=resume
    make bench-gpu PART=resume ARGS=--rehearse    # every row in small on a CPU
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

from rows import Book, begin, find_project

PROFILES: dict[str, tuple[str, ...]] = {
    "default": (),
    "deterministic": ("--profile", "deterministic"),
}
AT_A_TIME = 4
SECONDS = 300  # a command that takes longer has failed
PROGRAM = """
import os, signal, sys
sys.path.insert(0, {source!r})
from my_training.__main__ import main
from my_training.engine import runs
runs.prepare_process()
{before}
sys.exit(main(sys.argv[1:]))
"""
KILL = """
from my_training.engine.training.run import Run
own = Run.end_step
def end_step(self, norm):
    own(self, norm)
    if self.step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
Run.end_step = end_step
"""


class Lengths(NamedTuple):
    """Of a run: its steps, those between checkpoints, and the step after which it is killed."""

    steps: int = 40
    checkpoints: int = 10
    killed: int = 27


class Command:
    """Commands of a project in a folder: each in a process of its own, a rehearsal's in a fork."""

    def __init__(self, project: Path, folder: Path, rehearse: bool):
        self.source = str(project.resolve() / "src")
        self.folder = folder
        self.forks = rehearse
        folder.mkdir()
        (folder / "config.yaml").write_text((project / "config.yaml").read_text())

    def __call__(self, *words: str, before: str = "") -> tuple[int, str]:
        """Return exit code and output. before: Python that runs first."""
        program = PROGRAM.format(source=self.source, before=before)
        log = self.folder / "log"
        run = self.fork if self.forks else self.start
        with open(log, "w") as file:
            code = run(program, words, file.fileno())
        return code, log.read_text()

    def start(self, program: str, words: tuple[str, ...], log: int) -> int:
        environment = {**os.environ, "TRAINING_ROOT": str(self.folder)}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder.parent / "compiled")  # of all rows
        # Rows of other benchmarks have it in any case; here the profile decides.
        environment.pop("CUBLAS_WORKSPACE_CONFIG", None)
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=self.folder,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=SECONDS,
        ).returncode

    def fork(self, program: str, words: tuple[str, ...], log: int) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(self.child(program, words, log))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def child(self, program: str, words: tuple[str, ...], log: int) -> int:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.folder)
        os.environ["TRAINING_ROOT"] = str(self.folder)
        for name in [name for name in sys.modules if name.split(".")[0] == "my_training"]:
            del sys.modules[name]
        sys.argv = ["-c", *words]
        try:
            exec(program, {})
        except SystemExit as end:
            return int(end.code or 0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        return 1


def proved(place: Path, workload: str, profile: str, rehearse: bool) -> dict[str, Any]:
    """The figures of a row: whether the bits are equal, and where they are not."""
    folder = place / f"{workload}-{profile}"
    run = Command(find_project(workload), folder, rehearse)
    lengths = Lengths(6, 2, 5) if rehearse else Lengths()
    words = (
        *("train", "--exact", *PROFILES[profile], "--training.precision", "auto"),
        *("--training.max_steps", str(lengths.steps), "--monitor.every_steps", "1"),
        *("--checkpoint.every_steps", str(lengths.checkpoints)),
    )
    if rehearse:
        from sizes import TINY

        words += TINY[workload]
    expect(0, *run(*words, "--name", "whole"))
    code, text = run("replay", "whole", "--exact")
    equal = f"equal bits: steps 1 to {lengths.steps}" in text
    differs = re.search(r"different bits from step (\d+)", text)
    if equal == bool(differs):
        expect(0, code or 1, text)

    kill = KILL.format(step=lengths.killed)
    expect(-SIGKILL, *run(*words, "--name", "killed", before=kill))
    saved = folder / "runs/killed/checkpoints"
    step = max(int(path.name.split("-")[1]) for path in saved.iterdir())
    expect(0, *run("train", "--resume", "killed"))
    return {
        "again": int(differs[1]) if differs else 0,
        "resumed": first_difference(folder / "runs/whole", folder / "runs/killed"),
        "from_step": step,
        "steps": lengths.steps,
    }


def expect(wanted: int, code: int, text: str) -> None:
    if code != wanted:
        raise RuntimeError(f"exit code {code}: {text.strip().splitlines()[-1]}")


def first_difference(one: Path, other: Path) -> int:
    """The first step whose bits differ; the one after the last step if only the weights do, or 0."""
    steps = exact(one)
    others = exact(other)
    for step, bits in steps.items():
        if others.get(step) != bits:
            return step
    return 0 if weights(one) == weights(other) else max(steps) + 1


def exact(folder: Path) -> dict[int, tuple[Any, Any]]:
    """By step: its losses and gradient norm, and the hash of its gradients."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: (row["bits"], row["gradients"]) for row in rows if "bits" in row}


def weights(folder: Path) -> dict[str, bytes]:
    """The model of the newest checkpoint."""
    import torch

    newest = max((folder / "checkpoints").glob("step-*.pt"))
    model = torch.load(newest, map_location="cpu", weights_only=True)["model"]
    flat = {name: tensor.contiguous().flatten() for name, tensor in model.items()}
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in flat.items()}


COLUMNS = ["", "trained again", "killed and resumed"]


def cells(row: dict[str, Any], done: dict[str, dict[str, Any]]) -> list[str]:
    resumed = said(row["resumed"], row["steps"])
    return [said(row["again"], row["steps"]), f"{resumed} (from step {row['from_step']})"]


def said(step: int, last: int) -> str:
    if not step:
        return "equal bits"
    return f"differs from step {step} on" if step <= last else "differs in the final weights"


def main() -> None:
    arguments = begin(__doc__, "tabular")
    from sizes import TINY

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan: dict[str, Any] = {
            f"{workload}, {profile}": partial(proved, folder, workload, profile, arguments.rehearse)
            for profile in PROFILES
            for workload in sorted(TINY)
        }
        lengths = Lengths()
        how = f"{lengths.steps} steps, SIGKILL after step {lengths.killed}, each row once"
        book = Book("resume", COLUMNS, cells, list(plan), arguments, how)
        # A rehearsal forks, which threads do not survive.
        book.run(lambda: plan, at_a_time=1 if arguments.rehearse else AT_A_TIME)


if __name__ == "__main__":
    main()
