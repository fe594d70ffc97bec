"""One short run of `train` in a process of its own, and what it measured: for `benchmark` and `tune`.

A process each, because compiled code, cuDNN's choices and the memory allocator outlive a run, and because
one that runs out of memory takes nothing along. The same command for every framework.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import yaml

from .report import read_json, read_metrics

SOURCE = Path(__file__).absolute().parents[2]
PACKAGE = __name__.partition(".")[0]
WINDOW = 5  # steps between two readings of a GPU's clock: each waits for the GPU to finish


class Failed(Exception):
    """A trial that ended with an error, said in its last words; `memory` where there was too little."""

    def __init__(self, code: int, log: str):
        lines = [line for line in log.splitlines() if line.strip()] or [f"exit code {code}"]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        super().__init__((errors or lines[-1:])[0])
        self.memory = code in (-9, 137) or bool(re.search("out of (GPU )?memory|can't allocate memory", log))


class Trials:
    """Runs trials of one configuration.

    settings: what a trial without overrides runs. store: folder of the data. hidden: environment names
    that a trial must not see, as their values are in the settings already. gpu: whether there is one.
    """

    def __init__(self, settings: Any, store: Path, hidden: Iterable[str], gpu: bool):
        fixed = {"phases": [], "profiles": {}, "data.path": str(store.absolute()), "monitor.progress": False}
        self.settings, self.window = changed(settings, fixed), WINDOW if gpu else 1
        self.environment = {name: value for name, value in os.environ.items() if name not in set(hidden)}
        paths = (str(SOURCE), os.environ.get("PYTHONPATH", ""))
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def __call__(self, overrides: dict[str, Any], warmup: int, steps: int) -> dict[str, Any]:
        """Measures `steps` optimizer steps behind `warmup` ones; both are rounded up to whole windows.

        Returns step_ms (of each window), samples (a step), data_wait_fraction, loss (their mean), curve
        [(seconds behind the first window, loss)], peak_memory_bytes (of the GPU; without one, of the
        process), start_s (imports, data, compiling, first window), state (what was on), rates.
        Raises `Failed`.
        """
        warmup, steps = (-(-count // self.window) * self.window for count in (warmup, steps))
        last = warmup + steps
        length = {"training.max_steps": last, "schedule.warmup_steps": "auto"}
        tree = changed(self.settings, length | {"monitor.every_steps": self.window}).resolved()
        words = ["train", "--trial", "--name", "trial", "--config", "base.yaml"]
        for key, value in overrides.items():
            words += [f"--{key}", json.dumps(value) if isinstance(value, bool) else str(value)]
        with tempfile.TemporaryDirectory(prefix="trial-") as name:
            folder, begun = Path(name), time.time()
            (folder / "base.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
            code, resident = launch(words, folder, self.environment)
            rows, _ = read_metrics(folder / "runs/trial/metrics.jsonl")
            if code or not rows or rows[-1]["step"] < last:
                raise Failed(code, (folder / "log").read_text(encoding="utf-8", errors="replace"))
            optimizations = read_json(folder / "runs/trial/env.json")["optimizations"]
        state = {entry["name"]: entry["state"] for entry in optimizations}
        return figures(rows, warmup, begun, resident) | {"state": state}


def launch(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, int]:
    """Exit code and largest resident bytes of `python -m <package> WORDS` run in `folder`, with a `log`."""
    with open(folder / "log", "wb") as log:
        command = [sys.executable, "-m", PACKAGE, *words]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def figures(rows: list[dict[str, Any]], warmup: int, begun: float, resident: int) -> dict[str, Any]:
    """What a run measured, from its metrics; see `Trials`."""
    timed = [row for row in rows if row["step"] > warmup]
    seconds, curve, before = 0.0, [], rows[0]["step"]
    for row in rows:
        seconds, before = seconds + row["step_ms"] / 1000 * (row["step"] - before), row["step"]
        curve.append((seconds, row["loss"]))
    waited = sum(row["data_wait_fraction"] * row["step_ms"] for row in timed)
    gpu = [row["memory_mb"] for row in rows if "memory_mb" in row]
    names = [name for name in ("tokens_per_second", "mfu") if name in timed[0]]
    return {
        "step_ms": [row["step_ms"] for row in timed],
        "samples": round(timed[0]["samples_per_second"] * timed[0]["step_ms"] / 1000),
        "data_wait_fraction": waited / sum(row["step_ms"] for row in timed),
        "loss": mean(row["loss"] for row in timed),
        "curve": curve,
        "peak_memory_bytes": int(max(gpu) * 2**20) if gpu else resident,
        "start_s": rows[0]["time"] - begun,
        "rates": {name: median(row[name] for row in timed) for name in names},
    }


def elsewhere(function: Callable[[], Any]) -> Any:
    """What `function` gives in a process of its own: this one must hold no memory on the GPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function).result()


def spread(values: list[float]) -> dict[str, float]:
    """Median and the range from the 10th to the 90th percentile."""
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
    return {"median": median(values), "p10": tenths[0], "p90": tenths[-1]}


def changed(settings: Any, overrides: dict[str, Any]) -> Any:
    """The settings with other values for some dotted keys."""
    tree = settings.resolved()
    for key, value in overrides.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[name] = value
    return type(settings).model_validate(tree)
