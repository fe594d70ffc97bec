"""The machine while a run trains: samples, alerts with cause and remedy, memory that grows."""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render
from running import PACKAGE, documented, losses, newest_run, one_error, run
from variants import choices

system = imported(render(), "engine.system")
config = imported(render(), "config")

SETTINGS = config.load()
CUDA = torch.device("cuda", 0)
TABULAR = ("--model.width", "32", "--data.batch_size", "128", "--monitor.every_steps", "10")


# ---- alerts ----


def row(waits: float, roof: float | None = None) -> dict:
    return {"data_wait_fraction": waits} | ({"roof_fraction": roof} if roof is not None else {})


@pytest.mark.parametrize(
    ("metrics", "means", "workers", "kind", "says"),
    [
        (row(0.02, 0.4), {"gpu_percent": 95.0}, 4, None, ""),
        (row(0.29), {}, None, None, ""),  # without NVML: the time that is not spent waiting for data
        (row(0.31), {}, None, "input-bound", "busy 69%"),
        (row(0.6, 0.05), {"gpu_percent": 40.0}, 4, "input-bound", "data.num_workers (4)"),
        (row(0.6), {"gpu_percent": 40.0, "cpu_percent": 99.0}, 4, "input-bound", "all cores are busy"),
        (row(0.6), {"gpu_percent": 40.0}, None, "input-bound", "disk"),
        (row(0.01), {"gpu_percent": 40.0, "process_percent": 99.0}, 4, "launch-bound", "compile.enabled"),
        (row(0.01), {"gpu_percent": 40.0, "process_percent": 20.0}, 4, "waiting", "monitor.every_steps (50)"),
        (row(0.01, 0.04), {"gpu_percent": 99.0}, 4, "small kernels", "4.0% of the roof"),
        (row(0.2, 0.04), {"gpu_percent": 99.0}, 4, "input-bound", "4.0% of the roof"),
        (row(0.01, 0.11), {"gpu_percent": 71.0}, 4, None, ""),
    ],
)
def test_a_badly_used_device_gets_cause_and_remedy(metrics, means, workers, kind, says):
    found = system.judge(metrics, means, SETTINGS, workers)
    assert (found[0] if found else None) == kind
    assert says in (found[1] if found else "")


def slow_loader() -> None:
    from my_training.engine.loader import Loader

    epoch = Loader.epoch

    def slow(self, *words):
        for batch in epoch(self, *words):
            time.sleep(0.01)
            yield batch

    Loader.epoch = slow


@pytest.mark.parametrize("framework", choices("framework"))
def test_a_slow_loader_is_told_and_reported_once(framework: str, tmp_path) -> None:
    """Also without a GPU: by the time that the loop waits for data."""
    words = (*TABULAR, "--monitor.system_every_seconds", "0.2", "--training.max_steps", "100")
    project = render(workload="tabular", framework=framework)
    result = run(project, "train", *words, cwd=tmp_path, before=slow_loader)
    assert result.code == 0, result.err
    alerts = [line for line in result.out.splitlines() if line.startswith("alert: ")]
    assert len(alerts) == 1, result.out
    assert alerts[0].startswith("alert: input-bound: busy ")
    folder = newest_run(tmp_path)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "alert"] == [alerts[0][len("alert: ") :]]
    assert any(event["event"] == "checkpoint" and event["seconds"] > 0 for event in events)
    report = (folder / "report.md").read_text()
    assert f": {alerts[0][len('alert: ') :]}" in report.partition("## Alerts")[2]
    assert "| training process, MB |" in report
    with open(folder / "system.csv", newline="") as file:
        samples = list(csv.DictReader(file))
    assert len(samples) >= 2
    assert all(float(sample["host_mb"]) > 10 for sample in samples)


def test_watching_changes_no_loss(tmp_path) -> None:
    found = []
    for seconds in ("0", "0.01"):
        words = (*TABULAR, "--monitor.system_every_seconds", seconds, "--training.max_steps", "60")
        assert run(render(workload="tabular"), "train", *words, cwd=tmp_path / seconds).code == 0
        found.append(losses(tmp_path / seconds))
        assert (newest_run(tmp_path / seconds) / "system.csv").exists() == (seconds != "0")
    assert found[0] == found[1]


# ---- samples ----


class Sensor(Exception):
    pass


def fake_nvml(**more) -> SimpleNamespace:
    def missing(handle):
        raise Sensor

    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=42),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3 << 30, total=8 << 30),
        "nvmlDeviceGetPowerUsage": lambda handle: 250_000,
        "nvmlDeviceGetEnforcedPowerLimit": missing,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1200,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "NVML_CLOCK_SM": 1,
        "NVMLError": Sensor,
    }
    return SimpleNamespace(**known | more)


@pytest.fixture
def gpu(monkeypatch):
    stats = {
        "allocated_bytes.all.current": 5 << 20,
        "reserved_bytes.all.current": 6 << 20,
        "num_alloc_retries": 7,
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0123-4567"))
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())


def test_what_a_gpu_says(gpu, tmp_path):
    watched = system.System(tmp_path, CUDA, 0)
    assert watched._nvml._handle == "GPU-0123-4567"
    sample = watched.sample()
    expected = {
        "gpu_percent": 42,
        "gpu_memory_mb": 3072,
        "gpu_memory_total_mb": 8192,
        "power_w": 250,
        "clock_mhz": 1200,
        "clock_max_mhz": 1980,
        "allocated_mb": 5,
        "reserved_mb": 6,
        "alloc_retries": 7,
    }
    assert {name: sample[name] for name in expected} == expected
    assert "power_limit_w" not in sample, "a sensor that the card has not"
    assert set(sample) <= set(system.COLUMNS)
    assert watched.means()["gpu_percent"] == 42
    assert watched.means() == {}


@pytest.mark.parametrize("fault", [None, fake_nvml(nvmlInit=lambda: 1 / 0)])
def test_without_nvml_the_rest_is_sampled(gpu, tmp_path, monkeypatch, fault):
    monkeypatch.setitem(sys.modules, "pynvml", fault)  # None: not installed
    sample = system.System(tmp_path, CUDA, 0).sample()
    assert "gpu_percent" not in sample
    assert sample["allocated_mb"] == 5


def test_a_thread_writes_rows_and_ends(tmp_path):
    watched = system.System(tmp_path, torch.device("cpu"), 0.01)
    end = time.monotonic() + 20
    while len(watched.samples) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    watched.close()
    assert not watched._thread.is_alive()
    with open(tmp_path / "system.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert list(rows[0]) == list(system.COLUMNS)


def test_a_sample_costs_less_than_half_a_percent(tmp_path):
    """Processor time against the default interval: the thread takes it from the loop."""
    watched = system.System(tmp_path, torch.device("cpu"), 0)
    begun = time.process_time()
    for _ in range(50):
        watched.write(watched.sample())
    assert (time.process_time() - begun) / 50 < 0.005 * SETTINGS.monitor.system_every_seconds


@pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read from /proc")
def test_a_worker_that_has_just_ended_is_no_error():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it is dead, and still in the table of processes
    with pytest.raises(ValueError, match="invalid literal"):
        system.anonymous_mb(child)
    os.waitpid(child, 0)
    assert system.anonymous_mb(os.getpid()) > 10


# ---- memory that grows ----


def test_growth_between_two_looks(monkeypatch):
    held = {"the training process": 500.0, "loader worker 7": 100.0}
    monkeypatch.setattr(system, "host_memory", lambda: dict(held))
    leaks = system.Leaks(torch.device("cpu"))
    assert leaks.grown() == []
    held["loader worker 7"] += 99
    assert leaks.grown() == []
    held["loader worker 7"] += 101
    held["loader worker 8"] = 900.0  # a new one
    assert leaks.grown() == ["loader worker 7 grew by 101 MB in an epoch, to 300 MB"]
    assert leaks.grown() == []


def test_memory_on_the_gpu_counts(monkeypatch):
    held = [1 << 30]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    leaks = system.Leaks(CUDA)
    leaks.grown()
    held[0] += 200 << 20
    assert any("GPU memory in use grew by 200 MB" in line for line in leaks.grown())


def hoarding_worker() -> None:
    from my_training.engine.loader import Reader

    read, hoard = Reader.__getitem__, []

    def keep(self, work):
        hoard.append(b"x" * (3 << 20))
        return read(self, work)

    Reader.__getitem__ = keep


@pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read from /proc")
def test_a_worker_that_grows_is_named(tmp_path) -> None:
    words = (*TABULAR, "--data.num_workers", "2", "--data.batch_size", "160", "--training.epochs", "3")
    project = render(workload="tabular", loader="dataloader")
    result = run(project, "train", *words, cwd=tmp_path, before=hoarding_worker)
    assert result.code == 0, result.err
    alerts = [line for line in result.out.splitlines() if line.startswith("alert: memory: ")]
    assert len(alerts) == 2, result.out
    assert all("loader worker " in line and " MB in an epoch" in line for line in alerts)


# ---- the page ----


def test_the_page_says_what_there_is(tmp_path) -> None:
    page = REPOSITORY / "docs/monitor.md"
    for words in documented(page):
        assert run(render(workload="tabular"), *words, cwd=tmp_path).code == 0
    text = page.read_text(encoding="utf-8")
    for column in system.COLUMNS[1:]:
        assert f"`{column}`" in text
    assert f"under {system.BUSY:.0%}".replace("%", " %") in text
    assert f"under {system.ROOF:.0%}".replace("%", " %") in text


def full(verb: str, cuda: bool = True) -> Callable[[], None]:
    """Memory that ends while the model is moved to its device, or under the batches of another verb."""

    def put() -> None:
        torch.cuda.mem_get_info = lambda *_: (1 << 30, 8 << 30)  # type: ignore[assignment]
        torch.cuda.get_device_name = lambda *_: "a small GPU"  # type: ignore[assignment]
        assemble = importlib.import_module(f"{PACKAGE}.assemble")
        build = assemble.build_model

        def too_large(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("CUDA") if cuda else RuntimeError("can't allocate memory: 37 GB")

        def made(*given: Any) -> Any:
            model = build(*given)
            setattr(model, "to" if verb == "train" else "forward", too_large)
            return model

        assemble.build_model = made

    return put


def test_memory_that_ends_is_one_line_anywhere(tmp_path: Path) -> None:
    project = render(workload="tabular")
    words = ("train", *TABULAR, "--training.max_steps", "2")
    one_error(run(project, *words, cwd=tmp_path, before=full("train")), "out of GPU memory", "batch_size")
    one_error(run(project, *words, cwd=tmp_path, before=full("train", False)), "out of memory", "batch_size")
    assert not list(tmp_path.glob("runs/*")), "nothing is left of it"
    assert run(project, *words, cwd=tmp_path).code == 0
    for cuda, what in ((True, "out of GPU memory"), (False, "out of memory")):
        evaluated = run(project, "evaluate", cwd=tmp_path, before=full("evaluate", cuda))
        one_error(evaluated, what, "evaluation.batch_size")
