"""`benchmark`: which rows, what their figures mean, and that it runs for every framework."""

import importlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import pytest
import rendering
import torch
import yaml
from forking import forked_trials
from importing import imported
from running import PACKAGE, check_run, one_error, run
from test_tier_b import TINY
from variants import choices, gpus, name, pairwise

SHORT = ("--steps", "2", "--warmup", "1")
TWICE = (*SHORT, "--processes", "2", *TINY["tabular"])
ONCE = (*SHORT, "--processes", "1")


def render(**answers: Any) -> Path:
    return rendering.render(**{"workload": "tabular", "extras": ["benchmark"]} | answers)


def measurements() -> Any:
    return imported(render(), "measure.measurements")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "benchmark_results/benchmark.json").read_text())


def command(project: Path, folder: Path, *words: str, before: Any = None) -> dict[str, Any]:
    check_run(project, "benchmark", *words, cwd=folder, before=forked_trials(project, before))
    return result(folder)


def check_rows(folder: Path) -> dict[str, Any]:
    """What holds for every result of one machine without a GPU."""
    benchmark = result(folder)
    assert benchmark["complete"]
    ladder = [row for row in benchmark["rows"] if row["table"] == "cumulative"]
    assert (ladder[0]["name"], ladder[0]["precision"]) == ("everything off", "fp32")
    assert ladder[0]["gain"] == 1
    assert ladder[0]["overrides"]["loader"] == "plain"
    assert ladder[-1]["overrides"]["loader"] == "own"
    for row in benchmark["rows"]:
        assert row["step_ms"]["p10"] <= row["step_ms"]["median"] <= row["step_ms"]["p90"]
        assert 0 <= row["data_wait_fraction"] <= 1
        assert row["peak_memory_bytes"] > 1e6
    assert benchmark["not_measured"]["compile"] == "there is no GPU"
    page = (folder / "benchmark_results/benchmark.md").read_text()
    assert all(row["name"] in page for row in benchmark["rows"])
    return benchmark


# ---- runs ----------------------------------------------------------------------------------------


def test_every_switch_is_measured(tmp_path):
    command(render(), tmp_path, "--all", *ONCE, *TINY["tabular"])
    rows = check_rows(tmp_path)["rows"]
    ladder = [row for row in rows if row["table"] == "cumulative"]
    single = [row for row in rows if row["table"] == "leave_one_out"]
    assert single[0]["step_ms"] == ladder[-1]["step_ms"], "a row of two tables is measured once"
    losses = {row["name"]: row["loss"] for row in single}
    assert losses["without loader"] == losses["everything on"], "both loaders give the same batches"
    assert all(row["loss"] == pytest.approx(ladder[0]["loss"], rel=1e-3) for row in ladder)


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
    assert "loss is" in (tmp_path / "benchmark_results/benchmark.md").read_text()


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
    assert "same command again" in (tmp_path / "benchmark_results/benchmark.md").read_text()
    check_run(project, "benchmark", *TWICE, cwd=tmp_path, before=before)
    assert len(log.read_text()) == 5, "two rows have one process, and need another"
    assert [row["processes"] for row in result(tmp_path)["rows"]] == [2, 2]


def test_a_row_that_fails_is_named_with_the_reason(tmp_path):
    def fault(settings):
        if settings["optimizer.fused"]:
            importlib.import_module(f"{PACKAGE}.engine.run.run").Run.end_step = no_memory

    def no_memory(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")

    benchmark = command(render(), tmp_path, *ONCE, *TINY["tabular"], before=fault)
    assert benchmark["complete"]
    assert [(row["name"], row["gain"]) for row in benchmark["rows"]] == [("everything off", 1)]
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
    assert done.stdout.startswith("# Benchmark")
    benchmark = result(tmp_path)
    assert benchmark["protocol"]["first seed"] == 8
    assert len(benchmark["rows"]) == 2
    assert not (tmp_path / "runs").exists()


def test_errors_are_one_line(tmp_path):
    for words, says in (
        (("fusion",), "unknown switch 'fusion'.*--list"),
        (("compile",), "compile cannot be measured here: there is no GPU"),
        (("--model-size", "huge"), "unknown model size 'huge'.*choose from tiny, small"),
        (("--steps", "0"), "must be at least 1"),
    ):
        one_error(run(render(), "benchmark", *words, cwd=tmp_path), says)
    listed = run(render(), "benchmark", "--list", cwd=tmp_path).out
    assert "fused_optimizer                     on" in listed
    assert "cannot be measured here: there is no GPU" in listed


@pytest.mark.parametrize("workload", choices("workload"))
def test_sizes_and_switches_of_a_workload_are_settings(workload):
    project = render(workload=workload)
    own = yaml.safe_load((project / f"src/{PACKAGE}/commands/benchmark.yml").read_text())
    settings = imported(project, "config").load()
    assert {"tiny", "small", "large"} <= set(own["sizes"])
    known = {"claim", "switch", "table", "of", "ratio"}
    assert all(claim.keys() <= known for claim in own["headlines"])
    overrides = [*own["sizes"].values()]
    for switch in own["switches"].values():
        overrides += switch.values()
    for values in overrides:
        changed = settings.replaced(values, "trial")
        assert all(changed.value(key) == value for key, value in values.items())


# ---- which rows ----------------------------------------------------------------------------------


def planned(key: str, *overrides: str, loader: str = "dataloader", workload: str = "llm") -> Any:
    """(switches by name, rows of --all) on a card."""
    project = render(workload=workload, loader=loader, precision="fp8")
    settings = imported(project, "config").load(overrides=[tuple(o.split("=")) for o in overrides])
    module = imported(project, "commands.benchmark")
    major, minor = map(int, gpus()[key]["sm"].split("."))
    card = SimpleNamespace(
        name=gpus()[key]["label"], capability=(major, minor), sm=gpus()[key]["sm"], hip=False
    )
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
    switches, rows = planned(card, f"training.precision={precision}")
    ladder = [row.overrides["training.precision"] for row in rows if row.table == "cumulative"]
    assert [value for value, _ in itertools.groupby(ladder)] == expected
    single = {row.switch: row.overrides["training.precision"] for row in rows}
    assert single["loader"] == expected[-1]
    assert switches["fp8"].why_not == ("V100 does not support fp8" if card == "v100" else "")


def test_everything_off_and_on_are_what_they_say():
    switches, rows = planned("h100", "training.gradient_accumulation_steps=4")
    off = rows[0].overrides
    on = [row for row in rows if row.table == "cumulative"][-1].overrides
    enabled = {name for name, s in switches.items() if s.enabled and not s.why_not}
    own = {"fused_loss", "accumulation"}
    assert enabled - own == {
        "tf32",
        "half_precision",
        "compile",
        "fused_optimizer",
        "loader",
        "workers",
        "pinned_memory",
    }
    assert off["data.batch_size"] == 4 * on["data.batch_size"]
    assert off["training.gradient_accumulation_steps"] == 1
    assert on["training.gradient_accumulation_steps"] == 4
    for key in enabled - {"tf32"}:  # its rung is below that of bf16
        assert switches[key].on.items() <= on.items(), key
    for key in ("compile.enabled", "optimizer.fused", "data.pin_memory", "model.chunked_loss"):
        assert off[key] is False
    assert "accumulated gradients" in switches["compile_reduce-overhead"].why_not
    assert not switches["compile_max-autotune-no-cudagraphs"].why_not
    single = {row.name: row.overrides for row in rows if row.table == "leave_one_out"}
    assert single["without compile"] == {**on, "compile.enabled": False}


def test_switches_that_a_loader_lacks():
    switches, _ = planned("h100", loader="memmap")
    assert switches["workers"].why_not == "this project's loader does not have it"
    assert "data.num_workers" not in switches["loader"].off


# ---- what the figures mean -----------------------------------------------------------------------


def trial(ms: float, loss: float, samples: int = 8) -> dict[str, Any]:
    return {
        "step_ms": [ms * factor for factor in (0.9, 1.0, 1.0, 1.0, 1.1)],
        "samples": samples,
        "data_wait_fraction": 0.25,
        "loss": loss,
        "peak_memory_bytes": 2**20,
        "start_s": 2.0,
        "rates": {},
        "state": {"precision": "fp32"},
    }


def plan(table: str, name: str, switch: str = "", **overrides: Any) -> Any:
    return measurements().Plan(table, name, switch, overrides)


def book(folder: Path, plans: list[Any], trials: list[list[dict]], data: str = "same") -> Any:
    processes = max(len(trials[0]), 1)
    about = {
        "protocol": {"processes": processes, "first seed": 1},
        "environment": {"device": "made up"},
        "state": {"data": data},
        "headlines": [],
        "skipped": {},
    }
    measured = measurements().Measurements(folder, plans, about)
    for row, made in zip(plans, trials, strict=True):
        measured.of(row)[:] = measured.of(row) or made
    return measured


def two_rows() -> list[Any]:
    return [plan("cumulative", "off", a=0), plan("cumulative", "on", a=1)]


def test_gains_are_ratios_of_samples_per_second(tmp_path):
    plans = [
        plan("cumulative", "everything off", a=0),
        plan("cumulative", "+ a", "a", a=1),
        plan("leave_one_out", "everything on", "", a=1),
        plan("leave_one_out", "with b", "b", a=1, b=2),
    ]
    on = [trial(5, 1.0), trial(5, 1.1)]
    trials = [[trial(20, 1.0), trial(20, 1.1)], on, on, [trial(20, 1.01, 16), trial(20, 1.1, 16)]]
    measured = book(tmp_path, plans, trials)
    claim = {"claim": "x", "of": "samples_per_second", "ratio": 3}
    measured.about["headlines"] = [claim | {"switch": name} for name in ("all", "b", "c")]
    measured.about["headlines"].append(claim | {"switch": "a", "table": "cumulative"})
    measured.write()
    benchmark = json.loads((tmp_path / "benchmark.json").read_text())
    rows = benchmark["rows"]
    assert [row["step_ms"]["median"] for row in rows] == [20, 5, 5, 20]
    assert [row["samples_per_second"] for row in rows] == [400, 1600, 1600, 800]
    assert [row["gain"] for row in rows] == [1, 4, 1, 0.5]
    assert rows[0]["step_ms"]["p10"] == pytest.approx(18)
    assert [claim["measured"] for claim in benchmark["headlines"]] == [4, 0.5, None, 4]
    page = (tmp_path / "benchmark.md").read_text()
    assert "| everything off | fp32 | 20 | 18-22 | 400 | 1.00 | 1 | 25.0% | 2.0 | 1.05 |" in page


def test_only_an_interrupted_benchmark_in_the_same_conditions_is_resumed(tmp_path):
    book(tmp_path, two_rows(), [[trial(20, 1.0)], []]).write()
    for data, is_resumed in (("same", True), ("other", False)):
        assert any(book(tmp_path, two_rows(), [[], []], data).trials.values()) == is_resumed


NOISES = {  # between processes, between steps of one
    "of processes": (0.02, 0.001),
    "of steps": (0.001, 0.1),
    "of both": (0.03, 0.05),
}


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_figures_repeat_within_their_printed_spread(noise, processes):
    """Two benchmarks of one machine, many times: nine of ten gains are in the range of another."""
    module = measurements()
    draw = random.Random(3)
    between, within = NOISES[noise]

    def step(ms):
        late = 4 if draw.random() < 0.02 else 1  # now and then something else runs
        return ms * late * (1 + abs(draw.gauss(0, within)))

    def row(ms):
        steps: list[float] = []
        rates = []
        for _ in range(processes):
            slower = ms * (1 + draw.gauss(0, between))
            steps += [step(slower) for _ in range(20)]
            rates.append(1 / median(steps[-20:]))
        return {"samples_per_second": 1 / median(steps), "processes_per_second": rates}

    def gain():
        return module.gain_of(row(18), row(20))

    pairs = [(gain(), gain()) for _ in range(150)]
    inside = mean(one["gain_low"] <= other["gain"] <= one["gain_high"] for one, other in pairs)
    assert 0.85 < inside < 0.995
    assert mean(one["gain"] for one, _ in pairs) == pytest.approx(20 / 18, rel=0.01)


def test_a_row_is_compared_with_fp32_in_its_own_order(tmp_path):
    """Bucketed batches have other losses, as they should."""
    plans = [
        plan("cumulative", "everything off", **{"data.order": "full"}),
        plan("cumulative", "+ bucketing", "bucketing", **{"data.order": "bucket"}),
        plan("leave_one_out", "with b", "b", **{"data.order": "bucket", "b": 1}),
    ]
    off = [trial(1, 1.0), trial(1, 1.1)]
    bucket = [trial(1, 3.0), trial(1, 3.1)]
    rows = book(tmp_path, plans, [off, bucket, [trial(1, 3.01), trial(1, 3.1)]]).rows()
    assert [row["flag"] for row in rows] == [None] * 3
    rows = book(tmp_path, plans, [off, bucket, [trial(1, 1.01), trial(1, 1.1)]]).rows()
    assert [row["flag"] is None for row in rows] == [True, True, False]


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
    assert strayed([9.0], [2.0]) is None  # one seed has no spread


def test_figures_of_a_run():
    """Warm-up left out, the wait weighted by time, windows of several steps."""
    trials = imported(render(), "measure.trials")
    rows = []
    for step, ms, wait, loss in ((5, 1000.0, 0.9, 9.0), (10, 10.0, 0.5, 2.0), (15, 30.0, 0.1, 1.0)):
        rows.append(
            {
                "step": step,
                "step_ms": ms,
                "samples_per_second": 4000 / ms,
                "data_wait_fraction": wait,
                "loss": loss,
                "time": 100.0 + step,
                "memory_mb": step,
            }
        )
    figures = trials.figures(rows, 5, 98.0, 7)
    assert figures["step_ms"] == [10.0, 30.0]
    assert figures["samples"] == 4
    assert figures["data_wait_fraction"] == pytest.approx(8 / 40)
    assert figures["loss"] == 1.5
    assert figures["peak_memory_bytes"] == 15 * 2**20
    assert figures["start_s"] == 7.0
    assert trials.spread([3.0]) == {"median": 3.0, "p10": 3.0, "p90": 3.0}
