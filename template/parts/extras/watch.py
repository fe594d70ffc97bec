"""Watches the machine while a run trains: `system.csv`, alerts with cause and remedy, memory that grows.

A thread sleeps between two samples and asks the driver and the kernel only, so nothing waits for the GPU.
NVML needs the package nvidia-ml-py; without it, as on other systems than Linux, its columns stay empty.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..engine.config import Section, defaults
from ..engine.report import Row, show, table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..engine.run import Run
    from ..engine.seams import Batch

COLUMNS = {
    "gpu_percent": "GPU busy, %",
    "roof_percent": "of the card's roof, %",
    "gpu_memory_mb": "GPU memory in use, MB",
    "gpu_memory_total_mb": "",
    "allocated_mb": "",
    "reserved_mb": "of it reserved by PyTorch, MB",
    "alloc_retries": "allocations tried again",
    "power_w": "power, W",
    "power_limit_w": "power cap, W",
    "clock_mhz": "clock, MHz",
    "clock_max_mhz": "highest clock, MHz",
    "cpu_percent": "all cores busy, %",
    "process_percent": "training process, % of a core",
    "host_mb": "training process, MB",
    "workers_mb": "loader workers together, MB",
    "worker_max_mb": "largest loader worker, MB",
}
"""Of system.csv behind `time`, each with its name in the report, if it stands there."""

WORKER = "pt_data_worker"  # as DataLoader calls its processes
BUSY, ROOF = 0.70, 0.10  # below these shares there is an alert
WAITS = 0.15  # above this share the monitor has said that the loop waits for data
GROWTH_MB = 100.0
MB = float(2**20)

Sample = dict[str, float]


class Watch(Section):
    """The machine, watched while a run trains."""

    every_seconds: float = Field(10.0, ge=0, description="between rows of system.csv, or alerts; 0 is off")


class Sections(Section):
    """The section of config.yaml that belongs to this hook."""

    watch: Watch = defaults(Watch)


class Hook:
    """Watches the main process and its GPU; other ranks are left alone. No host sync. One for each phase."""

    trials = False
    watches = False

    def start(self, run: Run) -> None:
        """Begins to sample, and waits for the first batch."""
        project, self.every = run.project, run.project.settings.watch.every_seconds
        if not (project.distributed.is_main and self.every):
            return
        self.watches = True
        self.samples, self.leaks = Samples(run.folder, project.device, self.every), Leaks(project.device)
        self.epoch = self.checked = run.progress.epoch
        self.row = run.monitor.row
        self.waits: list[float] = []  # of the rows since the last judgement
        self.judged = time.perf_counter()
        self.roof = 0.0  # seconds of a sample at the card's roof; 0 where it is not known
        self.shapes: Batch = {}
        if project.device.type == "cuda":
            self.catching = project.model.register_forward_pre_hook(self.catch)

    def catch(self, model: nn.Module, inputs: tuple[Batch, ...]) -> None:
        """Keeps the shapes of the first batch, which the roof is counted from."""
        self.catching.remove()
        tensors = {name: value for name, value in inputs[0].items() if name != "carry"}
        self.shapes = {name: value.to("meta") for name, value in tensors.items()}

    def after_step(self, run: Run) -> None:
        """Looks at memory once an epoch, and at the use of the device with a row of metrics."""
        if not self.watches:
            return
        epoch, self.epoch = self.epoch, run.progress.epoch  # of this step, and of the next
        if epoch > self.checked:  # an epoch's first step; the first epoch fills caches
            self.checked = epoch
            for line in self.leaks.grown():
                kind = line.partition(" grew")[0]
                run.monitor.alert(run.progress.step, kind, f"memory: {line}: what keeps it?")
        if self.shapes:
            begun = time.perf_counter()
            self.roof, self.shapes = roof_of(run, self.shapes), {}
            run.monitor.exclude(time.perf_counter() - begun)
        if run.monitor.row is not None and run.monitor.row is not self.row:
            self._judge(run, run.monitor.row, first=self.row is None)
            self.row = run.monitor.row

    def _judge(self, run: Run, row: Row, first: bool) -> None:
        """An alert where the device was used badly, once `watch.every_seconds` have passed."""
        roof = 1.0
        if self.roof:
            roof = row["samples_per_second"] * self.roof / run.project.distributed.world
            self.samples.roof_percent = 100 * roof
        self.waits.append(row["data_wait_fraction"])
        now = time.perf_counter()
        if not first and now - self.judged < self.every:
            return
        means, waits, self.waits, self.judged = self.samples.means(), fmean(self.waits), [], now
        # The first steps compile, and fill caches.
        if not first and (found := judge(waits, roof, means, run.project.settings)):
            run.monitor.alert(row["step"], *found)

    def close(self, run: Run) -> None:
        """Ends the thread."""
        if self.watches:
            self.samples.close()


def roof_of(run: Run, batch: Batch) -> float:
    """Seconds of a sample at the roof of the card; 0 where the card or the model's work is not known.

    batch: gives shapes only.
    """
    import torch

    from ..engine.gpus import match, this_card
    from ..measure.costs import card, count
    from ..model import build_model

    found, project = this_card(), run.project
    gpu, _ = match(found.name, found.sm_count, found.memory_gb)
    if gpu is None:
        return 0.0
    try:
        with torch.random.fork_rng(devices=[]):  # dropout goes on as without a watcher
            build = lambda: build_model(project.settings, project.store.facts)  # noqa: E731
            costs = count(build, batch, project.precision.name)
    except Exception:  # a model that needs values, not shapes, is trained all the same
        return 0.0
    return card(gpu, project.precision.name).step(costs)[0] / costs.samples


class Samples:
    """Samples the machine every `seconds` in a thread; 0 is never."""

    def __init__(self, folder: Path, device: torch.device, seconds: float):
        self.path, self.device, self.seconds = folder / "system.csv", device, seconds
        self.roof_percent = 0.0  # as the last row of metrics has it; 0 where it is not known
        self.taken: list[Sample] = []  # since the last `means`
        self._sensors = sensors(device) if device.type == "cuda" else dict
        self._before = (time.perf_counter(), time.process_time(), cpu_ticks())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if seconds:
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.seconds):
            with contextlib.suppress(OSError):  # a full disk costs rows, not the run
                self.write(self.sample())

    def sample(self) -> Sample:
        """One row: what is known of `COLUMNS`. Percentages are since the last sample."""
        import torch

        now = (time.perf_counter(), time.process_time(), cpu_ticks())
        (seconds, process, ticks), self._before = self._before, now
        row = {"time": time.time(), "process_percent": 100 * (now[1] - process) / (now[0] - seconds)}
        if ticks and now[2] and now[2][1] > ticks[1]:
            row["cpu_percent"] = 100 * (now[2][0] - ticks[0]) / (now[2][1] - ticks[1])
        memory = host_memory()
        if memory:
            own, *workers = memory.values()
            row |= {"host_mb": own, "workers_mb": sum(workers), "worker_max_mb": max(workers, default=0.0)}
        if self.device.type == "cuda":
            stats = torch.cuda.memory_stats(self.device)  # the allocator's own counts: no host sync
            row["allocated_mb"] = stats.get("allocated_bytes.all.current", 0) / MB
            row["reserved_mb"] = stats.get("reserved_bytes.all.current", 0) / MB
            row["alloc_retries"] = stats.get("num_alloc_retries", 0)
            row |= self._sensors()
        if self.roof_percent:
            row["roof_percent"] = self.roof_percent
        self.taken.append(row)
        return row

    def write(self, row: Sample) -> None:
        new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["time", *COLUMNS], lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow({name: round(value, 3) for name, value in row.items()})

    def means(self) -> Sample:
        """Of the samples since the last call; empty where there was none."""
        taken, self.taken = self.taken, []
        names = dict.fromkeys(name for row in taken for name in row)
        return {name: fmean(row[name] for row in taken if name in row) for name in names}

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()


def sensors(device: torch.device) -> Callable[[], Sample]:
    """What reads utilisation, memory, power and clocks of a GPU; gives nothing where its driver cannot."""
    import torch

    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        # By identity: CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's.
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except Exception:  # no package, an old driver, a container without NVML
        return dict
    asked: dict[str, Callable[[], float]] = {
        "gpu_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "gpu_memory_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used / MB,
        "gpu_memory_total_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total / MB,
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    }

    def read() -> Sample:
        row = {}
        for name, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # cards without a sensor say so by an error
                row[name] = float(ask())
        return row

    return read


def cpu_ticks() -> tuple[int, int] | None:
    """(busy, all) ticks of all cores since boot; None where there is no /proc."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def host_memory() -> Sample:
    """MB by process: the training process first, then each loader worker. Empty where there is no /proc.

    Without files and shared memory: a worker that reads a mapped file touches more of it, and leaks nothing.
    """
    own = os.getpid()
    try:
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        found = {"the training process": anonymous_mb(own)}
    except (OSError, ValueError):
        return {}
    for child in children:
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            if Path(f"/proc/{child}/comm").read_text().strip() == WORKER:
                found[f"loader worker {child}"] = anonymous_mb(int(child))
    return found


def anonymous_mb(pid: int) -> float:
    """Memory that is the process's own. Raises ValueError for one that has ended, and has none."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].partition("kB")[0]) / 1024


class Leaks:
    """Memory that grows from epoch to epoch, by what holds it."""

    def __init__(self, device: torch.device):
        self.device = device
        self._last: Sample = {}

    def grown(self) -> list[str]:
        """A line for each that grew by over 100 MB since the last call."""
        import torch

        now = host_memory()
        if self.device.type == "cuda":
            now["GPU memory in use"] = torch.cuda.memory_allocated(self.device) / MB
        more = {name: size - self._last.get(name, size) for name, size in now.items()}
        self._last = now
        grown = [name for name, size in more.items() if size > GROWTH_MB]
        return [f"{name} grew by {more[name]:,.0f} MB in an epoch, to {now[name]:,.0f} MB" for name in grown]


def judge(waits: float, roof: float, means: Sample, settings: Any) -> tuple[str, str] | None:
    """(kind, line) where the GPU is used badly, with the likely cause and the setting to change.

    waits, roof: share of the time in which the loop waits for data, and of the card's roof. means: of the
    machine meanwhile. That the loop waits is the monitor's alert, with its remedies; here is what they miss.
    """
    busy = means.get("gpu_percent", 100.0) / 100
    if busy >= BUSY and roof >= ROOF:
        return None
    what = f"GPU utilisation {busy:.0%}" if busy < BUSY else f"{roof:.1%} of the roof"
    if waits > WAITS:
        if means.get("cpu_percent", 0.0) <= 90:
            return None
        kind, why = "busy cores", f"it waits for data {waits:.0%} of the time, and no core is free to read"
        remedy = "do work once in `prepare`, run less beside this, or take more cores"
    elif busy >= BUSY:
        kind, why = "small kernels", "the GPU runs, and its units idle"
        remedy = f"raise data.batch_size ({settings.data.batch_size}), or training.precision auto"
    elif means.get("process_percent", 0.0) > 80:
        kind, why = "launch-bound", "one core hands out kernels slower than they run"
        remedy = f"raise data.batch_size ({settings.data.batch_size}), or compile.enabled true"
    else:
        kind, why = "waiting", "for neither data nor Python"
        every = settings.monitor.every_steps
        remedy = f"raise monitor.every_steps ({every}) and evaluation.every_steps, or look at `profile`"
    return kind, f"{kind}: {what}: {why}: {remedy}"


def report(run: Path) -> list[str]:
    """Median, lowest and highest of each column of `system.csv` that has numbers, for report.md."""
    columns: dict[str, list[float]] = defaultdict(list)
    try:
        with open(run / "system.csv", encoding="utf-8", newline="") as file:
            for name, cell in (pair for sample in csv.DictReader(file) for pair in sample.items()):
                with contextlib.suppress(TypeError, ValueError):  # empty, or cut off
                    columns[name].append(float(cell))
    except (OSError, csv.Error, UnicodeDecodeError):
        return []
    rows = []
    for name, label in COLUMNS.items():
        if label and max(values := columns[name], default=0) > 0:
            rows.append((label, *(show(x, 3) for x in (median(values), min(values), max(values)))))
    return table("Machine in use", ("", "median", "lowest", "highest"), rows)
