"""Runs a rendered project's commands as a person would, but forked from this process, where torch
is loaded.

A fresh interpreter needs seconds to import torch and Lightning, a fork a tenth of one.
"""

import base64
import contextlib
import gc
import hashlib
import importlib
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test needs no network, nor waits for one
# Commands of a shared project work in the folder given to each.
os.environ.setdefault("TRAINING_ROOT", ".")
# A child of a fork cannot use its parent's pool of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import accelerate.state  # what a child would otherwise import for itself, every time
import lightning  # noqa: F401
import matplotlib.figure
import matplotlib.pyplot
import pyarrow.compute
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet  # noqa: F401
import torch
import torch._dynamo
import torch._inductor.codegen.triton  # what torchao imports with the first layer in fp8
import tqdm
import transformers.models.t5.modeling_t5  # noqa: F401

torch.set_num_threads(1)
# A build with CUDA decides at its first backward whether autograd gets threads for devices, with
# which no fork could run a backward. After one on fake tensors it would.
torch.ones(1, requires_grad=True).backward()
PACKAGE = "my_training"
# In the environment: runs draw their curves and examples of what their models do.
EXAMPLES = "FASTTRAIN_EXAMPLES"
PAINT = matplotlib.figure.Figure.savefig
# Drawing the plot of a short run takes three times as long as the run: figures are built, and
# not painted.
PLOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
Before = Callable[[], Any] | None  # what a command's process calls first
PATIENCE = 300.0  # seconds until what waits gives up: a slow machine is no fault


def until(met: Callable[[], Any], wanted: str, seconds: float = PATIENCE) -> Any:
    """Waits until `met()`, and returns what it is. Raises TimeoutError, with what was wanted, when
    the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = met()
        if result:
            return result
        time.sleep(0.002)
    raise TimeoutError(f"no {wanted} after {seconds:.0f} s")


@dataclass(frozen=True)
class Result:
    """What a command left: exit code (negative: the signal that killed it) and its output."""

    code: int
    out: str
    err: str

    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class Running:
    """A command under way in a child process."""

    def __init__(
        self,
        project: Path,
        words: tuple[str, ...],
        folder: Path,
        before: Before = None,
        name: str = "",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._out = folder / f".out{name}"
        self._err = folder / f".err{name}"
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # the child's collections need not walk through torch, nor copy its pages
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_child(project, words, folder, self._out, self._err, before))
        gc.unfreeze()

    def wait(self, seconds: float = PATIENCE) -> Result:
        """Waits for the end; a command that hangs is killed and fails the test."""

        def ended() -> tuple[int, ...]:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (status,) if pid else ()

        (status,) = self._until(ended, "end", seconds)
        code = os.waitstatus_to_exitcode(status)
        return Result(code, self._out.read_text(), self._err.read_text())

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def rows(self) -> int:
        """Rows of metrics written so far by the newest run."""
        files = self.folder.glob("runs/*/metrics.jsonl")
        newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
        return newest.read_text().count("\n") if newest else 0

    def wait_for_rows(self, number: int) -> None:
        """Waits until it has written so many rows; a command that never does is killed and fails
        the test."""
        self._until(lambda: self.rows() >= number, f"{number} rows", PATIENCE)

    def _until(self, met: Callable[[], Any], wanted: str, seconds: float) -> Any:
        """That, or the end of the test, ends the command."""
        try:
            return until(met, wanted, seconds)
        except BaseException as error:
            self.kill()
            os.waitpid(self.pid, 0)
            raise type(error)(f"{error}: {self._err.read_text()[-2000:]}") from error


def _child(
    project: Path,
    words: tuple[str, ...],
    folder: Path,
    out: Path,
    err: Path,
    before: Before,
    entry: str = "__main__",
) -> int:
    kept = sys.stdout, sys.stderr  # they own the numbers that this one gives to its output
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it
    # tqdm's own lock is shared with every fork: one killed inside it would hang all later ones.
    tqdm.tqdm.set_lock(threading.RLock())
    matplotlib.figure.Figure.savefig = unpainted  # type: ignore[assignment,method-assign]
    # No test cuts the power, and a disk is slow.
    os.fsync = lambda handle: None  # type: ignore[assignment]
    # Accelerate reads the environment once for each process, and this one's parent may have.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    sys.dont_write_bytecode = False  # the project's next run reads what this one compiles
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.path.insert(0, str(project / "src"))
    try:
        if EXAMPLES not in os.environ:
            undrawn()
        if before is not None:
            before()
        main = importlib.import_module(f"{PACKAGE}.{entry}").main
        return main(list(words)) if entry == "__main__" else main(*words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr, *kept):
            stream.flush()


def unpainted(figure: Any, file: Any, **options: Any) -> None:
    """For `Figure.savefig`: a plot of one point."""
    file.write(PLOT) if hasattr(file, "write") else Path(file).write_bytes(PLOT)


def painted() -> None:
    """For `run(..., before=painted)`: examples as they are."""
    matplotlib.figure.Figure.savefig = PAINT  # type: ignore[method-assign]


def undrawn() -> None:
    """No plot of what a model does, a point for its curves: they take as long as a short run."""
    with contextlib.suppress(ImportError):  # a project without examples, a script without a report
        report: Any = importlib.import_module(f"{PACKAGE}.engine.monitoring.report")
        report.curves = lambda _: SimpleNamespace(savefig=lambda file: file.write(PLOT))
        examples: Any = importlib.import_module(f"{PACKAGE}.hooks.examples")
        examples.Hook.after_evaluation = lambda *_: None


def start(project: Path, *words: str, cwd: Path, before: Before = None, name: str = "") -> Running:
    """Starts `python -m my_training WORDS` of a rendered project in the folder `cwd`.

    before: called in the child first, to put a fault in place. name: of this process, of several.
    """
    config = project / "config.yaml"
    if config.exists() and not (cwd / "config.yaml").exists():
        cwd.mkdir(parents=True, exist_ok=True)
        (cwd / "config.yaml").write_text(config.read_text())
    return Running(project, words, cwd, before, name)


def run(project: Path, *words: str, cwd: Path, before: Before = None) -> Result:
    """The same, to its end."""
    return start(project, *words, cwd=cwd, before=before).wait()


def check_run(project: Path, *words: str, cwd: Path, before: Before = None) -> Result:
    """The same of a command that must succeed."""
    result = run(project, *words, cwd=cwd, before=before)
    assert result.code == 0, (words, result.err[-3000:])
    return result


def newest_run(cwd: Path) -> Path:
    """The newest run, or its newest phase."""
    newest = max((cwd / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    return max(newest.glob("phase-?"), default=newest)


def resumes(cwd: Path) -> list[int]:
    """Steps at which the newest run was resumed."""
    return [event["step"] for event in rows(cwd, "events") if event["event"] == "resumed"]


def rows(cwd: Path, name: str = "metrics") -> Iterator[dict[str, Any]]:
    """Rows of the newest run's metrics, or events."""
    return map(json.loads, (newest_run(cwd) / f"{name}.jsonl").read_text().splitlines())


def losses(cwd: Path, evaluated: bool = False) -> list[tuple[int, str]]:
    """(step, loss in hex) of each logged training step, or of each evaluation."""
    logged = [row for row in rows(cwd) if ("split" in row) == evaluated]
    return [(row["step"], float(row["loss"]).hex()) for row in logged]


def evaluations(cwd: Path) -> list[tuple[int, str]]:
    return losses(cwd, evaluated=True)


def last_checkpoint(cwd: Path) -> Path:
    """Of the newest run."""
    return max((newest_run(cwd) / "checkpoints").glob("step-*"))


def step_of(checkpoint: Path) -> int:
    """From the name of a checkpoint."""
    return int(checkpoint.name.split("-")[1])


def last_state(cwd: Path) -> dict[str, Any]:
    """What the last checkpoint has; without the tensors that ranks have sharded."""
    checkpoint = last_checkpoint(cwd)
    file = checkpoint / "state.pt" if checkpoint.is_dir() else checkpoint
    return torch.load(file, weights_only=True)


def weights(cwd: Path) -> dict[str, str]:
    """sha256 of each of the last checkpoint's weights."""
    hashes = {}
    for name, tensor in last_state(cwd)["model"].items():
        content = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


def evaluation_of(cwd: Path) -> dict[str, Any]:
    """What `evaluate` left in the newest run."""
    return json.loads((newest_run(cwd) / "evaluation.json").read_text())


def report_of(cwd: Path) -> str:
    return (newest_run(cwd) / "report.md").read_text()


def flip_bit(path: Path, place: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def one_error(result: Result, *parts: str) -> str:
    """The single line of an error: exit code 2, no traceback, `error: what: where: what to do`."""
    assert result.code == 2, (result.code, result.err[-2000:])
    assert "Traceback" not in result.err
    lines = result.errors()
    assert len(lines) == 1, result.err
    for pattern in parts:
        assert re.search(pattern, lines[0]), (pattern, lines[0])
    return lines[0]


def documented(page: Path) -> list[list[str]]:
    """The commands of the project in a document, as words."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.+?)```", text, flags=re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [shlex.split(line)[3:] for line in lines if line.startswith(f"python -m {PACKAGE} ")]


def status(folder: Path) -> dict[str, Any]:
    return json.loads((newest_run(folder) / "status.json").read_text())
