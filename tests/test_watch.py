"""Alerts while a run trains, and the hook `watch`: samples, causes and remedies, memory that
grows."""

import csv
import importlib
import json
import sys
import time
from collections.abc import Callable
from shlex import split
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from importing import imported
from rendering import render
from running import PACKAGE, check_run, losses, newest_run, one_error, run
from torch import nn
from variants import choices

WATCH = {"extras": ["watch"]}
watch = imported(render(**WATCH), "hooks.watch")
alerts = imported(render(**WATCH), "hooks.alerts")
SETTINGS = imported(render(**WATCH), "config").load()
CUDA = torch.device("cuda", 0)
TABULAR = ("--model.width", "32", "--data.batch_size", "128", "--monitor.every_steps", "10")


# ---- alerts ----


@pytest.mark.parametrize(
    ("waits", "roof", "means", "kind", "says"),
    [
        (0.02, 0.4, {"gpu_percent": 95.0}, None, ""),
        (0.6, 1.0, {}, None, ""),  # the monitor has said it
        (0.6, 0.05, {"gpu_percent": 40.0, "cpu_percent": 80.0}, None, ""),
        (0.6, 1.0, {"gpu_percent": 40.0, "cpu_percent": 99.0}, "busy cores", "GPU utilization 40%"),
        (0.01, 1.0, {"gpu_percent": 40.0, "process_percent": 99.0}, "launch-bound", "compile"),
        (0.01, 1.0, {"gpu_percent": 40.0}, "waiting", "monitor.every_steps (50)"),
        (0.01, 0.04, {"gpu_percent": 99.0}, "small kernels", "4.0% of the roofline"),
        (0.01, 0.04, {}, "small kernels", "4.0% of the roofline"),
        (0.01, 0.11, {"gpu_percent": 71.0}, None, ""),
    ],
)
def test_a_badly_used_device_gets_cause_and_remedy(waits, roof, means, kind, says):
    judged = watch.judge(waits, roof, means, SETTINGS)
    assert (judged[0] if judged else None) == kind
    assert says in (judged[1] if judged else "")
    assert watch.WAITS == alerts.WAIT_FRACTION, "no case is left to neither"


def test_waiting_for_data_is_judged_over_a_stretch():
    """Needs neither NVML nor `watch`; the first row compiles and fills caches, and does not
    count."""
    said: list[str] = []
    log = SimpleNamespace(alert=lambda step, kind, text: said.append(text))
    loader = SimpleNamespace(workers=4)
    run = SimpleNamespace(log=log, loader=loader, settings=SETTINGS, accumulation=1, record=None)
    run.meter = SimpleNamespace(num_steps=1)
    hook = alerts.Hook()

    def step(number, seconds, waited):
        run.step = number
        record = {"step_ms": 1000 * seconds, "data_wait_fraction": waited / seconds}
        hook.before_record(run, record)
        run.record = record
        return said

    assert not step(1, 60, 60), "the first steps fill caches"
    assert not step(2, 9, 2), "too short"
    assert not step(3, 9, 0.5), "2.5 of 18 s are few"
    (text,) = step(4, 9, 3)
    assert text.startswith(
        "input-bound: the loop waits for data 20% of the time: raise data.batch_"
    )
    assert "or data.num_workers (4)" in text
    loader.workers = None
    assert "num_workers" not in step(5, 10, 9)[-1]


def slow_loader() -> None:
    from my_training.engine.data.loader import Loader

    epoch = Loader.epoch
    clock = time.perf_counter
    late = [0]

    def slow(self, *words):
        for batch in epoch(self, *words):
            late[0] += 1  # second, by the clock that all read
            yield batch

    time.perf_counter = lambda: clock() + late[0]

    Loader.epoch = slow


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_slow_loader_is_told_and_reported_once(framework, tmp_path):
    """Once, though the hook looks at the machine, too."""
    words = (*TABULAR, "--watch.every_seconds", "0.01", "--training.max_steps", "100")
    project = render(workload="tabular", framework=framework, **WATCH)
    result = check_run(project, "train", *words, cwd=tmp_path, before=slow_loader)
    (alert,) = [line for line in result.out.splitlines() if line.startswith("alert: ")]
    assert alert.startswith("alert: input-bound: the loop waits for data ")
    folder = newest_run(tmp_path)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    texts = [event["text"] for event in events if event["event"] == "alert"]
    assert texts == [alert.removeprefix("alert: ")]
    assert any(event["event"] == "checkpoint" and event["seconds"] > 0 for event in events)
    report = (folder / "report.md").read_text()
    assert f": {texts[0]}\n" in report
    assert "| training process, MB |" in report
    with open(folder / "system.csv", newline="") as file:
        samples = list(csv.DictReader(file))
    assert len(samples) >= 2
    assert all(float(sample["host_mb"]) > 10 for sample in samples)


def test_watching_changes_no_loss(tmp_path):
    project = render(workload="tabular", **WATCH)
    for seconds in ("0", "0.01"):
        words = (*TABULAR, "--watch.every_seconds", seconds, "--training.max_steps", "60")
        check_run(project, "train", *words, cwd=tmp_path / seconds)
        assert (newest_run(tmp_path / seconds) / "system.csv").exists() == (seconds != "0")
    assert losses(tmp_path / "0") == losses(tmp_path / "0.01")


# ---- samples ----


class Sensor(Exception):
    pass


def fake_nvml(**more) -> SimpleNamespace:
    def missing(handle):
        raise Sensor

    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
            gpu={"GPU-0123-4567": 42}[handle]
        ),
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
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0123-4567")
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())


def test_what_a_gpu_says(gpu, tmp_path):
    watched = watch.Samples(tmp_path, CUDA, 0)
    watched.roof_percent = 51.0
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
        "roof_percent": 51,
    }
    assert {name: sample[name] for name in expected} == expected
    assert "power_limit_w" not in sample, "a sensor that the card has not"
    assert set(sample) <= {"time", *watch.COLUMNS}
    assert watched.means()["gpu_percent"] == 42
    assert watched.means() == {}


@pytest.mark.parametrize("fault", [None, fake_nvml(nvmlInit=lambda: 1 / 0)])
def test_without_nvml_the_rest_is_sampled(gpu, tmp_path, monkeypatch, fault):
    monkeypatch.setitem(sys.modules, "pynvml", fault)  # None: not installed
    watched = watch.Samples(tmp_path, CUDA, 0)
    assert ("pip install nvidia-ml-py" if fault is None else "division by zero") in watched.unseen
    sample = watched.sample()
    assert "gpu_percent" not in sample
    assert sample["allocated_mb"] == 5


# ---- memory that grows ----


def hoarding_worker() -> None:
    from my_training.engine.data.loader import Reader

    read = Reader.__getitem__
    hoard = []

    def keep(self, work):
        hoard.append(b"x" * (3 << 20))
        return read(self, work)

    Reader.__getitem__ = keep


@pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read from /proc")
def test_a_worker_that_grows_is_named(tmp_path):
    words = split("--data.num_workers 2 --data.batch_size 160 --training.epochs 3")
    project = render(workload="tabular", loader="dataloader", **WATCH)
    result = check_run(project, "train", *TABULAR, *words, cwd=tmp_path, before=hoarding_worker)
    alerts = [line for line in result.out.splitlines() if line.startswith("alert: memory: ")]
    assert len(alerts) == 2, result.out
    assert all("loader worker " in line and " MB since the second epoch" in line for line in alerts)


# ---- the roof ----


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, batch: dict) -> Any:
        interfaces = imported(render(**WATCH), "engine.interfaces")
        return interfaces.Output(self.layer(batch["x"]).square().mean(), torch.tensor(1.0))


def test_the_fraction_of_the_roofline(monkeypatch):
    """Of a card of the table, counted from the first batch's shapes; the random numbers of training
    stay."""
    gpus = imported(render(**WATCH), "engine.compute.gpus")
    table = imported(render(**WATCH), "engine.compute.gpu_table").table()
    model = imported(render(**WATCH), "model")
    costs = imported(render(**WATCH), "measure.costs")
    card = gpus.Card("NVIDIA H100 80GB HBM3", (9, 0), 79.0, 132)
    monkeypatch.setattr(gpus, "this_card", lambda: card)
    monkeypatch.setattr(model, "build_model", lambda *_: Toy())
    project = SimpleNamespace(settings=None, store=SimpleNamespace(facts={}))
    project.precision = SimpleNamespace(name="bf16")
    batch = {"x": torch.empty(128, 32), "index": torch.empty(128, dtype=torch.int64)}
    state = torch.get_rng_state()
    roof = watch.roof_of(SimpleNamespace(project=project), batch)
    assert torch.equal(torch.get_rng_state(), state)
    seconds, *_ = costs.card(table["h100"], "bf16").step(costs.count(Toy, batch, "bf16"))
    assert roof == pytest.approx(seconds / 128)
    monkeypatch.setattr(gpus, "this_card", lambda: card._replace(name="NVIDIA X"))
    assert watch.roof_of(SimpleNamespace(project=project), batch) == 0


# ---- the page ----


def test_how_the_machine_was_used(tmp_path):
    lines = ["time,gpu_percent,roof_percent,power_w,host_mb", "1,80,51,,100", "2,90,51,,300"]
    lines += ["3,10,51,,200", "4,cut"]
    (tmp_path / "system.csv").write_text("\n".join(lines))
    page = "\n".join(watch.report_lines(tmp_path))
    for expected in (
        "## Use of the machine\n\n|  | median | lowest | highest |",
        "| GPU busy, % | 80 | 10 | 90 |",
        "| of the card's roofline, % | 51 | 51 | 51 |",
        "| training process, MB | 200 | 100 | 300 |",
    ):
        assert expected in page
    assert "power, W" not in page
    assert watch.report_lines(tmp_path / "nowhere") == []


def full(command: str, error: Exception) -> Callable[[], None]:
    """Memory that ends while the model is moved to its device, or under the batches of another
    command."""

    def put() -> None:
        assemble = importlib.import_module(f"{PACKAGE}.assemble")
        build = assemble.build_model

        def too_large(*_: object, **__: object) -> None:
            raise error

        def made(*given: Any) -> Any:
            model = build(*given)
            setattr(model, "to" if command == "train" else "forward", too_large)
            return model

        assemble.build_model = made

    return put


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("CUDA"), "out of GPU memory"),
        (RuntimeError("can't allocate memory: 37 GB"), "out of memory"),
    ],
)
def test_memory_that_ends_is_one_line_anywhere(error, says, tmp_path):
    project = render(workload="tabular")
    words = ("train", *TABULAR, "--training.max_steps", "2")
    refused = run(project, *words, cwd=tmp_path, before=full("train", error))
    one_error(refused, says, "data.batch_size")
    assert not list(tmp_path.glob("runs/*")), "nothing is left of it"
    check_run(project, *words, cwd=tmp_path)
    refused = run(project, "evaluate", cwd=tmp_path, before=full("evaluate", error))
    one_error(refused, says, "evaluation.batch_size")
