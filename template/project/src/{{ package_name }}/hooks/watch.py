"""Monitor the machine while a run trains: `system.csv`, and alerts about speed and memory leaks.

A thread samples the driver and the operating system, so nothing waits for the GPU. NVML needs the
package nvidia-ml-py. Without it, and on systems other than Linux, some columns are empty.
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

from ..engine.monitoring.report import Row, show, table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..engine.interfaces import Batch
    from ..engine.training.run import Run

COLUMNS = {
    "gpu_percent": "GPU busy, %",
    "roof_percent": "of the card's roofline, %",
    "gpu_memory_mb": "GPU memory in use, MB",
    "gpu_memory_total_mb": "",
    "allocated_mb": "",
    "reserved_mb": "of it reserved by PyTorch, MB",
    "alloc_retries": "retried allocations",
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
"""Columns of system.csv after `time`, with their names in the report; empty if not reported."""

WORKER = "pt_data_worker"  # as DataLoader calls its processes
BUSY = 0.70  # alert if the GPU is busy for a smaller fraction of the time
ROOF = 0.10  # alert below this fraction of the roofline
WAITS = 0.15  # above this fraction, the monitor itself alerts that the loop waits for data
GROWTH_MB = 100.0
MB = float(2**20)

Sample = dict[str, float]


class Hook:
    """Monitors the process of rank 0 and its GPU, without a host sync."""

    trials = False
    watches = False
    has_noted = False  # of the class: a run with phases has a hook for each of them

    def start(self, run: Run) -> None:
        """Start to sample, and catch the first batch."""
        project = run.project
        settings: Any = project.settings
        self.every = settings.watch.every_seconds
        if not project.distributed.is_main or not self.every:
            return
        self.watches = True
        self.samples = Samples(run.folder, project.device, self.every)
        if self.samples.unseen and not Hook.has_noted:
            Hook.has_noted = True
            run.log.line(f"note: watch samples no GPU: {self.samples.unseen}")
        self.leaks = Leaks(project.device)
        self.epoch, _, _ = run.batches_of(run.step)
        self.checked = self.epoch
        self.row = run.record
        self.waits: list[float] = []  # data waits since the last judgement
        self.judged = time.perf_counter()
        self.roof = 0.0  # seconds per sample at the card's roofline; 0 if unknown
        self.shapes: Batch = {}
        if project.device.type == "cuda":
            from torch import compiler

            catch = compiler.disable(self._catch)  # the whole model may be compiled
            self.catching = project.model.register_forward_pre_hook(catch)

    def _catch(self, model: nn.Module, inputs: tuple[Batch, ...]) -> None:
        """Keep the shapes of the first batch, to compute the roofline."""
        self.catching.remove()
        for name, value in inputs[0].items():
            self.shapes[name] = value.to("meta")

    def after_step(self, run: Run) -> None:
        """Check memory once per epoch, and the use of the device at each log entry."""
        if not self.watches:
            return
        epoch_of_step = self.epoch
        self.epoch, _, _ = run.batches_of(run.step)  # of the next step
        # Check after the first step of each epoch except the first, in which caches fill.
        if epoch_of_step > self.checked:
            self.checked = epoch_of_step
            self._check_memory(run)
        if self.shapes:
            start_time = time.perf_counter()
            self.roof = roof_of(run, self.shapes)
            self.shapes = {}
            run.meter.start_time += time.perf_counter() - start_time
        if run.record is not None and run.record is not self.row:
            self._judge(run, run.record, first=self.row is None)
            self.row = run.record

    def _check_memory(self, run: Run) -> None:
        for line in self.leaks.grown():
            kind = line.partition(" grew")[0]
            run.log.alert(run.step, kind, f"memory: {line}: find what keeps it")

    def _judge(self, run: Run, row: Row, first: bool) -> None:
        """Alert if the device is poorly used, at most once per `watch.every_seconds`."""
        roof = 1.0
        if self.roof:
            roof = row["samples_per_second"] * self.roof / run.project.distributed.world
            self.samples.roof_percent = 100 * roof
        self.waits.append(row["data_wait_fraction"])
        now = time.perf_counter()
        if not first and now - self.judged < self.every:
            return
        means = self.samples.means()
        waits = fmean(self.waits)
        self.waits = []
        self.judged = now
        if first:
            return  # the first steps compile and fill caches
        alert = judge(waits, roof, means, run.project.settings)
        if alert is not None:
            run.log.alert(row["step"], *alert)

    def close(self, run: Run) -> None:
        """Stop the thread."""
        if self.watches:
            self.samples.close()


def roof_of(run: Run, batch: Batch) -> float:
    """Return the seconds per sample at the card's roofline; 0 if it cannot be computed.

    batch: only its shapes are used.
    """
    import torch

    from ..engine.compute.gpu_table import match
    from ..engine.compute.gpus import this_card
    from ..measure.costs import card, count
    from ..model import build_model

    project: Any = run.project  # to the engine, its settings lack your sections
    gpu, _ = match(this_card())
    if gpu is None:
        return 0.0

    def build() -> nn.Module:
        return build_model(project.settings, project.store.facts)

    try:
        # Keep the random state, so that dropout is the same as without this hook.
        with torch.random.fork_rng(devices=[]):
            costs = count(build, batch, project.precision.name)
    except Exception:
        return 0.0  # the model needs values, not only shapes
    seconds, _ = card(gpu, project.precision.name).step(costs)
    return seconds / costs.samples


class Samples:
    """Samples the machine every `seconds` in a thread; 0 disables it."""

    def __init__(self, folder: Path, device: torch.device, seconds: float):
        self.path = folder / "system.csv"
        self.device = device
        self.seconds = seconds
        self.roof_percent = 0.0  # at the last log entry; 0 if unknown
        self.taken: list[Sample] = []  # samples since the last `means`
        self._sensors, self.unseen = sensors(device)
        self._before = (time.perf_counter(), time.process_time(), cpu_ticks())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if seconds:
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.seconds):
            with contextlib.suppress(OSError):  # a full disk must not end the run
                self.write(self.sample())

    def sample(self) -> Sample:
        """Return the available `COLUMNS`; percentages are since the last sample."""
        row = self._processors()
        memory = host_memory()
        if memory:
            own, *workers = memory.values()
            row["host_mb"] = own
            row["workers_mb"] = sum(workers)
            row["worker_max_mb"] = max(workers, default=0.0)
        if self.device.type == "cuda":
            row |= self._gpu()
        if self.roof_percent:
            row["roof_percent"] = self.roof_percent
        self.taken.append(row)
        return row

    def _processors(self) -> Sample:
        seconds_before, process_before, ticks_before = self._before
        seconds = time.perf_counter()
        process = time.process_time()
        ticks = cpu_ticks()
        self._before = (seconds, process, ticks)
        process_percent = 100 * (process - process_before) / (seconds - seconds_before)
        row = {"time": time.time(), "process_percent": process_percent}
        if ticks and ticks_before:
            busy = ticks[0] - ticks_before[0]
            total = ticks[1] - ticks_before[1]
            if total > 0:
                row["cpu_percent"] = 100 * busy / total
        return row

    def _gpu(self) -> Sample:
        import torch

        # These are counters of the allocator, without a host sync.
        stats = torch.cuda.memory_stats(self.device)
        row = {
            "allocated_mb": stats.get("allocated_bytes.all.current", 0) / MB,
            "reserved_mb": stats.get("reserved_bytes.all.current", 0) / MB,
            "alloc_retries": stats.get("num_alloc_retries", 0),
        }
        return row | self._sensors()

    def write(self, row: Sample) -> None:
        is_new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["time", *COLUMNS], lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow({name: round(value, 3) for name, value in row.items()})

    def means(self) -> Sample:
        """Return the means of the samples since the last call; empty if there is no sample."""
        values: dict[str, list[float]] = {}
        taken = self.taken
        self.taken = []
        for row in taken:
            for name, value in row.items():
                values.setdefault(name, []).append(value)
        return {name: fmean(column) for name, column in values.items()}

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()


def sensors(device: torch.device) -> tuple[Callable[[], Sample], str]:
    """Return a function that reads utilization, memory, power and clocks of a GPU.

    The text is the reason why the function reads nothing; empty if it does.
    """
    import torch

    if device.type != "cuda":
        return dict, "this run is on the CPU"
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        # Use the UUID, because CUDA_VISIBLE_DEVICES renumbers torch's devices but not NVML's.
        uuid = torch.cuda.get_device_properties(device).uuid
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except ImportError:
        return dict, "nvidia-ml-py is not installed: run `pip install nvidia-ml-py`"
    except Exception as error:  # an old driver, a container without NVML
        return dict, f"NVML cannot read it ({error})"
    queries: dict[str, Callable[[], float]] = {
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
        for name, query in queries.items():
            with contextlib.suppress(nvml.NVMLError):  # a card without this sensor
                row[name] = float(query())
        return row

    return read, ""


def cpu_ticks() -> tuple[int, int] | None:
    """Return the (busy, total) ticks of all cores since boot; None without /proc."""
    try:
        first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
        ticks = [int(word) for word in first_line.split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def host_memory() -> Sample:
    """Return the MB of the training process, then of loader workers; empty without /proc.

    Files and shared memory do not count: a worker that reads more and more of a memory-mapped file
    does not leak.
    """
    own = os.getpid()
    try:
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        memory = {"the training process": anonymous_mb(own)}
    except (OSError, ValueError):
        return {}
    for child in children:
        with contextlib.suppress(OSError, ValueError):  # the process has ended
            if Path(f"/proc/{child}/comm").read_text().strip() == WORKER:
                memory[f"loader worker {child}"] = anonymous_mb(int(child))
    return memory


def anonymous_mb(pid: int) -> float:
    """Return the anonymous memory of a process. Raises ValueError if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    size = status.partition("RssAnon:")[2].partition("kB")[0]
    return int(size) / 1024


class Leaks:
    """Detects memory that grows during a run."""

    def __init__(self, device: torch.device):
        self.device = device
        self._first: Sample = {}  # when it was measured for the first time

    def grown(self) -> list[str]:
        """Return a line for each process or GPU that grew by over 100 MB since the first call."""
        import torch

        now = host_memory()
        if self.device.type == "cuda":
            now["GPU memory in use"] = torch.cuda.memory_allocated(self.device) / MB
        lines = []
        for name, size in now.items():
            growth = size - self._first.setdefault(name, size)
            if growth > GROWTH_MB:
                since = "since the second epoch"
                lines.append(f"{name} grew by {growth:,.0f} MB {since}, to {size:,.0f} MB")
        return lines


def judge(waits: float, roof: float, means: Sample, settings: Any) -> tuple[str, str] | None:
    """Return (kind, line) if the GPU is poorly used; the line has the likely cause and a remedy.

    waits: fraction of the time that the loop waits for data. The monitor alerts about that itself,
    so this function adds only what it misses. roof: fraction of the roofline. means: means of the
    samples.
    """
    busy = means.get("gpu_percent", 100.0) / 100
    if busy >= BUSY and roof >= ROOF:
        return None
    what = f"{roof:.1%} of the roofline"
    if busy < BUSY:
        what = f"GPU utilization {busy:.0%}"
    larger_batch = f"raise data.batch_size ({settings.data.batch_size})"

    if waits > WAITS:
        if means.get("cpu_percent", 0.0) <= 90:
            return None
        kind = "busy cores"
        why = f"it waits for data {waits:.0%} of the time, and no core is free to read"
        remedy = "move work to `prepare`, stop other processes, or use more cores"
    elif busy >= BUSY:
        kind = "small kernels"
        why = "the GPU is busy, but most of its units are idle"
        remedy = f"{larger_batch}, or training.precision auto"
    elif means.get("process_percent", 0.0) > 80:
        kind = "launch-bound"
        why = "one core launches kernels more slowly than they run"
        remedy = f"{larger_batch}, or compile.enabled true"
    else:
        kind = "waiting"
        why = "neither data nor Python is the cause"
        logging = f"raise monitor.every_steps ({settings.monitor.every_steps})"
        remedy = f"{logging} and evaluation.every_steps, or run `profile`"
    return kind, f"{kind}: {what}: {why}: {remedy}"


def report_lines(folder: Path) -> list[str]:
    """Return a table for report.md with median, minimum and maximum of each column."""
    columns: dict[str, list[float]] = defaultdict(list)
    try:
        with open(folder / "system.csv", encoding="utf-8", newline="") as file:
            for sample in csv.DictReader(file):
                for name, cell in sample.items():
                    with contextlib.suppress(TypeError, ValueError):  # empty, or cut off
                        columns[name].append(float(cell))
    except (OSError, csv.Error, UnicodeDecodeError):
        return []
    rows = []
    for name, label in COLUMNS.items():
        values = columns[name]
        if label and max(values, default=0) > 0:
            numbers = (median(values), min(values), max(values))
            rows.append((label, *(show(number, 3) for number in numbers)))
    return table("Use of the machine", ("", "median", "lowest", "highest"), rows)
