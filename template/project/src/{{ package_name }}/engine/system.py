"""What the machine does while a run trains: `system.csv`, written by a thread, alerts, memory that grows.

The thread sleeps between samples and asks the driver and the kernel only, so nothing waits for the GPU. NVML
needs the package nvidia-ml-py; without it, as on other systems than Linux, those columns stay empty.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

COLUMNS = (
    *("time", "gpu_percent", "gpu_memory_mb", "gpu_memory_total_mb", "allocated_mb", "reserved_mb"),
    *("alloc_retries", "power_w", "power_limit_w", "clock_mhz", "clock_max_mhz", "cpu_percent"),
    *("process_percent", "host_mb", "workers_mb", "worker_max_mb"),
)
WORKER = "pt_data_worker"  # as DataLoader calls its processes
BUSY, ROOF = 0.70, 0.10  # below these shares there is an alert
GROWTH_MB = 100.0
MB = float(2**20)


class System:
    """Samples the machine every `seconds`; 0 is never. Only the main rank writes the file."""

    def __init__(self, run: Path, device: torch.device, seconds: float, main: bool = True):
        self.path, self.device, self.seconds = run / "system.csv", device, seconds
        self.samples: list[dict[str, float]] = []  # since the last `means`
        self._nvml = Nvml(device) if device.type == "cuda" else None
        self._before = (time.perf_counter(), time.process_time(), cpu_ticks())
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if seconds and main:
            self._thread = threading.Thread(target=self._run, name="system", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.seconds):
            with contextlib.suppress(OSError):  # a full disk costs rows, not the run
                self.write(self.sample())

    def sample(self) -> dict[str, float]:
        """One row: what is known of `COLUMNS`. Percentages are since the last sample."""
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
        if self._nvml is not None:
            row |= self._nvml.sample()
        self.samples.append(row)
        return row

    def write(self, row: dict[str, float]) -> None:
        new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow({name: round(value, 3) for name, value in row.items()})

    def means(self) -> dict[str, float]:
        """Of the samples since the last call; empty where there was none."""
        taken, self.samples = self.samples, []
        names = dict.fromkeys(name for row in taken for name in row)
        return {name: fmean(row[name] for row in taken if name in row) for name in names}

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()


class Nvml:
    """Utilisation, memory, power and clocks of one GPU, by its driver; nothing where that is impossible."""

    def __init__(self, device: torch.device):
        self._handle: Any = None
        with contextlib.suppress(Exception):  # no package, an old driver, a container without NVML
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            # By identity: CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's.
            identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(identity)

    def sample(self) -> dict[str, float]:
        if self._handle is None:
            return {}
        nvml, handle, row = self._nvml, self._handle, {}
        asked: dict[str, Callable[[], float]] = {
            "gpu_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / MB,
            "gpu_memory_total_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total / MB,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        }
        for name, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # cards without a sensor say so by an error
                row[name] = float(ask())
        return row


def cpu_ticks() -> tuple[int, int] | None:
    """(busy, all) ticks of all cores since boot; None where there is no /proc."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def host_memory() -> dict[str, float]:
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
        self._last: dict[str, float] = {}

    def grown(self) -> list[str]:
        """A line for each that grew by over 100 MB since the last call."""
        now = host_memory()
        if self.device.type == "cuda":
            now["GPU memory in use"] = torch.cuda.memory_allocated(self.device) / MB
        more = {name: size - self._last.get(name, size) for name, size in now.items()}
        self._last = now
        return [
            f"{name} grew by {size:,.0f} MB in an epoch, to {now[name]:,.0f} MB"
            for name, size in more.items()
            if size > GROWTH_MB
        ]


def judge(
    row: dict[str, Any], means: dict[str, float], settings: Any, workers: int | None
) -> tuple[str, str] | None:
    """(kind, line) where the device is used badly, with the likely cause and the setting to change.

    row: a row of metrics. means: of the machine meanwhile. workers: of the loader; None where it has none.
    """
    waits, roof = row["data_wait_fraction"], row.get("roof_fraction", 1.0)
    busy = means["gpu_percent"] / 100 if "gpu_percent" in means else 1 - waits
    if busy >= BUSY and roof >= ROOF:
        return None
    what = f"GPU utilisation {busy:.0%}" if "gpu_percent" in means else f"busy {busy:.0%} of the time"
    if busy >= BUSY:
        what = f"{roof:.1%} of the roof"
    if waits > (1 - BUSY) / 2:
        kind, why = "input-bound", f"it waits for data {waits:.0%} of the time"
        if means.get("cpu_percent", 0.0) > 90:
            remedy = "all cores are busy: do work once in `prepare`, run less beside this, or take more cores"
        elif workers is not None:
            remedy = f"raise data.num_workers ({workers}), then data.prefetch_factor"
        else:
            remedy = "a faster disk, or work that moves from dataset.py to `prepare`"
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
