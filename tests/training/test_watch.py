"""Alerts while a run trains, and the hook `watch`: samples, causes and remedies, memory that
grows."""

import csv
import re
import sys
import time
from collections import Counter
from shlex import split
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from importing import imported
from rendering import render
from running import check_run, newest_run, one_error, report_of, rows, run
from torch import nn
from variants import choices

WATCH = {"extras": ["watch"]}
watch = imported(render(**WATCH), "hooks.watch")
alerts = imported(render(**WATCH), "hooks.alerts")
SETTINGS = imported(render(**WATCH), "settings").Settings.load()
CUDA = torch.device("cuda", 0)
TABULAR = ("--model.width", "32", "--data.batch_size", "128", "--monitor.every_steps", "10")


# ---- alerts ----


@pytest.mark.parametrize(
    ("waits", "roof", "means", "kind", "says"),
    [
        (0.02, 0.4, {"gpu_percent": 95.0}, None, ""),
        (0.6, 1.0, {}, None, ""),  # the monitor has said it
        (0.6, 1.0, {"gpu_percent": 40.0, "cpu_percent": 99.0}, "busy cores", "GPU utilization 40%"),
        (0.01, 1.0, {"gpu_percent": 40.0, "process_percent": 99.0}, "launch-bound", "compile"),
        (0.01, 1.0, {"gpu_percent": 40.0}, "waiting", "monitor.every_steps (50)"),
        (0.01, 0.04, {}, "small kernels", "4.0% of the roofline"),
        (0.01, 0.11, {"gpu_percent": 71.0}, None, ""),
    ],
)
def test_a_badly_used_device_gets_cause_and_remedy(waits, roof, means, kind, says):
    judged = watch.judge(waits, roof, means, SETTINGS)
    assert (judged[0] if judged else None) == kind
    assert says in (judged[1] if judged else "")
    assert alerts.TIME_LIMITS["data wait"][0] == watch.WAITS, "no case is left to neither"


def test_a_kind_of_time_that_is_out_of_proportion_is_judged_over_a_stretch():
    """Needs neither NVML nor `watch`."""
    run = MagicMock(settings=SETTINGS, num_steps=1000)
    run.meter.num_steps = 1
    run.loader.describe.return_value = [{"state": "memmap", "why": "no workers"}]
    for kind, says in (
        ("data wait", r"raise data.batch_size \(64\), or move .* \(loader memmap, no workers\)"),
        ("validation", r"raise evaluation.every_steps .* lower evaluation.fraction \(1\)"),
        ("saving", "raise checkpoint.every_steps"),
        ("optimizer", "training.gradient_accumulation_steps"),
        ("Python", "hooks/"),
    ):
        run.log.alert.reset_mock()
        limit, _ = alerts.TIME_LIMITS[kind]
        alerts_so_far = []
        # Too short, then below the limit, then above it.
        for seconds, fraction in ((9, 0.9), (100, limit - 0.02), (100, limit + 0.02)):
            rest = (1 - fraction) * seconds
            run.meter.times = Counter({kind: fraction * seconds, "forward/backward": rest})
            alerts.Hook().before_record(run, {})
            alerts_so_far.append(run.log.alert.call_count)
        assert alerts_so_far == [0, 0, 1]
        _, name, line = run.log.alert.call_args.args
        assert name == kind
        assert re.fullmatch(f"{kind} takes {limit + 0.02:.0%} of the time: .*{says}.*", line)


def slow_loader():
    from my_training.engine.loading.loader import Loader

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
    assert alert.startswith("alert: data wait takes ")
    report = report_of(tmp_path)
    assert f": {alert.removeprefix('alert: ')}\n" in report
    assert "| training process, MB |" in report
    with open(newest_run(tmp_path) / "system.csv", newline="") as file:
        assert all(float(sample["host_mb"]) > 10 for sample in csv.DictReader(file))


# ---- where the time of a run goes ----

COSTS = {"data wait": 0.25, "forward/backward": 1.0, "optimizer": 0.5, "saving": 2.0}
VALIDATION = 16.0  # an evaluation has one batch


def costs():
    """By the clock that all read, each part of a run takes as long as in `COSTS`."""
    from my_training import model
    from my_training.dataset import Samples
    from my_training.engine.training.checkpoint import Checkpoint

    now = [0.0]
    time.perf_counter = lambda: now[0]

    def takes(owner, name, seconds):
        function = getattr(owner, name)

        def slow(self, *words, **named):
            now[0] += seconds(self)
            return function(self, *words, **named)

        setattr(owner, name, slow)

    def forward(model):
        return COSTS["forward/backward"] if model.training else VALIDATION

    takes(Samples, "batch", lambda samples: COSTS["data wait"] if samples.training else 0)
    takes(model.Regression, "forward", forward)
    takes(torch.optim.AdamW, "step", lambda _: COSTS["optimizer"])
    takes(Checkpoint, "save", lambda _: COSTS["saving"])


def expected(steps, first_steps, evaluations, saves):
    """steps: without the first ones, each of which has a dry run before it."""
    of_a_step = {kind: COSTS[kind] for kind in ("data wait", "forward/backward", "optimizer")}
    times = {kind: steps * seconds for kind, seconds in of_a_step.items()}
    of_a_first_step = 2 * sum(of_a_step.values()) - COSTS["optimizer"]
    times["compiling and first step"] = first_steps * of_a_first_step
    times["validation"] = evaluations * VALIDATION
    times["saving"] = saves * COSTS["saving"]
    return times


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_a_run_says_where_its_time_went_and_a_resume_adds_to_it(framework, accumulation, tmp_path):
    project = render(workload="tabular", framework=framework)
    words = "--data.batch_size 64 --training.max_steps 8 --evaluation.every_steps 4"
    words += f" --monitor.every_steps 2 --training.gradient_accumulation_steps {accumulation}"
    words += " --evaluation.batch_size 4096 --checkpoint.every_steps 100"
    stopped = check_run(
        project, "train", *split(words), "--max-steps", "6", cwd=tmp_path, before=costs
    )
    in_two = check_run(project, "train", "--resume", cwd=tmp_path, before=costs)
    events = rows(tmp_path, "events")
    of_saves = {event["step"]: event["times"] for event in events if "times" in event}

    for step, numbers in ((6, (5, 1, 1, 2)), (8, (6, 2, 2, 3))):
        wanted = expected(*numbers)
        for kind in ("data wait", "forward/backward"):
            wanted[kind] *= accumulation
        wanted["compiling and first step"] += (accumulation - 1) * numbers[1] * 1.25
        measured = {kind: seconds for kind, seconds in of_saves[step].items() if seconds}
        assert measured == pytest.approx(wanted)

    total = sum(of_saves[8].values())
    for done, times in ((stopped, of_saves[6]), (in_two, of_saves[8])):
        (line,) = [line for line in done.out.splitlines() if line.startswith("time ")]
        assert f": validation {times['validation'] / sum(times.values()):.0%}, " in line
    assert f"- {line.replace('time ', 'time: ')}\n" in report_of(tmp_path)
    assert total > 2 * VALIDATION
    (alert,) = [line for line in stopped.out.splitlines() if line.startswith("alert: ")]
    assert alert.startswith("alert: validation takes ")

    # The steps that are left, and the evaluation with its checkpoint that is left.
    records = [record for record in rows(tmp_path) if "eta_s" in record]
    of_a_step = accumulation * 1.25 + 0.5
    assert [record["step"] for record in records] == [2, 4, 6]
    wanted = [6 * of_a_step, 4 * of_a_step, 2 * of_a_step + VALIDATION + COSTS["saving"]]
    assert [record["eta_s"] for record in records] == pytest.approx(wanted)


# ---- samples ----


@pytest.fixture
def nvml(monkeypatch):
    stats = {"allocated_bytes.all.current": 5 << 20}
    card = SimpleNamespace(uuid="0123-4567")
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    nvml = MagicMock(NVMLError=LookupError)
    nvml.nvmlDeviceGetUtilizationRates.return_value.gpu = 42
    nvml.nvmlDeviceGetMemoryInfo.return_value.configure_mock(used=3 << 30, total=8 << 30)
    nvml.nvmlDeviceGetPowerUsage.return_value = 250_000
    nvml.nvmlDeviceGetEnforcedPowerLimit.side_effect = LookupError
    nvml.nvmlDeviceGetClockInfo.return_value = 1200
    nvml.nvmlDeviceGetMaxClockInfo.return_value = 1980
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_what_a_gpu_says(nvml, tmp_path):
    watched = watch.Samples(tmp_path, CUDA, 0)
    watched.roof_percent = 51.0
    sample = watched.sample()
    nvml.nvmlDeviceGetHandleByUUID.assert_called_with("GPU-0123-4567")
    expected = {
        "gpu_percent": 42,
        "gpu_memory_mb": 3072,
        "gpu_memory_total_mb": 8192,
        "power_w": 250,
        "clock_mhz": 1200,
        "allocated_mb": 5,
        "roof_percent": 51,
    }
    assert {name: sample[name] for name in expected} == expected
    assert "power_limit_w" not in sample, "a sensor that the card has not"
    assert watched.means()["gpu_percent"] == 42


@pytest.mark.parametrize("fault", ["not installed", "no driver"])
def test_without_nvml_the_rest_is_sampled(fault, nvml, tmp_path, monkeypatch):
    nvml.nvmlInit.side_effect = OSError(fault)
    if fault == "not installed":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    watched = watch.Samples(tmp_path, CUDA, 0)
    assert fault in watched.unseen
    sample = watched.sample()
    assert "gpu_percent" not in sample
    assert sample["allocated_mb"] == 5


# ---- memory that grows ----


def hoarding_worker():
    from my_training.engine.loading.loader import Reader

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


class Toy(nn.Linear):
    def forward(self, batch):
        interfaces = imported(render(**WATCH), "engine.interfaces")
        loss = super().forward(batch["x"]).square().mean()
        return interfaces.Output(loss, torch.tensor(1.0))


def test_the_fraction_of_the_roofline(monkeypatch):
    """Of a card of the table, counted from the first batch's shapes; the random numbers of training
    stay."""
    gpus = imported(render(**WATCH), "engine.compute.gpus")
    model = imported(render(**WATCH), "model")
    card = gpus.Card("NVIDIA H100 80GB HBM3", (9, 0), 79.0, 132)
    monkeypatch.setattr(model, "build_model", lambda *_: Toy(32, 16))
    project = SimpleNamespace(settings=None, store=SimpleNamespace(facts={}))
    project.precision = SimpleNamespace(name="bf16")
    batch = {"x": torch.empty(128, 32), "index": torch.empty(128, dtype=torch.int64)}
    state = torch.get_rng_state()
    for name, is_known in ((card.name, True), ("NVIDIA X", False)):
        monkeypatch.setattr(gpus, "this_card", lambda name=name: card._replace(name=name))
        roof = watch.roof_of(SimpleNamespace(project=project), batch)
        assert (0 < roof < 1e-6) == is_known
    assert torch.equal(torch.get_rng_state(), state)


class OfBatch(nn.Linear):
    def forward(self, batch):
        return super().forward(batch["x"])


def test_the_first_batch_is_caught_where_the_whole_model_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(watch, "Samples", MagicMock())
    monkeypatch.setattr(watch, "Leaks", MagicMock())
    model = OfBatch(32, 16)
    model.compile(backend="eager", fullgraph=True)
    project = SimpleNamespace(settings=SETTINGS, model=model, device=CUDA)
    project.distributed = SimpleNamespace(is_main=True)
    hook = watch.Hook()
    hook.start(MagicMock(project=project, batches_of=lambda step: (0, 0, 1)))
    for rows_of_batch in (8, 4):
        model({"x": torch.randn(rows_of_batch, 32)}).sum().backward()
    assert {name: shape.shape for name, shape in hook.shapes.items()} == {"x": (8, 32)}
    assert hook.shapes["x"].is_meta


# ---- the page ----


def test_how_the_machine_was_used(tmp_path):
    lines = ["time,gpu_percent,roof_percent,power_w,host_mb", "1,80,51,,100", "2,90,51,,300"]
    lines += ["3,10,51,,200", "4,cut"]
    (tmp_path / "system.csv").write_text("\n".join(lines))
    page = watch.report_lines(tmp_path)
    assert "| GPU busy, % | 80 | 10 | 90 |" in page
    assert "| training process, MB | 200 | 100 | 300 |" in page
    assert "power, W" not in "".join(page)
    assert watch.report_lines(tmp_path / "nowhere") == []


def full(error):
    """Memory that ends in the first layer."""

    def put():
        def too_large(*_):
            raise error

        nn.Linear.forward = too_large  # type: ignore[assignment,method-assign]

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
    refused = run(project, *words, cwd=tmp_path, before=full(error))
    one_error(refused, says, "data.batch_size")
    assert not list(tmp_path.glob("runs/*")), "nothing is left of it"
    check_run(project, *words, cwd=tmp_path)
    refused = run(project, "evaluate", cwd=tmp_path, before=full(error))
    one_error(refused, says, "evaluation.batch_size")
