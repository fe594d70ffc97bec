"""One short run in a process of its own, and what it measured: for `benchmark` and `tune`.

A process each, because compiled code, cuDNN's choices and the memory allocator outlive a run, and because
one that runs out of memory takes nothing along. The same entry for every framework.
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

import yaml

from ..engine.errors import UserError
from ..engine.files import read_json
from ..engine.gpus import Card, this_card
from ..engine.report import read_metrics

if TYPE_CHECKING:
    from ..config import Settings

SOURCE = Path(__file__).absolute().parents[2]
WINDOW = 5  # steps between two readings of a GPU's clock: each waits for the GPU to finish
SETTINGS = "settings.yaml"
LOADER = "loader"  # among overrides: "plain" is PyTorch's own as most use it, "own" the project's

Overrides = dict[str, Any]
"""Values by dotted key of the settings, and `LOADER`."""


class Failed(Exception):
    """A trial that ended with an error, said in its last words; `memory` where there was too little."""

    def __init__(self, code: int, log: str):
        lines = [line for line in log.splitlines() if line.strip()] or [f"exit code {code}"]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        super().__init__((errors or lines[-1:])[0])
        self.memory = code in (-9, 137) or bool(re.search("out of (GPU )?memory|can't allocate memory", log))


class Trials:
    """Runs trials of one configuration.

    settings: what a trial without overrides runs. store: folder of the data. gpu: whether there is one.
    """

    def __init__(self, settings: Settings, store: Path, gpu: bool):
        fixed = {"phases": [], "profiles": {}, "data.path": str(store.absolute()), "monitor.progress": False}
        self.settings, self.window = changed(settings, fixed), WINDOW if gpu else 1

    def __call__(self, overrides: Overrides, warmup: int, steps: int) -> dict[str, Any]:
        """Measures `steps` optimizer steps behind `warmup` ones; both are rounded up to whole windows.

        Returns step_ms (of each window), samples (a step), data_wait_fraction, loss (their mean), curve
        [(seconds behind the first window, loss)], peak_memory_bytes (of the GPU; without one, of the
        process), start_s (imports, data, compiling, first window), state (what was on), rates.
        Raises `Failed`.
        """
        warmup, steps = (-(-count // self.window) * self.window for count in (warmup, steps))
        length = {"training.max_steps": warmup + steps, "schedule.warmup_steps": "auto"}
        length |= {"monitor.every_steps": self.window}
        given = {key: value for key, value in overrides.items() if key != LOADER}
        tree = replaced(self.settings.resolved(), length | given)
        with tempfile.TemporaryDirectory(prefix="trial-") as name:
            folder, begun = Path(name), time.time()
            (folder / SETTINGS).write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
            code, resident = launch(overrides.get(LOADER, "own"), folder)
            rows, _ = read_metrics(folder / "runs/trial/metrics.jsonl")
            if code or not rows or rows[-1]["step"] < warmup + steps:
                raise Failed(code, (folder / "log").read_text(encoding="utf-8", errors="replace"))
            optimizations = read_json(folder / "runs/trial/env.json")["optimizations"]
        state = {entry["name"]: entry["state"] for entry in optimizations}
        return figures(rows, warmup, begun, resident) | {"state": state}


def launch(loader: str, folder: Path) -> tuple[int, int]:
    """Exit code and largest resident bytes of `main` run in `folder`, with a `log`."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))
    with open(folder / "log", "wb") as log:
        command, environment = [sys.executable, "-m", __name__, loader], {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(loader: str) -> int:
    """Trains by the settings in this folder; metrics only: no evaluation, checkpoint or report.

    The environment was heard when the settings were made, and counts no more.
    """
    from ..assemble import assemble, open_store
    from ..config import load
    from ..engine.distributed import Distributed
    from ..engine.loader import Loader
    from ..engine.runs import new_run
    from ..engine.session import Session
    from ..train import fit
    from . import plain_loader

    distributed = Distributed()
    kind: Any = plain_loader.Loader if loader == "plain" else Loader
    try:
        settings, run = load(Path(SETTINGS)), new_run("trial")
        build = lambda settings: assemble(settings, distributed, open_store(settings), kind)  # noqa: E731
        with Session(run, settings, build, distributed, trial=True) as session:
            for phase in session.phases():
                fit(phase)
        return session.exit_code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    finally:
        distributed.close()


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


def card_here() -> Card:
    """`this_card`, a GPU by a process of its own: this one must hold no memory there."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import torch

    if not torch.cuda.is_available():
        return this_card()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(this_card).result()


def spread(values: list[float]) -> dict[str, float]:
    """Median and the range from the 10th to the 90th percentile."""
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
    return {"median": median(values), "p10": tenths[0], "p90": tenths[-1]}


def changed(settings: Settings, overrides: Overrides) -> Settings:
    """The settings with other values for some dotted keys."""
    return type(settings).model_validate(replaced(settings.resolved(), overrides))


def replaced(tree: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Puts values at dotted keys of a tree, in place."""
    for key, value in overrides.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[name] = value
    return tree


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
