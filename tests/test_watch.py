"""Alerts while a run trains, and the hook `watch`: samples, causes and remedies, memory that grows."""

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
from running import PACKAGE, documented, losses, newest_run, one_error, run, until
from torch import nn
from variants import choices

WATCH = {"extras": ["watch"]}
watch = imported(render(**WATCH), "hooks.watch")
alerts = imported(render(**WATCH), "engine.alerts")
monitor = imported(render(**WATCH), "engine.monitor")

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
        (0.6, 1.0, {"gpu_percent": 40.0, "cpu_percent": 99.0}, "busy cores", "GPU utilisation 40%"),
        (
            0.01,
            1.0,
            {"gpu_percent": 40.0, "process_percent": 99.0},
            "launch-bound",
            "compile.enabled",
        ),
        (
            0.01,
            1.0,
            {"gpu_percent": 40.0, "process_percent": 20.0},
            "waiting",
            "monitor.every_steps (50)",
        ),
        (0.01, 0.04, {"gpu_percent": 99.0}, "small kernels", "4.0% of the roof"),
        (0.01, 0.04, {}, "small kernels", "4.0% of the roof"),
        (0.01, 0.11, {"gpu_percent": 71.0}, None, ""),
    ],
)
def test_a_badly_used_device_gets_cause_and_remedy(waits, roof, means, kind, says):
    found = watch.judge(waits, roof, means, SETTINGS)
    assert (found[0] if found else None) == kind
    assert says in (found[1] if found else "")
    assert watch.WAITS == alerts.WAIT_FRACTION, "no case is left to neither"


def monitor_of(folder, stats: dict) -> Any:
    """A monitor of 9 steps whose loader has these `stats`."""
    options = SimpleNamespace(monitor=SimpleNamespace(every_steps=1, progress=False))
    ranks = SimpleNamespace(is_main=True, world=1, sum=lambda x: x, together=lambda work: work())
    project = SimpleNamespace(settings=options, distributed=ranks, device=torch.device("cpu"))
    project.precision = SimpleNamespace(scaler=None)
    tracker = SimpleNamespace(open=lambda step: "", log=lambda *_: None, close=lambda: None)
    order = SimpleNamespace(count=64, slots=8)
    loader = type(
        "Loader", (), {"order": order, "__len__": lambda self: 8, "stats": lambda self: stats}
    )()
    watched = monitor.Monitor(folder, project, tracker, loader)
    watched.start(0, 9)
    return watched


def test_a_step_has_the_mean_loss_of_all_its_targets(tmp_path):
    watched = monitor_of(tmp_path, {})
    losses = [(torch.tensor(2.0), torch.tensor(6.0)), (torch.tensor(4.0), torch.tensor(2.0))]
    watched.note(1, 0, (0, 2), losses)
    watched.log(1, 0, torch.tensor(1.0), 0.1)
    assert watched.row["loss"] == (2.0 * 6 + 4.0 * 2) / 8
    watched.close()


def test_a_line_has_what_a_model_measures_short_names_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    watched = monitor_of(tmp_path, {})
    one = torch.tensor(1.0)
    watched.note(1, 0, (0, 1), [(one, one)])
    names = ["penalty_of_the_second_term", "penalty", "kl"]
    watched.keep({name: (torch.tensor(6.0), torch.tensor(4.0)) for name in names})
    watched.log(1, 0, one, 0.1)
    line = capsys.readouterr().out
    assert "loss 1.00000  kl 1.5  penalty 1.5  …  lr 0.1" in line
    watched.close()


@pytest.mark.parametrize(
    ("workers", "remedy"), [(4, "raise data.num_workers (4), then"), (None, ": a faster disk")]
)
def test_waiting_for_data_is_judged_over_a_stretch(workers, remedy, tmp_path, capsys):
    """Needs neither NVML nor the hook; the first row compiles and fills caches, and does not count."""
    watched, one = (
        monitor_of(tmp_path, {} if workers is None else {"workers": workers}),
        torch.tensor(1.0),
    )

    def step(number: int, seconds: float, waited: float) -> str:
        watched.note(number, 0, (number - 1, number), [(one, one)])
        watched._start_time, watched._waited = time.perf_counter() - seconds, waited
        watched.log(number, 0, one, 0.1)
        return capsys.readouterr().out.partition("alert: ")[2]

    assert not step(1, 60, 60)
    assert not step(2, 9, 2), "too short"
    assert not step(3, 9, 0.5), "2.5 of 18 s are few"
    assert not step(4, 9, 0)
    said = step(5, 9, 3)
    assert said.startswith("input-bound: the loop waits for data 17% of the time: "), said
    assert remedy in said
    assert not step(6, 60, 60), "once is enough"
    assert watched.row["step"] == 6
    assert watched.row["epoch"] == 1, "counted from 1"
    watched.close()
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 7


def slow_loader() -> None:
    from my_training.engine.loader import Loader

    epoch, clock, late = Loader.epoch, time.perf_counter, [0]

    def slow(self, *words):
        for batch in epoch(self, *words):
            late[0] += 1  # second, by the clock that all read
            yield batch

    time.perf_counter = lambda: clock() + late[0]

    Loader.epoch = slow


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_slow_loader_is_told_and_reported_once(framework: str, tmp_path) -> None:
    """Once, though the hook looks at the machine, too."""
    words = (*TABULAR, "--watch.every_seconds", "0.01", "--training.max_steps", "100")
    project = render(workload="tabular", framework=framework, **WATCH)
    result = run(project, "train", *words, cwd=tmp_path, before=slow_loader)
    assert result.code == 0, result.err
    alerts = [line for line in result.out.splitlines() if line.startswith("alert: ")]
    assert len(alerts) == 1, result.out
    assert alerts[0].startswith("alert: input-bound: the loop waits for data ")
    folder = newest_run(tmp_path)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "alert"] == [
        alerts[0][len("alert: ") :]
    ]
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
        words = (*TABULAR, "--watch.every_seconds", seconds, "--training.max_steps", "60")
        assert (
            run(render(workload="tabular", **WATCH), "train", *words, cwd=tmp_path / seconds).code
            == 0
        )
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
    sample = watch.Samples(tmp_path, CUDA, 0).sample()
    assert "gpu_percent" not in sample
    assert sample["allocated_mb"] == 5


def test_a_thread_writes_rows_and_ends(tmp_path):
    watched = watch.Samples(tmp_path, torch.device("cpu"), 0.01)
    until(lambda: len(watched.taken) >= 3, "three samples")
    watched.close()
    assert not watched._thread.is_alive()
    with open(tmp_path / "system.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert list(rows[0]) == ["time", *watch.COLUMNS]


def test_a_sample_asks_the_kernel_for_a_few_files_only(tmp_path, monkeypatch):
    """The thread takes its time from the loop: one sample looks at no other process than its own."""
    watched, read, asked = watch.Samples(tmp_path, torch.device("cpu"), 0), Path.read_text, []
    monkeypatch.setattr(
        Path, "read_text", lambda path, *more: (asked.append(path), read(path, *more))[1]
    )
    watched.write(watched.sample())
    own = f"/proc/{os.getpid()}"
    assert len(asked) <= 4
    assert all(str(path) == "/proc/stat" or str(path).startswith(own) for path in asked)


@pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read from /proc")
def test_a_worker_that_has_just_ended_is_no_error():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(
        os.P_PID, child, os.WEXITED | os.WNOWAIT
    )  # it is dead, and still in the table of processes
    with pytest.raises(ValueError, match="invalid literal"):
        watch.anonymous_mb(child)
    os.waitpid(child, 0)
    assert watch.anonymous_mb(os.getpid()) > 10


# ---- memory that grows ----


def test_growth_between_two_looks(monkeypatch):
    held = {"the training process": 500.0, "loader worker 7": 100.0}
    monkeypatch.setattr(watch, "host_memory", lambda: dict(held))
    leaks = watch.Leaks(torch.device("cpu"))
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
    leaks = watch.Leaks(CUDA)
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
    words = (
        *TABULAR,
        "--data.num_workers",
        "2",
        "--data.batch_size",
        "160",
        "--training.epochs",
        "3",
    )
    project = render(workload="tabular", loader="dataloader", **WATCH)
    result = run(project, "train", *words, cwd=tmp_path, before=hoarding_worker)
    assert result.code == 0, result.err
    alerts = [line for line in result.out.splitlines() if line.startswith("alert: memory: ")]
    assert len(alerts) == 2, result.out
    assert all("loader worker " in line and " MB in an epoch" in line for line in alerts)


# ---- the roof ----


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, batch: dict) -> Any:
        seams = imported(render(**WATCH), "engine.seams")
        return seams.Output(self.layer(batch["x"]).square().mean(), torch.tensor(1.0))


def test_the_share_of_the_roof(monkeypatch):
    """Of a card of the table, counted from the first batch's shapes; the random numbers of training stay."""
    gpus, model = (imported(render(**WATCH), name) for name in ("engine.gpus", "model"))
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
    expected = (
        costs.card(gpus.table()["h100"], "bf16").step(costs.count(Toy, batch, "bf16"))[0] / 128
    )
    assert roof == pytest.approx(expected)
    monkeypatch.setattr(model, "build_model", lambda *_: 1 / 0)
    assert watch.roof_of(SimpleNamespace(project=project), batch) == 0, "it trains all the same"
    monkeypatch.setattr(gpus, "this_card", lambda: card._replace(name="NVIDIA X"))
    assert watch.roof_of(SimpleNamespace(project=project), batch) == 0


def test_a_first_batch_gives_its_shapes_and_no_more(tmp_path):
    model, seen = Toy(), torch.ones(8, 32)
    ranks = SimpleNamespace(is_main=True, world=2)
    project = SimpleNamespace(
        settings=SETTINGS, model=model, device=torch.device("cpu"), distributed=ranks
    )
    loud = SimpleNamespace(row=None, alert=None)
    progress = SimpleNamespace(epoch=0, step=1)
    run = SimpleNamespace(project=project, folder=tmp_path, monitor=loud, progress=progress)
    watcher = watch.Hook()
    watcher.start(run)
    watcher.catching = model.register_forward_pre_hook(watcher.catch)
    for _ in range(2):
        model({"x": seen})
    assert {name: (value.shape, value.is_meta) for name, value in watcher.shapes.items()} == {
        "x": (seen.shape, True)
    }
    assert not model._forward_pre_hooks
    watcher.shapes, watcher.roof = {}, 1e-3
    loud.row = {"step": 1, "data_wait_fraction": 0.0, "samples_per_second": 1000.0}
    watcher.after_step(run)
    watcher.close(run)
    assert watcher.samples.roof_percent == pytest.approx(50), "of two cards"


# ---- the page ----


def test_how_the_machine_was_used(tmp_path):
    lines = [
        "time,gpu_percent,roof_percent,power_w,host_mb",
        "1,80,51,,100",
        "2,90,51,,300",
        "3,10,51,,200",
        "4,cut",
    ]
    (tmp_path / "system.csv").write_text("\n".join(lines))
    page = "\n".join(watch.report(tmp_path))
    for expected in (
        "## Machine in use\n\n|  | median | lowest | highest |",
        "| GPU busy, % | 80 | 10 | 90 |",
        "| of the card's roof, % | 51 | 51 | 51 |",
        "| training process, MB | 200 | 100 | 300 |",
    ):
        assert expected in page
    assert "power, W" not in page
    assert watch.report(tmp_path / "nowhere") == []


def test_the_page_says_what_there_is(tmp_path) -> None:
    page = REPOSITORY / "docs/monitor.md"
    for words in documented(page):
        assert run(render(workload="tabular", **WATCH), *words, cwd=tmp_path).code == 0
    text = page.read_text(encoding="utf-8")
    for column in watch.COLUMNS:
        assert f"`{column}`" in text
    assert f"under {watch.BUSY:.0%}".replace("%", " %") in text
    assert f"under {watch.ROOF:.0%}".replace("%", " %") in text


def full(verb: str, cuda: bool = True) -> Callable[[], None]:
    """Memory that ends while the model is moved to its device, or under the batches of another verb."""

    def put() -> None:
        torch.cuda.mem_get_info = lambda *_: (1 << 30, 8 << 30)  # type: ignore[assignment]
        torch.cuda.get_device_name = lambda *_: "a small GPU"  # type: ignore[assignment]
        assemble = importlib.import_module(f"{PACKAGE}.assemble")
        build = assemble.build_model

        def too_large(*_: object, **__: object) -> None:
            raise (
                torch.OutOfMemoryError("CUDA")
                if cuda
                else RuntimeError("can't allocate memory: 37 GB")
            )

        def made(*given: Any) -> Any:
            model = build(*given)
            setattr(model, "to" if verb == "train" else "forward", too_large)
            return model

        assemble.build_model = made

    return put


def test_memory_that_ends_is_one_line_anywhere(tmp_path: Path) -> None:
    project = render(workload="tabular")
    words = ("train", *TABULAR, "--training.max_steps", "2")
    one_error(
        run(project, *words, cwd=tmp_path, before=full("train")), "out of GPU memory", "batch_size"
    )
    one_error(
        run(project, *words, cwd=tmp_path, before=full("train", False)),
        "out of memory",
        "batch_size",
    )
    assert not list(tmp_path.glob("runs/*")), "nothing is left of it"
    assert run(project, *words, cwd=tmp_path).code == 0
    for cuda, what in ((True, "out of GPU memory"), (False, "out of memory")):
        evaluated = run(project, "evaluate", cwd=tmp_path, before=full("evaluate", cuda))
        one_error(evaluated, what, "evaluation.batch_size")
