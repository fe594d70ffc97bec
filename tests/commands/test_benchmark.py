"""`benchmark`: which rows, what their figures mean, and that it runs for every framework."""

import importlib
import itertools
import json
import os
import random
import subprocess
import sys
from shlex import split
from statistics import mean, median

import pytest
import rendering
import torch
import yaml
from forking import forked_trials
from importing import imported
from running import PACKAGE, check_run, painted, run
from sizes import TINY
from variants import choices, gpus, name, pairwise

TWICE = (*split("--steps 2 --warmup 1 --processes 2"), *TINY["tabular"])
ONCE = split("--steps 2 --warmup 1 --processes 1")


def render(**answers):
    return rendering.render(**{"workload": "tabular", "extras": ["benchmark"]} | answers)


def measurements():
    return imported(render(), "measure.measurements")


def result(folder):
    return json.loads((folder / "benchmark_results/benchmark.json").read_text())


def command(project, folder, *words, before=None):
    """What the command leaves."""
    check_run(project, "benchmark", *words, cwd=folder, before=forked_trials(project, before))
    return result(folder)


def check_rows(folder):
    """What holds for every result of one machine without a GPU."""
    benchmark = result(folder)
    assert benchmark["complete"]
    ladder = [row for row in benchmark["rows"] if row["table"] == "cumulative"]
    assert (ladder[0]["name"], ladder[0]["precision"]) == ("everything off", "fp32")
    assert [ladder[place]["overrides"]["loader"] for place in (0, -1)] == ["plain", "own"]
    for row in benchmark["rows"]:
        assert row["step_ms"]["p10"] <= row["step_ms"]["median"] <= row["step_ms"]["p90"]
        first = next(other for other in benchmark["rows"] if other["table"] == row["table"])
        gain = row["samples_per_second"] / first["samples_per_second"]
        assert row["gain"] == pytest.approx(gain)
    for claim in benchmark["headlines"]:
        if claim["switch"] == "all" and claim["of"] == "samples_per_second":
            assert claim["measured"] == ladder[-1]["gain"]
    page = (folder / "benchmark_results/benchmark.md").read_text()
    assert all(row["name"] in page for row in benchmark["rows"])
    return benchmark


# ---- runs ----------------------------------------------------------------------------------------


def test_every_switch_is_measured(tmp_path):
    trials = forked_trials(render())
    words = ("--all", *ONCE, *TINY["tabular"])
    check_run(render(), "benchmark", *words, cwd=tmp_path, before=lambda: (trials(), painted()))
    rows = check_rows(tmp_path)["rows"]
    folder = tmp_path / "benchmark_results"
    assert "![gains](benchmark.png)" in (folder / "benchmark.md").read_text()
    assert (folder / "benchmark.png").stat().st_size > 20_000, "something is drawn"
    losses = {row["name"]: row["loss"] for row in rows}
    assert losses["without loader"] == losses["everything on"], "both loaders give the same batches"
    ladder = [row["loss"] for row in rows if row["table"] == "cumulative"]
    assert ladder == pytest.approx([ladder[0]] * len(ladder), rel=1e-3)


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_every_workload_and_framework_is_measured(answers, tmp_path):
    command(render(**answers), tmp_path, *ONCE, *TINY[answers["workload"]])
    assert len(check_rows(tmp_path)["rows"]) == 2


def test_a_wrong_row_is_flagged_and_a_right_one_is_not(tmp_path):
    def explode(optimizer, *_):
        with torch.no_grad():
            for group in optimizer.param_groups:
                torch._foreach_mul_(group["params"], 3.0)

    def fault(settings):
        if settings["reproducibility.deterministic"]:
            torch.optim.AdamW.step = explode  # type: ignore[assignment,method-assign]

    benchmark = command(render(), tmp_path, "deterministic", *TWICE, before=fault)
    flags = {row["name"]: row["flag"] for row in benchmark["rows"]}
    assert "from fp32's" in flags.pop("with deterministic")
    assert set(flags.values()) == {None}


def test_an_interrupted_benchmark_is_resumed(tmp_path):
    project = render()
    log = tmp_path / "launched"

    def stop_at_the_third(settings):
        with open(log, "a") as file:
            file.write("x")
        if log.read_text() == "xxx":
            os.kill(os.getppid(), 2)  # Ctrl-C
            raise SystemExit(1)

    before = forked_trials(project, stop_at_the_third)
    stopped = run(project, "benchmark", *TWICE, cwd=tmp_path, before=before)
    assert stopped.code == 130
    assert [row["processes"] for row in result(tmp_path)["rows"]] == [1, 1]
    check_run(project, "benchmark", *TWICE, cwd=tmp_path, before=before)
    assert len(log.read_text()) == 5, "two rows have one process, and need another"
    assert [row["processes"] for row in result(tmp_path)["rows"]] == [2, 2]
    check_run(project, "benchmark", *TWICE, "--model.width", "8", cwd=tmp_path, before=before)
    assert len(log.read_text()) == 9, "other settings are measured from the beginning"


def test_a_row_that_fails_is_named_with_the_reason(tmp_path):
    def fault(settings):
        if settings["optimizer.fused"]:
            importlib.import_module(f"{PACKAGE}.engine.training.run").Run.end_step = no_memory

    def no_memory(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")

    benchmark = command(render(), tmp_path, *ONCE, *TINY["tabular"], before=fault)
    assert [row["name"] for row in benchmark["rows"]] == ["everything off"]
    assert "out of memory: train: try" in benchmark["not_measured"]["everything on"]


@pytest.mark.full
def test_real_processes_see_the_resolved_settings(tmp_path):
    """Without the forks of the other tests: a flag outranks the environment in the trials, too."""
    project = render(framework="lightning")
    environment = {**os.environ, "SEED": "7", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(project / "src")
    words = ["benchmark", *ONCE, "--reproducibility.seed", "8"]
    words += ["--config", str(project / "config.yaml")]
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert check_rows(tmp_path)["protocol"]["first seed"] == 8
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("workload", choices("workload"))
def test_sizes_and_switches_of_a_workload_are_settings(workload):
    project = render(workload=workload)
    own = yaml.safe_load((project / f"src/{PACKAGE}/commands/benchmark.yml").read_text())
    settings = imported(project, "settings").Settings.load()
    overrides = [*own["sizes"].values()]
    for switch in own["switches"].values():
        overrides += switch.values()
    for values in overrides:
        changed = settings.replaced(values, "trial")
        assert all(changed.value(key) == value for key, value in values.items())


# ---- which rows ----------------------------------------------------------------------------------


def planned(key, setting, value):
    """(switches by name, rows of --all) on a card."""
    project = render(workload="llm", loader="dataloader", precision="fp8")
    settings = imported(project, "settings").Settings.load(overrides=[(setting, value)])
    module = imported(project, "commands.benchmark")
    capability = tuple(map(int, gpus()[key]["sm"].split(".")))
    card = imported(project, "engine.compute.gpus").Card(gpus()[key]["label"], capability)
    own = yaml.safe_load(module.OWN.read_text())["switches"]
    switches = module.switches(settings, card, own)
    return {switch.name: switch for switch in switches}, module.plan(switches, [], True)


@pytest.mark.parametrize(
    ("card", "precision", "expected"),
    [
        ("h100", "auto", ["fp32", "tf32", "bf16"]),
        ("h100", "fp8", ["fp32", "tf32", "bf16", "fp8"]),
        ("h100", "tf32", ["fp32", "tf32"]),
        ("rtx_4090", "auto", ["fp32", "tf32", "bf16"]),
        ("v100", "auto", ["fp32", "fp16"]),
    ],
)
def test_the_ladder_of_precisions_is_the_cards(card, precision, expected):
    _, rows = planned(card, "training.precision", precision)
    ladder = [row.overrides["training.precision"] for row in rows if row.table == "cumulative"]
    assert [value for value, _ in itertools.groupby(ladder)] == expected


def test_everything_off_and_on_are_what_they_say():
    switches, rows = planned("h100", "training.gradient_accumulation_steps", "4")
    off = rows[0].overrides
    on = [row for row in rows if row.table == "cumulative"][-1].overrides
    enabled = {name for name, s in switches.items() if s.enabled and not s.why_not}
    assert off["data.batch_size"] == 4 * on["data.batch_size"]
    assert off["training.gradient_accumulation_steps"] == 1
    assert on["training.gradient_accumulation_steps"] == 4
    for key in enabled - {"tf32"}:  # its rung is below that of bf16
        assert switches[key].on.items() <= on.items(), key
        assert not switches[key].on.items() <= off.items(), key
    assert "accumulated gradients" in switches["compile_reduce-overhead"].why_not
    single = {row.name: row.overrides for row in rows if row.table == "leave_one_out"}
    assert single["without compile"] == {**on, "compile.enabled": False}


# ---- what the figures mean -----------------------------------------------------------------------


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_figures_repeat_within_their_printed_spread(processes):
    """Two benchmarks of one machine, many times: nine of ten gains are in the range of another."""
    draw = random.Random(3)

    def row(ms):
        rates = [1 / (ms * (1 + draw.gauss(0, 0.02))) for _ in range(processes)]
        return {"samples_per_second": median(rates), "processes_per_second": rates}

    def gain():
        return measurements().gain_of(row(18), row(20))

    pairs = [(gain(), gain()) for _ in range(150)]
    inside = mean(one["gain_low"] <= other["gain"] <= one["gain_high"] for one, other in pairs)
    assert 0.85 < inside < 0.995
    assert mean(one["gain"] for one, _ in pairs) == pytest.approx(20 / 18, rel=0.01)


@pytest.mark.parametrize(
    ("losses", "flagged"),
    [
        ((2.0, 2.1, 2.2), False),  # fp32's own
        ((2.29, 2.39, 2.49), False),  # 2.9 spreads away
        ((2.31, 2.41, 2.51), True),  # 3.1
        ((1.69, 1.79, 1.89), True),  # too good to be true
        ((float("nan"),) * 3, True),
        ((2.31,), True),  # of an interrupted benchmark: against the same seed
    ],
)
def test_a_loss_strays_by_three_spreads_of_fp32s(losses, flagged):
    strayed = measurements().strayed
    assert (strayed(list(losses), [2.0, 2.1, 2.2]) is not None) == flagged


def test_figures_of_a_run():
    """Warm-up left out, the wait weighted by time, windows of several steps."""
    trials = imported(render(), "measure.trials")
    rows = []
    for step, ms, wait, loss in ((5, 1000.0, 0.9, 9.0), (10, 10.0, 0.5, 2.0), (15, 30.0, 0.1, 1.0)):
        row = {"step": step, "step_ms": ms, "samples_per_second": 4000 / ms, "loss": loss}
        rows.append(row | {"data_wait_fraction": wait, "time": 100.0 + step, "memory_mb": step})
    figures = trials.figures(rows, 5, 98.0, 7)
    assert figures["step_ms"] == [10.0, 30.0]
    assert figures["samples"] == 4
    assert figures["data_wait_fraction"] == pytest.approx(8 / 40)
    assert figures["loss"] == 1.5
    assert figures["peak_memory_bytes"] == 15 * 2**20
    assert figures["start_s"] == 7.0
