"""The two sides of an experiment, an edit and its parent, and the trainings that they have done."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..engine.errors import UserError
from ..engine.files import digest, read_json, write_json
from ..engine.plugins import PACKAGE
from ..engine.runs import ROOT
from .sources import program

SCRIPT = Path(__file__).with_name("side.py")
Result = dict[str, Any]


class Failed(Exception):
    """A side could not do what it was asked. name: parent or edit."""

    def __init__(self, name: str, why: str):
        super().__init__(f"the {name} fails: {why}")
        self.name = name


class Side:
    """A source that trains in a process of its own; a context manager.

    name: parent or edit. flags: settings by key, as texts.
    """

    def __init__(self, name: str, folder: Path, profile: str | None, flags: dict[str, str]):
        self.name = name
        self.program = program(folder)
        self.common = {"profile": profile, "flags": [*flags.items()]}
        self.facts: Result = {}
        self.identity = ""
        self.judge: Side | None = None  # evaluates what this side trains
        path = os.pathsep.join(filter(None, (f"{folder / 'src'}", os.environ.get("PYTHONPATH"))))
        self.process: Any = subprocess.Popen(
            # -P: other files in the script's folder hide no library
            [sys.executable, "-P", str(SCRIPT), PACKAGE, str(folder)],
            env={**os.environ, "PYTHONPATH": path, ROOT: str(Path.cwd())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # so that all its processes can be ended together
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ready(self, limit: float | None = None) -> None:
        """Wait until the source is imported, and identify it. Raises `Failed`."""
        self.ask("start", limit)
        if self.judge:
            self.judge.ready(limit)
        self.facts = self.ask("describe", limit)
        important = [self.facts[name] for name in ("settings", "data", "machine")]
        self.identity = digest([self.program, *important])

    def ask(self, do: str, limit: float | None = None, **details: Any) -> Result:
        """Return the answer to a request. limit: seconds. Raises `Failed`."""
        request = {"do": do, "fixed": {}, **self.common, **details}
        with suppress(BrokenPipeError):  # it has died: there is no answer
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], limit)
        if not readable:
            raise Failed(self.name, f"it has not ended after {limit:.0f} s")
        line = self.process.stdout.readline()
        answer: Result = json.loads(line) if line else {"error": "its process has died"}
        if "error" in answer:
            raise Failed(self.name, answer["error"])
        return answer

    def metric(self, result: Result, name: str) -> float:
        """Return a metric of a training.

        Raises `UserError` if there is no such metric, and `Failed` if it is not finite.
        """
        metrics = result["metrics"]
        if name not in metrics:
            remedy = f"choose one of {', '.join(metrics)}"
            raise UserError(f"the {self.name} has no metric {name!r}", "--metric", remedy)
        if not math.isfinite(metrics[name]):
            raise Failed(self.name, f"{name} is {metrics[name]}")
        return float(metrics[name])


class Trainings:
    """The results of all trainings, a file for each: the same training never runs twice."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.count = 0  # of those that ran now

    def path(self, side: Side, request: Result) -> Path:
        judge = side.judge.identity if side.judge else ""
        return self.folder / f"{digest([side.identity, judge, request])[:24]}.json"

    def result(self, side: Side, request: Result, limit: float | None = None) -> Result:
        """Return the result of a training. limit: seconds. Raises `Failed`."""
        path = self.path(side, request)
        known = read_json(path, metrics=dict)
        if known:
            return known
        start_time = time.monotonic()
        weights = self.folder / "weights.partial"
        save = str(weights.absolute()) if side.judge else ""
        result = side.ask("training", limit, save=save, **request)
        if side.judge:
            result |= side.judge.ask("judge", limit, weights=save, **request)
            weights.unlink()
        result["seconds"] = time.monotonic() - start_time
        self.count += "stop_after" not in request
        write_json(path, result)
        return result
