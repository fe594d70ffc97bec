"""Short training runs, each in its own process, for `benchmark` and `tune`.

Compiled code, cuDNN's choices and the memory allocator would outlive a run in the same process, and
a run that is out of memory must not end the others. All frameworks start in the same way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any

from ..engine.compute.gpus import Card, this_card
from ..engine.errors import UserError
from ..engine.files import read_json
from ..engine.monitoring.report import Record

if TYPE_CHECKING:
    from ..settings import Settings

SOURCE = Path(__file__).absolute().parents[2]
WINDOW = 5  # steps between two times on a GPU, since each time waits for the GPU
SETTINGS = "settings.yaml"
LOADER = "loader"  # an override: "own" is this project's loader, "plain" PyTorch's DataLoader

Overrides = dict[str, Any]
"""Values by the dotted key of a setting, or `LOADER`."""


class Failed(Exception):
    """A trial ended with an error; the message is its first one. memory: it was out of memory."""

    def __init__(self, code: int, log: str):
        super().__init__(first_error(log) or f"exit code {code}")
        no_memory = re.search("out of (GPU )?memory|can't allocate memory", log)
        self.memory = code in (-9, 137) or bool(no_memory)


def first_error(log: str) -> str:
    """Return the first error line, or the last line; empty if there is none."""
    last_line = ""
    for line in log.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
        if line.strip():
            last_line = line
    return last_line


class Trials:
    """Runs trials of one configuration.

    settings: the settings without overrides. store: the folder of the data. gpu: whether there is a
    GPU.
    """

    def __init__(self, settings: Settings, store: Path, gpu: bool):
        fixed = {"profiles": {}, "data.path": str(store.absolute())}
        self.settings = settings.replaced(fixed, "trial")
        self.window = WINDOW if gpu else 1

    def __call__(self, overrides: Overrides, warmup: int, steps: int) -> dict[str, Any]:
        """Measure `steps` optimizer steps after `warmup` steps; both are rounded up to windows.

        Returns step_ms (per window), samples (per step), data_wait_fraction, loss (the mean),
        peak_memory_bytes (of the GPU, or else of the process), start_s (imports, data, compiling,
        first window), state (of each optimization) and rates. Raises `Failed`.
        """
        warmup = self._rounded_up(warmup)
        num_steps = warmup + self._rounded_up(steps)
        values = {
            "training.max_steps": num_steps,
            "schedule.warmup_steps": "auto",
            "monitor.every_steps": self.window,
            **overrides,
        }
        loader = values.pop(LOADER, "own")
        settings = self.settings.replaced(values, "trial")
        with tempfile.TemporaryDirectory(prefix="trial-") as name:
            folder = Path(name)
            start_time = time.time()
            (folder / SETTINGS).write_text(settings.to_yaml(), encoding="utf-8")
            code, resident = launch(loader, folder)
            rows = Record(folder / "runs/trial").training
            if code or not rows or rows[-1]["step"] < num_steps:
                log = (folder / "log").read_text(encoding="utf-8", errors="replace")
                raise Failed(code, log)
            environment = read_json(folder / "runs/trial/env.json")
        result = figures(rows, warmup, start_time, resident)
        optimizations = environment["optimizations"]
        result["state"] = {entry["name"]: entry["state"] for entry in optimizations}
        return result

    def _rounded_up(self, steps: int) -> int:
        return -(-steps // self.window) * self.window


def launch(loader: str, folder: Path) -> tuple[int, int]:
    """Run `main` in `folder`, with a `log`; return its exit code and peak resident memory."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, loader],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return process.returncode, usage.ru_maxrss * unit


def main(loader: str) -> int:
    """Train with the settings in this folder, without evaluations, checkpoints or a report.

    The settings already include environment variables, so these are not read again.
    """
    from ..engine.runs import new_run
    from ..settings import Settings
    from ..train import train
    from . import plain_loader
    from .trial import trial

    loader_class = plain_loader.Loader if loader == "plain" else None
    try:
        with trial(Settings.load(Path(SETTINGS)), new_run("trial"), loader_class) as run:
            train(run)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code


def figures(
    rows: list[dict[str, Any]], warmup: int, start_time: float, resident: int
) -> dict[str, Any]:
    """Compute the results of a trial from its metrics; see `Trials`."""
    timed = [row for row in rows if row["step"] > warmup]
    step_ms = [row["step_ms"] for row in timed]
    waited = sum(row["data_wait_fraction"] * row["step_ms"] for row in timed)
    memory = [row["memory_mb"] for row in rows if "memory_mb" in row]
    rates = {}
    for name in ("tokens_per_second", "mfu"):
        if name in timed[0]:
            rates[name] = median(row[name] for row in timed)
    return {
        "step_ms": step_ms,
        "samples": round(timed[0]["samples_per_second"] * step_ms[0] / 1000),
        "data_wait_fraction": waited / sum(step_ms),
        "loss": mean(row["loss"] for row in timed),
        "peak_memory_bytes": int(max(memory) * 2**20) if memory else resident,
        "start_s": rows[0]["time"] - start_time,
        "rates": rates,
    }


def card_here() -> Card:
    """Return `this_card`, asked in another process, since this one must not use GPU memory."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import torch

    if not torch.cuda.is_available():
        return this_card()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(this_card).result()


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the range from the 10th to the 90th percentile."""
    tenths = values
    if len(values) > 1:
        tenths = quantiles(values, n=10, method="inclusive")
    return {"median": median(values), "p10": tenths[0], "p90": tenths[-1]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
