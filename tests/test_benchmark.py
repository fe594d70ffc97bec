"""`benchmark`: which rows, what their figures mean, and that it runs for every workload and framework."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
import rendering
import torch
import yaml
from forking import forked_trials
from importing import imported
from rendering import REPOSITORY
from running import PACKAGE, one_error, run
from test_tier_b import TINY
from variants import choices, gpus, name, pairwise


def render(**answers: Any) -> Path:
    """With the extras that are tested here."""
    return rendering.render(**{"extras": ["benchmark"]} | answers)


SHORT = ("--steps", "2", "--warmup", "1", "--processes", "1")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "benchmark_results/benchmark.json").read_text())


def command(project: Path, folder: Path, *words: str, before: Any = None) -> dict[str, Any]:
    done = run(project, "benchmark", *words, cwd=folder, before=forked_trials(project, before))
    assert done.code == 0, done.err[-3000:]
    return result(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark")


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", pairwise("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_rows_of_every_workload(
    answers: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them for one loader and framework, the two ends for the others."""
    workload, folder = answers["workload"], place / answers["workload"]
    first = not folder.exists()
    words = (*(["--all"] if first else []), *SHORT, *TINY[workload])
    found = command(render(**answers), folder, *words)
    assert found["complete"]
    ladder = [row for row in found["rows"] if row["table"] == "cumulative"]
    assert ladder[0]["name"] == "everything off"
    assert ladder[0]["precision"] == "fp32"
    assert ladder[0]["gain"] == 1
    assert ladder[0]["overrides"]["loader"] == "plain"
    assert ladder[-1]["overrides"]["loader"] == "own"
    for row in found["rows"]:
        assert row["step_ms"]["p10"] <= row["step_ms"]["median"] <= row["step_ms"]["p90"]
        assert 0 <= row["data_wait_fraction"] <= 1
        assert row["peak_memory_bytes"] > 1e6
        assert row["flag"] is None or row["table"] == "target"
    orders = {row["overrides"].get("data.order") for row in ladder}
    equal = [
        row["loss"] for row in ladder if row["overrides"].get("data.order") == max(orders, key=str)
    ]
    assert max(equal) - min(equal) < 1e-3 * abs(equal[0])
    assert found["not_measured"]["compile"] == "there is no GPU"
    page = (folder / "benchmark_results/benchmark.md").read_text()
    assert all(row["name"] in page for row in found["rows"])
    picture = (folder / "benchmark_results/benchmark.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    if first:
        assert {row["table"] for row in found["rows"]} == {"cumulative", "leave_one_out", "target"}
        shared = next(row for row in found["rows"] if row["table"] == "leave_one_out")
        assert shared["step_ms"] == ladder[-1]["step_ms"]  # one row of two tables is measured once
        assert shared["overrides"] == {}
        assert len(set(losses_by_loader(found, ladder[-1]["overrides"]).values())) == 1
        monkeypatch.chdir(folder)
        quoted = imported(render(**answers), "commands.benchmark").report(Path())
        gains = {
            row["name"]: row["gain"] for row in found["rows"] if row["table"] == "leave_one_out"
        }
        assert f"| without fused optimizer | {gains['without fused optimizer']:.2f} |  |" in quoted
        assert f"| with deterministic | {gains['with deterministic']:.2f} |  |" in quoted


def losses_by_loader(found: dict[str, Any], on: dict[str, Any]) -> dict[tuple, tuple]:
    """Losses of everything on, through the project's own loader and through the plain one."""
    by_loader = {}
    for key, trials in found["trials"].items():
        target, overrides = json.loads(key)
        others = on.keys() - {"loader", "data.num_workers"}
        if (
            not target
            and overrides.keys() == on.keys()
            and all(overrides[k] == on[k] for k in others)
        ):
            reader = overrides["loader"], overrides.get("data.num_workers")
            by_loader[reader] = tuple(loss for _, loss in trials[0]["curve"])
    assert {loader for loader, _ in by_loader} == {"own", "plain"}
    return by_loader


def test_a_wrong_row_is_flagged_and_a_right_one_is_not(place: Path) -> None:
    def fault(settings: dict[str, Any]) -> None:
        if settings["reproducibility"]["deterministic"]:
            torch.optim.AdamW.step = lambda *_: None  # learns nothing

    project = render(workload="tabular")
    counts = ("--processes", "3", "--steps", "60", "--warmup", "2")
    words = ("deterministic", *counts, "--data.batch_size", "256", "--model.width", "32")
    found = command(project, place / "tabular-wrong", *words, before=fault)
    flags = {row["name"]: row["flag"] for row in found["rows"]}
    assert "from fp32's" in flags.pop("with deterministic")
    assert set(flags.values()) == {None}
    assert "loss is" in (place / "tabular-wrong/benchmark_results/benchmark.md").read_text()


def test_an_interrupted_benchmark_goes_on(tmp_path: Path) -> None:
    """The rows that were there are kept; a finished one begins anew, as do other settings."""
    project, log = render(workload="tabular"), tmp_path / "launched"

    def stop_at_the_third(settings: dict[str, Any]) -> None:
        with open(log, "a") as file:
            file.write("x")
        if log.read_text() == "xxx":
            os.kill(os.getppid(), 2)  # Ctrl-C
            raise SystemExit(1)

    words = ("benchmark", *SHORT[:4], "--processes", "2", *TINY["tabular"])
    before = forked_trials(project, stop_at_the_third)
    stopped = run(project, *words, cwd=tmp_path, before=before)
    assert stopped.code == 130
    assert [row["processes"] for row in result(tmp_path)["rows"]] == [1, 1]
    assert not result(tmp_path)["complete"]
    assert "same command again" in (tmp_path / "benchmark_results/benchmark.md").read_text()
    assert (tmp_path / "benchmark_results/benchmark.png").exists()
    for launches, more in ((2, ()), (4, ()), (4, ("--optimizer.learning_rate", "1e-4"))):
        log.write_text("xxxx")
        assert run(project, *words, *more, cwd=tmp_path, before=before).code == 0
        assert len(log.read_text()) == 4 + launches
        assert [row["processes"] for row in result(tmp_path)["rows"]] == [2, 2]


def test_a_row_that_fails_is_named_with_the_reason(tmp_path: Path) -> None:
    def fault(settings: dict[str, Any]) -> None:
        if settings["optimizer"]["fused"]:
            importlib.import_module(f"{PACKAGE}.engine.precision").Precision.step = no_memory

    def no_memory(*_: Any) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        )

    words = (*SHORT, *TINY["tabular"], "deterministic")
    found = command(render(workload="tabular"), tmp_path, *words, before=fault)
    assert found["complete"]
    assert [(row["name"], row["gain"]) for row in found["rows"]] == [("everything off", 1)]
    assert "out of memory: this machine" in found["not_measured"]["everything on"]


@pytest.mark.full
def test_real_processes_see_the_resolved_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the forks of the other tests: a flag outranks the environment in the trials, too."""
    project = render(workload="tabular", framework="lightning")
    environment = {**os.environ, "PYTHONPATH": "src", "SEED": "7", "OMP_NUM_THREADS": "1"}
    words = (
        "benchmark",
        *SHORT,
        "--reproducibility.seed",
        "8",
        "--config",
        str(project / "config.yaml"),
    )
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    environment["PYTHONPATH"] = str(project / "src")
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Benchmark")
    found = result(folder)
    assert found["protocol"]["first seed"] == 8
    assert len(found["rows"]) == 2
    assert not (folder / "runs").exists()
    assert min(row["start_s"] for row in found["rows"]) > 0.1


def test_mistakes(place: Path) -> None:
    project, folder = render(workload="tabular"), place / "mistakes"
    for words, part in (
        (("fusion",), "unknown switch 'fusion'.*--list"),
        (("compile",), "compile cannot be measured here: there is no GPU"),
        (("--model-size", "huge"), "unknown model size 'huge'.*choose of tiny, small"),
        (("--steps", "0"), "count from 1"),
    ):
        one_error(run(project, "benchmark", *words, cwd=folder), part)
    listed = run(project, "benchmark", "--list", cwd=folder).out
    assert "fused_optimizer                     on" in listed
    assert "cannot be measured here: there is no GPU" in listed


@pytest.mark.parametrize("workload", choices("workload"))
def test_own_particulars_fit_the_settings(workload: str) -> None:
    """Sizes and switches of a workload's benchmark.yml are settings that exist, with values in range."""
    project = render(workload=workload)
    own = yaml.safe_load((project / f"src/{PACKAGE}/commands/benchmark.yml").read_text())
    settings, changed = (
        imported(project, "config").load(),
        imported(project, "measure.trials").changed,
    )
    assert {"tiny", "small", "large"} <= set(own["sizes"])
    assert all(
        claim.keys() <= {"claim", "switch", "table", "of", "ratio"} for claim in own["headlines"]
    )
    for overrides in (
        *own["sizes"].values(),
        *(s[end] for s in own["switches"].values() for end in s),
    ):
        other = changed(settings, overrides)
        assert all(other.value(key) == value for key, value in overrides.items())
        assert not list(other.conflicts())


# ---- which rows ----------------------------------------------------------------------------------


def card_of(key: str) -> Any:
    major, minor = map(int, gpus()[key]["sm"].split("."))
    return SimpleNamespace(name=gpus()[key]["label"], capability=(major, minor), hip=False)


def planned(key: str, *overrides: str, loader: str = "dataloader", workload: str = "llm") -> Any:
    """(switches by name, rows of --all) on a card."""
    project = render(workload=workload, loader=loader)
    settings = imported(project, "config").load(overrides=[tuple(o.split("=")) for o in overrides])
    module = imported(project, "commands.benchmark")
    own = yaml.safe_load(module.OWN.read_text())["switches"]
    without = imported(project, "engine.loader").Loader.WITHOUT_EFFECT
    found = list(module.switches(settings, card_of(key), without, own))
    return {switch.name: switch for switch in found}, module.plan(found, [], True)


def ladder(rows: list[Any], key: str) -> list[Any]:
    values = [row.overrides[key] for row in rows if row.table == "cumulative"]
    return [value for value, _ in itertools.groupby(values)]


def test_the_ladder_of_precisions_is_the_cards() -> None:
    for key, precisions in {
        "h100": ["fp32", "tf32", "bf16"],
        "v100": ["fp32", "fp16"],
        "rtx_4090": ["fp32", "tf32", "bf16"],
    }.items():
        found, rows = planned(key)
        assert ladder(rows, "training.precision") == precisions, key
        assert rows[0].overrides["training.precision"] == "fp32"
        single = {
            row.switch: row.overrides["training.precision"]
            for row in rows
            if row.table != "cumulative"
        }
        assert single["half_precision"] == precisions[-2]
        assert single["loader"] == precisions[-1]
        assert found["fp8"].why_not == ("" if key != "v100" else "V100 has no fp8")
    assert ladder(planned("h100", "training.precision=fp8")[1], "training.precision") == [
        *("fp32", "tf32", "bf16", "fp8")
    ]
    assert ladder(planned("h100", "training.precision=tf32")[1], "training.precision") == [
        "fp32",
        "tf32",
    ]


def test_everything_off_and_on_are_what_they_say() -> None:
    found, rows = planned("h100", "training.gradient_accumulation_steps=4")
    first, last = (
        rows[0].overrides,
        [row for row in rows if row.table == "cumulative"][-1].overrides,
    )
    on = [switch for switch in found.values() if switch.enabled and not switch.why_not]
    names = {switch.name for switch in on}
    assert names == {
        *(
            "tf32",
            "half_precision",
            "compile",
            "fused_optimizer",
            "loader",
            "workers",
            "pinned_memory",
        ),
        *("fused_loss", "accumulation"),
    }
    assert first["data.batch_size"] == 4 * last["data.batch_size"]
    assert (
        first["training.gradient_accumulation_steps"],
        last["training.gradient_accumulation_steps"],
    ) == (
        1,
        4,
    )
    for switch in on[1:]:  # TF32's rung is below bf16's
        assert switch.on.items() <= last.items(), switch.name
    for off in ("compile.enabled", "optimizer.fused", "data.pin_memory", "model.chunked_loss"):
        assert first[off] is False
    assert first["data.num_workers"] == 0
    names = [row.name for row in rows if row.table == "leave_one_out"]
    assert names[0] == "everything on"
    assert {"without compile", "with checkpointing", "with deterministic"} <= set(names)
    graphs = found["compile_reduce-overhead"]
    assert "accumulated gradients" in graphs.why_not
    assert not found["compile_max-autotune-no-cudagraphs"].why_not
    without = {row.name: row.overrides for row in rows if row.table == "leave_one_out"}
    assert {key for key in last if without["without compile"][key] != last[key]} == {
        "compile.enabled"
    }


def test_switches_that_a_loader_lacks() -> None:
    found, _ = planned("h100", loader="memmap")
    assert found["workers"].why_not == "this project's loader has no use for it"
    assert "data.num_workers" not in found["loader"].off


# ---- what the figures mean -----------------------------------------------------------------------


def trial(ms: float, loss: float, samples: int = 8, curve: list | None = None) -> dict[str, Any]:
    steps = [ms * factor for factor in (0.9, 1.0, 1.0, 1.0, 1.1)]
    return {
        **{"step_ms": steps, "samples": samples, "data_wait_fraction": 0.25, "loss": loss},
        **{"curve": curve or [], "peak_memory_bytes": 2**20, "start_s": 2.0},
        **{"rates": {}, "state": {"precision": "fp32"}},
    }


def book(
    folder: Path, plans: list[Any], trials: list[list[dict]], target: float | None = None
) -> Any:
    project = render(workload="tabular")
    module = imported(project, "measure.measurements")
    protocol = {"processes": len(trials[0]), "first seed": 1}
    about = {"protocol": protocol, "environment": {"device": "made up", "torch": "0"}}
    about |= {"state": {"target": target}, "headlines": [], "skipped": {}}
    measured = module.Measurements(folder, plans, about)
    for plan, found in zip(plans, trials, strict=True):
        measured.of(plan)[:] = found
    return measured


def plan(table: str, name: str, switch: str = "", **overrides: Any) -> Any:
    return imported(render(workload="tabular"), "measure.measurements").Plan(
        table, name, switch, overrides
    )


def test_gains_are_ratios_of_samples_per_second(tmp_path: Path) -> None:
    plans = [
        plan("cumulative", "everything off", a=0),
        plan("cumulative", "+ a", "a", a=1),
        plan("leave_one_out", "everything on", "", a=1),
        plan("leave_one_out", "with b", "b", a=1, b=2),
    ]
    on = [trial(5, 1.0), trial(5, 1.1)]
    trials = [[trial(20, 1.0), trial(20, 1.1)], on, on, [trial(20, 1.01, 16), trial(20, 1.1, 16)]]
    measured = book(tmp_path, plans, trials)
    measured.about["headlines"] = [
        {"claim": "all", "switch": "all", "of": "samples_per_second", "ratio": 3},
        {"claim": "b", "switch": "b", "of": "samples_per_second", "ratio": 3},
        {"claim": "c", "switch": "c", "of": "samples_per_second", "ratio": 3},
        {
            "claim": "a",
            "switch": "a",
            "table": "cumulative",
            "of": "samples_per_second",
            "ratio": 3,
        },
    ]
    tmp_path.mkdir(exist_ok=True)
    measured.write()
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["step_ms"]["median"] for row in rows] == [20, 5, 5, 20]
    assert [row["samples_per_second"] for row in rows] == [400, 1600, 1600, 800]
    assert [row["gain"] for row in rows] == [1, 4, 1, 0.5]
    assert rows[0]["step_ms"]["p10"] == pytest.approx(18)
    assert rows[0]["step_ms"]["p90"] == pytest.approx(22)
    headlines = json.loads((tmp_path / "benchmark.json").read_text())["headlines"]
    assert [claim["measured"] for claim in headlines] == [4, 0.5, None, 4]
    page = (tmp_path / "benchmark.md").read_text()
    assert "| everything off | fp32 | 20 | 18-22 | 400 | 1.00 | 1 | 25.0% | 2.0 | 1.05 |" in page


def test_bars_say_how_far_a_gain_is_certain(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    on = [trial(5, 1.0), trial(6, 1.1)]
    plans = [plan("cumulative", "everything off", a=0), plan("cumulative", "+ a", "a", a=1)]
    measured = book(tmp_path, plans, [[trial(20, 1.0), trial(20, 1.1)], on])
    module, rows = imported(render(workload="tabular"), "measure.measurements"), measured.rows()
    axes = Figure().subplots()
    module.draw_bars(axes, rows)
    assert axes.texts[0].get_text() == "reference"
    low, high = rows[1]["gain_low"], rows[1]["gain_high"]
    assert axes.texts[1].get_text() == f"{rows[1]['gain']:.2f} ({low:.2f}-{high:.2f})"
    module.draw_bars(axes, [row | {"gain_low": None, "gain_high": None} for row in rows])
    assert axes.texts[3].get_text() == f"{rows[1]['gain']:.2f}"
    module.draw(tmp_path / "benchmark.png", measured)


def test_a_range_and_its_bar_are_never_below_0_and_flatten_no_other_bar(tmp_path: Path) -> None:
    """Two processes that differ by a half: three times as fast, give or take more than that."""
    from matplotlib.figure import Figure

    plans = [plan("cumulative", "everything off", a=0), plan("cumulative", "everything on", a=1)]
    measured = book(
        tmp_path, plans, [[trial(20, 1.0), trial(20, 1.1)], [trial(5, 1.0), trial(9, 1.1)]]
    )
    module, (_, row) = imported(render(workload="tabular"), "measure.measurements"), measured.rows()
    assert 0 < row["gain_low"] < 1 < 9 < row["gain_high"]
    assert row["gain_low"] * row["gain_high"] == pytest.approx(row["gain"] ** 2)
    axes = Figure().subplots()
    module.draw_bars(axes, measured.rows())
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] < 2 * row["gain"]
    ends = [
        x
        for bars in axes.containers
        if hasattr(bars, "has_xerr")
        for line in bars.lines[2]
        for path in line.get_paths()
        for x in path.vertices[:, 0]
    ]
    assert min(ends) > 0
    measured.write()
    page = (tmp_path / "benchmark.md").read_text()
    assert "nine of ten repeats of this benchmark stay within" in page
    assert f"| {row['gain']:.2f} ({row['gain_low']:.2f}-{row['gain_high']:.2f}) |" in page


def test_a_page_links_a_plot_where_there_is_one(tmp_path: Path) -> None:
    plans = [plan("cumulative", "everything off", a=0), plan("cumulative", "everything on", a=1)]
    (tmp_path / "benchmark.png").write_bytes(b"of an older benchmark")
    measured = book(tmp_path, plans, [[], []])
    measured.protocol["processes"] = 1
    ends = iter([trial(20, 1.0), KeyboardInterrupt()])

    def measure(overrides: Any, warmup: int, steps: int) -> Any:
        found = next(ends)
        if isinstance(found, BaseException):
            raise found
        return found

    with pytest.raises(KeyboardInterrupt):
        measured.measure(measure, 1, 1)
    page = (tmp_path / "benchmark.md").read_text()
    assert not (tmp_path / "benchmark.png").exists()
    assert "(benchmark.png)" not in page
    assert "the same command again continues" in page
    measured.measure(lambda *_: trial(5, 1.0), 1, 1)
    assert "(benchmark.png)" in (tmp_path / "benchmark.md").read_text()
    assert (tmp_path / "benchmark.png").exists()


NOISES = {  # between processes, between steps of one
    "of processes": (0.02, 0.001),
    "of steps": (0.001, 0.1),
    "of both": (0.03, 0.05),
}


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_figures_repeat_within_their_printed_spread(
    tmp_path: Path, noise: str, processes: int
) -> None:
    """Two benchmarks of one machine, many times: nine of ten gains are in the range of another."""
    draw, (between, within) = random.Random(3), NOISES[noise]
    plans = [plan("cumulative", "off", a=0), plan("cumulative", "on", a=1)]

    def step(ms: float) -> float:
        late = 4 if draw.random() < 0.02 else 1  # now and then something else runs
        return ms * late * (1 + abs(draw.gauss(0, within)))

    def gain() -> dict[str, float]:
        rounds = [[ms * (1 + draw.gauss(0, between)) for ms in (20, 18)] for _ in range(processes)]
        rows = [
            [trial(1, 1.0) | {"step_ms": [step(ms) for _ in range(40)]} for ms in row]
            for row in zip(*rounds, strict=True)
        ]
        _, row = book(tmp_path, plans, rows).rows()
        return row

    pairs = [(gain(), gain()) for _ in range(200)]
    inside = mean(one["gain_low"] <= other["gain"] <= one["gain_high"] for one, other in pairs)
    assert 0.85 < inside < 0.99
    assert mean(one["gain"] for one, _ in pairs) == pytest.approx(20 / 18, rel=0.01)


def test_what_slows_both_processes_of_a_round_is_no_spread(tmp_path: Path) -> None:
    """A machine that gets hot, and one process, which has no spread at all."""
    plans = [plan("cumulative", "off", a=0), plan("cumulative", "on", a=1)]
    slower = [[trial(ms * heat, 1.0) for heat in (1.0, 1.5, 2.0)] for ms in (20, 10)]
    off, on = book(tmp_path, plans, slower).rows()
    assert on["gain"] == 2
    assert (on["gain_low"], on["gain_high"]) == (pytest.approx(2), pytest.approx(2))
    assert (off["gain_low"], off["gain_high"]) == (1, 1)
    _, on = book(tmp_path, plans, [row[:1] for row in slower]).rows()
    assert on["gain_low"] is None
    assert "(" not in imported(render(workload="tabular"), "measure.measurements").gain_text(on)


def test_a_wide_spread_says_what_narrows_it(tmp_path: Path) -> None:
    plans = [
        plan("cumulative", "off", a=0),
        plan("cumulative", "on", a=1),
        plan("cumulative", "more", a=2),
    ]
    measured = book(
        tmp_path,
        plans,
        [[trial(ms, 1.0) for ms in row] for row in ((20, 20), (10, 16), (10, 10.1))],
    )
    measured.write()
    said = (
        "**on**: the range is wide; more --processes and --steps, and nothing else on the machine"
    )
    assert said in (tmp_path / "benchmark.md").read_text()


def test_a_row_is_compared_with_fp32_in_its_own_order(tmp_path: Path) -> None:
    """Bucketed batches have other losses, as they should."""
    plans = [
        plan("cumulative", "everything off", **{"data.order": "full"}),
        plan("cumulative", "+ bucketing", "bucketing", **{"data.order": "bucket"}),
        plan("leave_one_out", "with b", "b", **{"data.order": "bucket", "b": 1}),
    ]
    off, bucket = [trial(1, 1.0), trial(1, 1.1)], [trial(1, 3.0), trial(1, 3.1)]
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
        ((2.29,), False),  # of an interrupted benchmark: against the same seed
        ((2.31,), True),
    ],
)
def test_a_loss_strays_by_three_spreads_of_fp32s(losses: tuple[float, ...], flagged: bool) -> None:
    strayed = imported(render(workload="tabular"), "measure.measurements").strayed
    assert (strayed(list(losses), [2.0, 2.1, 2.2]) is not None) == flagged
    assert strayed([9.0], [2.0]) is None  # one seed has no spread


def test_time_to_the_same_loss(tmp_path: Path) -> None:
    def curve(rate: float, lowest: float) -> list:
        return [(rate * step, max(lowest, 2 - step / 10)) for step in range(20)]

    plans = [plan("cumulative", "off"), plan("target", "off", a=0), plan("target", "on", a=1)]
    slow, fast, stuck = (
        trial(1, 1, curve=curve(*given)) for given in ((2.0, 1.0), (0.5, 0.9), (0.5, 1.5))
    )
    first = [trial(1, 1.0)]
    rows = book(tmp_path, plans, [first, [slow], [fast]], target=1.2).rows()
    # The mean of ten losses is at 1.2 where the last is 2 - 1.25: between steps 12 and 13.
    assert [row["seconds_to_target"] for row in rows[1:]] == [28.0, 6.5]
    assert [row["gain"] for row in rows[1:]] == [1, pytest.approx(28 / 6.5)]
    rows = book(tmp_path, plans, [first, [slow], [stuck]], target=1.2).rows()
    assert rows[2]["seconds_to_target"] is None
    assert rows[2]["gain"] is None
    automatic = book(tmp_path, plans, [first, [slow], [fast]]).rows()
    assert automatic[1]["target_loss"] == pytest.approx(1.01 * 1.0, rel=0.05)
    assert automatic[1]["seconds_to_target"] > automatic[2]["seconds_to_target"]


def test_figures_of_a_run(tmp_path: Path) -> None:
    """Warm-up left out, the wait weighted by time, windows of several steps."""
    trials = imported(render(workload="tabular"), "measure.trials")
    rows = [
        {
            "step": 5,
            "step_ms": 1000.0,
            "samples_per_second": 4.0,
            "data_wait_fraction": 0.9,
            "loss": 9.0,
        },
        {
            "step": 10,
            "step_ms": 10.0,
            "samples_per_second": 400.0,
            "data_wait_fraction": 0.5,
            "loss": 2.0,
        },
        {
            "step": 15,
            "step_ms": 30.0,
            "samples_per_second": 133.3,
            "data_wait_fraction": 0.1,
            "loss": 1.0,
        },
    ]
    rows = [row | {"time": 100.0 + row["step"], "memory_mb": row["step"]} for row in rows]
    found = trials.figures(rows, 5, 98.0, 7)
    assert found["step_ms"] == [10.0, 30.0]
    assert found["samples"] == 4
    assert found["data_wait_fraction"] == pytest.approx(8 / 40)
    assert found["loss"] == 1.5
    assert found["curve"] == [(0.0, 9.0), (pytest.approx(0.05), 2.0), (pytest.approx(0.2), 1.0)]
    assert found["peak_memory_bytes"] == 15 * 2**20
    assert found["start_s"] == 7.0
    assert trials.spread([3.0]) == {"median": 3.0, "p10": 3.0, "p90": 3.0}
    assert math.isclose(trials.spread(list(range(11)))["p90"], 9)


# ---- the guide -----------------------------------------------------------------------------------


def test_commands_and_switches_of_the_guide_exist() -> None:
    text = (REPOSITORY / "docs/measure.md").read_text(encoding="utf-8")
    project = render(workload="tabular", extras=["benchmark", "profile", "tune"])
    main = imported(project, "__main__")
    targets = re.findall(r"^([a-z-]+):", (project / "Makefile").read_text(), flags=re.MULTILINE)
    found = re.findall(r'^    make (\w+)(?: ARGS="(.*?)")?', text, flags=re.MULTILINE)
    assert {verb for verb, _ in found} == {"benchmark", "profile", "tune"}
    for verb, words in found:
        assert verb in targets
        rest, _, mistakes = main.split_settings(words.split())
        assert not mistakes
        main.parser_of(verb, imported(project, f"commands.{verb}")).parse_args(rest)
    table = text.partition("| switch |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    named -= {"compile_MODE", *choices("workload")}
    known = {
        name for workload in choices("workload") for name in planned("h100", workload=workload)[0]
    }
    assert named == {name for name in known if not name.startswith("compile_")}
