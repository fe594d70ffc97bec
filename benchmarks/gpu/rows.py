"""What the parts of `make bench-gpu` share: a project's own training as a row of a table.

Each row is kept when it ends, so that a lost machine loses one row only: OUTPUT/PAGE.jsonl has
every figure of each, OUTPUT/PAGE.json the table. The same command measures the rows that are
missing there, or that failed. `make bench-gpu ARGS=--publish` writes them onto the pages.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

from gpu import answers_of, name_of  # noqa: E402
from publish import keep, machine, tables  # noqa: E402

OUTPUT = ROOT / "build/gpu/results"
REHEARSED = ROOT / "build/gpu/rehearsal"
REHEARSAL = "none: a rehearsal"  # in place of a card's name
PROJECTS = "FASTTRAIN_PROJECTS"  # environment: a folder of rendered projects
QUERY = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu",
    "--format=csv,noheader,nounits",
    "--loop-ms=200",
)
WARM = 2  # regular records of a training that do not count
FEWEST = WARM + 1  # steps of a row in a rehearsal, which logs each

Row = dict[str, Any]
Plan = dict[str, Callable[[], Row]]
"""By the name of a row: what measures it."""


def begin(doc: str, workload: str, steps: int = 0) -> argparse.Namespace:
    """Parse the command line and make the project importable. Ends if there is no GPU.

    steps: default of `--steps`, except in a rehearsal.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help=f"of the results (default: {OUTPUT})")
    if steps:
        text = f"of a row (default: {steps}, of a rehearsal {FEWEST})"
        parser.add_argument("--steps", type=int, help=text)
    parser.add_argument("--rehearse", action="store_true", help="every row in small; needs no GPU")
    parser.add_argument("--only", nargs="+", default=[], help="names of the only rows to measure")
    parser.add_argument("--headline", action="store_true", help="only the rows that matter most")
    arguments = parser.parse_args()
    if arguments.output is None:
        arguments.output = REHEARSED if arguments.rehearse else OUTPUT
    if steps and arguments.steps is None:
        arguments.steps = FEWEST if arguments.rehearse else steps

    # cuBLAS reads this once in a process, at its first product: so it is set for all rows.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    folder = find_project(workload)
    sys.path.insert(0, str(folder / "src"))
    # Before torch is imported, as the project's own commands do it.
    project("engine.runs").prepare_process()
    import torch

    if not (torch.cuda.is_available() or arguments.rehearse):
        sys.exit("error: no GPU: there is nothing to measure: start it on the machine that has one")
    arguments.project = folder
    return arguments


def find_project(workload: str) -> Path:
    """The project of a workload: rendered, or from the folder in FASTTRAIN_PROJECTS."""
    answers = answers_of(workload)
    if PROJECTS in os.environ:
        return Path(os.environ[PROJECTS]).resolve() / name_of(answers)
    from rendering import render

    return render(**answers)


def environment_of(project: Path, root: Path) -> dict[str, str]:
    """Of `python -m my_training`: the modules of a project, and the folder of its data and runs."""
    modules = [str(project.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, modules))
    return {**os.environ, "PYTHONPATH": path, "TRAINING_ROOT": str(root)}


def project(name: str) -> Any:
    """A module of the project."""
    return importlib.import_module(f"my_training.{name}")


class Training(NamedTuple):
    """What a run of the project's own `fit` left."""

    rows: list[Row]  # of metrics.jsonl: training steps
    evaluations: list[Row]
    run: Any
    ready_s: float  # imports, data, dry run

    def steady(self, *names: str, after: int = 0) -> Row:
        """Medians over the records after a step, or after the first ones that are due regularly.

        Missing names are left out. The range of the first name is there too, as `NAME_range`.
        """
        after = after or WARM * self.run.settings.monitor.every_steps
        late = [row for row in self.rows if row["step"] > after]
        figures: Row = {}
        for name in names:
            if name in late[0]:
                figures[name] = statistics.median(row[name] for row in late)
        values = [row[names[0]] for row in late]
        return figures | {f"{names[0]}_range": [min(values), max(values)]}

    def state(self, optimization: str) -> str:
        entries = self.run.project.optimizations
        return next((entry["state"] for entry in entries if entry["name"] == optimization), "")


def train(folder: Path, overrides: Row, loader: Any = None, around: Any = None) -> Training:
    """Trains with the project's own loop and without checkpoints. overrides: of settings, by dotted
    key.

    loader: to take the place of the project's. around: a context manager around the loop.
    """
    assembling = project("assemble")
    loader = loader or project("engine.loading.loader").Loader
    distributed = project("engine.compute.distributed").Distributed()
    quiet = {
        "monitor.progress": "false",
        "evaluation.every_steps": 10**9,
        "checkpoint.every_steps": 10**9,
    }
    words = [(key, str(value)) for key, value in (quiet | overrides).items()]
    settings = project("settings").Settings.load(overrides=words)
    place, start = Path(tempfile.mkdtemp(dir=folder)), time.perf_counter()

    with (
        open(place / "log", "w") as log,
        contextlib.redirect_stdout(log),
        project("engine.training.session").Session(place, settings, distributed) as session,
    ):
        session.write_settings()
        built = assembling.build_project(place, settings, distributed)
        built.loader_class = loader
        run = session.start(built)
        run.save = lambda: None
        ready = time.perf_counter() - start
        with around or contextlib.nullcontext():
            project("train").train(run)
        if run.exit_code:  # a signal: the row would be of fewer steps than the others
            sys.exit(run.exit_code)
    record = project("engine.monitoring.report").Record(place)
    return Training(record.training, record.evaluations, run, ready)


@contextlib.contextmanager
def watched(busy: list[int]) -> Iterator[None]:
    """Adds NVML's utilisation to `busy`, five times a second; nothing where there is no
    nvidia-smi."""
    import torch

    try:
        identity = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
        process = subprocess.Popen([*QUERY, identity], stdout=subprocess.PIPE, text=True)
    except (OSError, AssertionError, RuntimeError):  # no nvidia-smi, no GPU
        yield
        return
    read = threading.Thread(
        target=lambda: busy.extend(
            int(line) for line in process.stdout or () if line.strip().isdigit()
        )
    )
    read.start()
    try:
        yield
    finally:
        process.terminate()
        read.join()


def driver() -> str:
    """`, driver 580.95.05`; empty where there is no nvidia-smi."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", driver {done.stdout.split()[0]}"


def read(path: Path) -> dict[str, Row]:
    """The last row of each name in a file of rows; a line that was cut off is none."""
    found: dict[str, Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            found[row["name"]] = row
    return found


class Book:
    """The table of one page, with a row for each name; its cells are empty until it is measured.

    cells: (figures of the row, figures of all rows so far by name) → the row's cells behind its
    name.
    """

    def __init__(
        self,
        page: str,
        columns: list[str],
        cells: Callable[[Row, dict[str, Row]], list[str]],
        names: list[str],
        arguments: argparse.Namespace,
        how: str,
    ):
        import torch

        self.page = page
        self.columns = columns
        self.cells = cells
        self.names = names
        self.arguments = arguments
        device = REHEARSAL
        if not arguments.rehearse:
            device = torch.cuda.get_device_name()
        # What a row must have in common with this run to be kept.
        self.facts: Row = {"gpu": device, "torch": torch.__version__, "protocol": how}
        self.machine = machine("triton", "torchao", device=device + driver())
        arguments.output.mkdir(parents=True, exist_ok=True)
        self.path = arguments.output / f"{page}.jsonl"
        self.found = {}
        for name, row in read(self.path).items():
            if row.items() >= self.facts.items():
                self.found[name] = row

    @property
    def done(self) -> dict[str, Row]:
        """What has figures, in the order of the table."""
        known = {name: self.found[name] for name in self.names if name in self.found}
        return {name: row for name, row in known.items() if "error" not in row}

    @property
    def rows(self) -> dict[str, list[str | None]]:
        done, width = self.done, len(self.columns) - 1
        rows: dict[str, list[str | None]] = dict.fromkeys(self.names, [None] * width)
        for name, row in self.found.items():
            rows[name] = (
                [*self.cells(row, done)] if name in done else [row["error"], *[""] * (width - 1)]
            )
        return rows

    def asked(self, first: tuple[str, ...] = ()) -> list[str]:
        """The rows that the command line asks for, in their order."""
        order = [*first, *(name for name in self.names if name not in first)]
        if self.arguments.headline:
            order = [*first]
        if self.arguments.only:
            order = [name for name in self.names if name in self.arguments.only]
        return order

    def run(
        self, make_plan: Callable[[], Plan], first: tuple[str, ...] = (), at_a_time: int = 1
    ) -> None:
        """Measure what is missing, the rows of `first` before the others; then print the table.

        make_plan: writes the data; it is not called if nothing is missing. at_a_time: rows side by
        side, if none is timed and each has processes of its own.
        """
        asked = self.asked(first)
        names = [name for name in asked if name not in self.done]
        plan = make_plan() if names else {}
        if at_a_time == 1:
            for name in names:
                self.measure(name, plan[name])
        else:
            with ThreadPoolExecutor(at_a_time) as pool:
                results = {pool.submit(plan[name]): name for name in names}
                for result in as_completed(results):
                    self.measure(results[result], result.result)
        self.close(asked)

    def measure(self, name: str, work: Callable[[], Row]) -> None:
        """Fill in a row. An error fills it, too: the other rows are still worth having."""
        import torch

        gc.unfreeze()
        torch._dynamo.reset()  # before the collection: it drops compiled code and CUDA graphs
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        row: Row = {"name": name, "date": time.strftime("%Y-%m-%d"), **self.facts}
        try:
            row |= work()
            row.setdefault("memory_gb", torch.cuda.max_memory_allocated() / 2**30)
            self.cells(row, self.done | {name: row})  # a row that lacks a figure has failed, too
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            row["error"] = f"{type(error).__name__}: {first_line[:200]}"
        self.found[name] = row
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        keep(self.arguments.output / f"{self.page}.json", "gpu", self.figures)
        print(f"{name}: {', '.join(map(str, self.rows[name]))}", flush=True)

    @property
    def figures(self) -> Row:
        rows = [[name, *cells] for name, cells in self.rows.items()]
        today, _, described = self.machine.partition(", ")
        dates = sorted({row["date"] for row in self.done.values()}) or [today]
        protocol = f"{' and '.join(dates)}, {described}, {self.facts['protocol']}"
        return {"protocol": protocol, "tables": [{"columns": self.columns, "rows": rows}]}

    def close(self, asked: list[str]) -> None:
        """Print the table; ends with exit code 1 if a row that was asked for failed."""
        print(tables(self.figures))
        if any("error" in self.found[name] for name in asked):
            sys.exit(1)


def ladder(off: Row, steps: dict[str, Row]) -> dict[str, Row]:
    """Settings by row: each has switched on what the rows above it have, and its own."""
    found, on = {}, dict(off)
    for name, change in steps.items():
        on |= change
        found[name] = dict(on)
    return found


def gain(row: Row, other: Row | None, name: str) -> str:
    """`1.85×` of another row's figure; empty where that row has none."""
    return f"{row[name] / other[name]:.2f}×" if other and name in other else ""


def spread(row: Row, name: str, style: str) -> str:
    """`34.9 to 35.6`: the range of what the row has the median of."""
    low, high = row[f"{name}_range"]
    return f"{low:{style}} to {high:{style}}"


def share(row: Row, name: str) -> str:
    """A fraction in per cent."""
    return f"{row[name]:.1%}" if name in row else "n/a"
