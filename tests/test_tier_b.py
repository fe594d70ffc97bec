"""Tier B: every workload × loader × framework × precision trains, evaluates, stops and resumes on a CPU."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rendering import render
from running import PACKAGE, evaluations, losses, newest_run, one_error, rows, run, weights
from tiers import covering
from variants import choices, name, pairs, products

CELLS = products("workload", "loader", "framework", "precision")
PAIRS = [CELLS[number] for number in sorted(covering([pairs(cell) for cell in CELLS]))]
# Small enough for seconds, large enough to learn: flags of each workload for its synthetic data.
TINY = {
    "tabular": ("--data.batch_size", "128", "--model.width", "32", "--schedule.warmup_steps", "10"),
    "llm": (
        *("--data.sample_mb", "0.08", "--data.block_size", "32", "--data.batch_size", "8"),
        *("--model.layers", "1", "--model.width", "128", "--schedule.warmup_steps", "10"),
        *("--training.fp8_emulation", "true", "--optimizer.learning_rate", "0.003"),
        *("--evaluation.batch_size", "64"),
    ),
    "seq2seq": (
        *("--data.sample_pairs", "300", "--data.batch_size", "2", "--evaluation.batch_size", "32"),
        *("--model.layers", "1", "--model.hidden", "128", "--schedule.warmup_steps", "10"),
        *("--training.fp8_emulation", "true", "--optimizer.learning_rate", "0.003"),
    ),
    "graph": (
        *("--data.batch_size", "4", "--model.width", "16", "--model.temporal_layers", "1"),
        *("--schedule.warmup_steps", "10", "--optimizer.learning_rate", "3e-3"),
    ),
    "timeseries": (
        *("--model.width", "16"),
        *("--optimizer.learning_rate", "0.01", "--schedule.warmup_steps", "10"),
    ),
    "windows": (
        *("--model.width", "16"),
        *("--optimizer.learning_rate", "0.01", "--schedule.warmup_steps", "10"),
    ),
}
STEPS = 60  # of 110 or more in an epoch
EVERY_STEP = ("--monitor.every_steps", "1", "--training.max_steps", str(STEPS))


def flags(workload: str) -> tuple[str, ...]:
    return (
        *TINY[workload],
        *EVERY_STEP,
        "--evaluation.every_steps",
        "25",
        "--checkpoint.every_steps",
        "20",
    )


@functools.cache
def synthetic(workload: str, base: Path) -> Path:
    """Synthetic data of a workload, written once; runs link to it."""
    folder = base / workload
    run(render(workload=workload), "train", "--max-steps", "1", *flags(workload), cwd=folder)
    return folder / "data"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A new working folder with the workload's synthetic data in it."""
    base = tmp_path_factory.mktemp("synthetic")
    count = iter(range(10**6))

    def make(workload: str) -> Path:
        folder = tmp_path_factory.mktemp(f"run{next(count)}")
        (folder / "data").symlink_to(synthetic(workload, base))
        return folder

    return make


def project_of(cell: dict[str, str]) -> tuple[Path, tuple[str, ...]]:
    """A cell's project and flags: precision is a setting, but for fp8, which is a file more."""
    if cell["precision"] == "fp8":
        return render(**cell), ()
    shared = {**cell, "layout": "package", "distributed": "none"}  # also of tier A
    precision = shared.pop("precision")
    return render(**shared), ("--training.precision", precision)


@functools.cache
def uninterrupted(workload: str, precision: str, place) -> tuple[list, list]:
    """Losses of a run without a stop by the first loader and framework: what every other cell must repeat."""
    first = next(
        cell for cell in CELLS if cell["workload"] == workload and cell["precision"] == precision
    )
    folder, (project, words) = place(workload), project_of(first)
    result = run(project, "train", *words, *flags(workload), cwd=folder)
    assert result.code == 0, result.err
    return losses(folder), evaluations(folder)


FEW = (
    *("--monitor.every_steps", "1", "--training.max_steps", "6", "--evaluation.every_steps", "4"),
    *("--checkpoint.every_steps", "2"),
)


@functools.cache
def beginning(workload: str, precision: str, place) -> tuple[list, list]:
    """The same of a few steps."""
    first = next(
        cell for cell in CELLS if cell["workload"] == workload and cell["precision"] == precision
    )
    folder, (project, words) = place(workload), project_of(first)
    result = run(project, "train", *words, *TINY[workload], *FEW, cwd=folder)
    assert result.code == 0, result.err
    return losses(folder), evaluations(folder)


@pytest.mark.cover(2)
@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_some_steps_an_evaluation_and_two_resumes_equal_those_of_the_first_cell(
    cell: dict[str, str], place
) -> None:
    (project, precision), workload = project_of(cell), cell["workload"]
    expected, measured = beginning(workload, cell["precision"], place)
    assert (len(expected), len(measured)) == (6, 2)
    folder = place(workload)
    begin = (*precision, *TINY[workload], *FEW, "--max-steps", "3")
    for words in begin, ("--resume", "--max-steps", "5"), ("--resume",):
        done = run(project, "train", *words, cwd=folder)
        assert done.code == 0, done.err
        assert losses(folder) == expected[: len(losses(folder))]
    assert (losses(folder), evaluations(folder)) == (expected, measured)


@pytest.mark.first(1)
@pytest.mark.parametrize("cell", PAIRS, ids=name)
def test_trains_stops_resumes_and_evaluates(cell: dict[str, str], place) -> None:
    (project, precision), workload = project_of(cell), cell["workload"]
    expected, measured = uninterrupted(workload, cell["precision"], place)
    folder = place(workload)
    stopped = run(project, "train", *precision, *flags(workload), "--max-steps", "33", cwd=folder)
    assert stopped.code == 0, stopped.err
    assert losses(folder) == expected[:33]
    resumed = run(project, "train", "--resume", cwd=folder)
    assert resumed.code == 0, resumed.err
    assert losses(folder) == expected
    assert evaluations(folder) == measured
    first, last = (float.fromhex(expected[step][1]) for step in (0, -1))
    assert last <= 0.9 * first

    evaluated = run(project, "evaluate", cwd=folder)
    assert evaluated.code == 0, evaluated.err
    result = json.loads((newest_run(folder) / "evaluation.json").read_text())
    assert result["split"] == "test"
    assert result["metrics"]["loss"] < 1.05 * float.fromhex(measured[-1][1])
    assert result["baselines"]
    for file in ("report.md", "curves.png", "metrics.csv", "env.json", "config.resolved.yaml"):
        assert (newest_run(folder) / file).stat().st_size > 0


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_accumulation_last_short_group_steps_and_resumes(framework: str, place) -> None:
    """55 micro-batches in groups of 4 make 14 steps an epoch; a stop anywhere is between two groups."""
    options = (
        *("--data.batch_size", "256", "--model.width", "32", "--monitor.every_steps", "1"),
        *("--training.epochs", "2", "--training.gradient_accumulation_steps", "4"),
    )
    project = render(workload="tabular", framework=framework)
    whole, parts = place("tabular"), place("tabular")
    assert run(project, "train", *options, cwd=whole).code == 0
    assert [step for step, _ in losses(whole)] == list(range(1, 29))
    for stop in ("13", "14", "15", "28"):
        words = ("--resume",) if stop != "13" else options
        assert run(project, "train", *words, "--max-steps", stop, cwd=parts).code == 0
    assert losses(parts) == losses(whole)
    assert weights(parts) == weights(whole)


def test_a_run_goes_on_under_another_framework(place) -> None:
    expected, measured = uninterrupted("tabular", "fp16", place)
    folder, words = place("tabular"), flags("tabular")
    for framework, stop in zip(choices("framework"), ("21", "42", "60"), strict=True):
        project = render(workload="tabular", precision="fp16", framework=framework)
        done = run(project, "train", *words, "--max-steps", stop, cwd=folder)
        assert done.code == 0, done.err
        words = ("--resume",)
    assert losses(folder) == expected
    assert evaluations(folder) == measured


@pytest.mark.parametrize("cell", products("workload", "framework"), ids=name)
@pytest.mark.cover(1, "framework")
def test_a_finished_run_stays_as_it_is(cell: dict[str, str], place) -> None:
    project, folder = render(**cell), place(cell["workload"])
    assert (
        run(
            project, "train", *flags(cell["workload"]), "--training.max_steps", "4", cwd=folder
        ).code
        == 0
    )
    found = losses(folder), evaluations(folder), weights(folder)
    again = run(project, "train", "--resume", cwd=folder)
    assert again.code == 0, again.err
    assert (losses(folder), evaluations(folder), weights(folder)) == found


def without_compiler() -> None:
    """What loads torch's compiler fails."""

    def refused(*_: object) -> None:
        raise AssertionError("torch._dynamo would be loaded")

    torch.use_deterministic_algorithms = torch.optim.Optimizer.__init__ = refused  # type: ignore[assignment]


def test_a_verb_that_does_not_train_loads_no_compiler(place) -> None:
    """Seconds of each start: torch's optimizers and its deterministic mode import torch._dynamo."""
    project, folder = render(workload="tabular"), place("tabular")
    words = ("train", *flags("tabular"), "--training.max_steps", "2")
    assert "would be loaded" in run(project, *words, cwd=folder, before=without_compiler).err
    assert run(project, *words, cwd=folder).code == 0
    assert run(project, "evaluate", cwd=folder, before=without_compiler).code == 0


def overflowing() -> None:
    """Gradients of this process's seventh step are infinite."""
    precision = importlib.import_module(f"{PACKAGE}.engine.precision").Precision
    real, calls = precision.step, itertools.count(1)

    def step(self, optimizer, clip, divisor):
        if next(calls) == 7:
            raw = getattr(optimizer, "optimizer", optimizer)
            raw.param_groups[0]["params"][0].grad.fill_(float("inf"))
        return real(self, optimizer, clip, divisor)

    precision.step = step


@pytest.mark.parametrize("framework", choices("framework"))
def test_skipped_steps_are_counted_over_a_resume(framework: str, place) -> None:
    """One before the stop that no row told of yet, one after it."""
    project = render(workload="tabular", precision="fp16", framework=framework)
    folder, words = place("tabular"), (*TINY["tabular"], "--training.max_steps", "20")
    for more in ((*words, "--monitor.every_steps", "10", "--max-steps", "7"), ("--resume",)):
        assert run(project, "train", *more, cwd=folder, before=overflowing).code == 0
    found = {row["step"]: row["skipped_steps"] for row in rows(folder) if "split" not in row}
    assert found == {1: 0, 2: 0, 5: 0, 10: 1, 20: 1}
    report = (newest_run(folder) / "report.md").read_text()
    assert "| steps skipped, for an overflow of fp16 | 2 |" in report


def test_the_number_format_of_accelerate_launch_changes_nothing(
    place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch --mixed_precision bf16` and its accumulation say so through the environment."""
    expected = uninterrupted("tabular", "fp32", place)[0]
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    folder, project = (
        place("tabular"),
        render(workload="tabular", precision="fp32", framework="accelerate"),
    )
    assert run(project, "train", *flags("tabular"), "--max-steps", "12", cwd=folder).code == 0
    assert losses(folder) == expected[:12]


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_number_of_workers_changes_nothing(workload: str, place) -> None:
    expected = uninterrupted(workload, "fp32", place)[0]
    project = render(workload=workload, loader="dataloader", precision="fp32")
    for workers in ("0", "2"):
        folder = place(workload)
        words = ("--data.num_workers", workers, "--max-steps", "30")
        assert run(project, "train", *flags(workload), *words, cwd=folder).code == 0
        assert losses(folder) == expected[:30]


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_hash_seed_of_the_interpreter_changes_nothing(workload: str, place) -> None:
    """A fresh interpreter, since a fork has its parent's seed: no order of a set or of hashes gets in."""
    expected = uninterrupted(workload, "fp32", place)[0]
    project, folder = render(workload=workload, precision="fp32"), place(workload)
    (folder / "config.yaml").write_text((project / "config.yaml").read_text())
    another = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "PYTHONHASHSEED": another}
    command = (sys.executable, "-m", "my_training", "train", *flags(workload), "--max-steps", "12")
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    assert losses(folder) == expected[:12]


def test_a_changed_schedule_is_refused(place) -> None:
    folder, project = place("tabular"), render(workload="tabular")
    assert run(project, "train", *flags("tabular"), "--max-steps", "20", cwd=folder).code == 0
    refused = run(project, "train", "--resume", "--training.max_steps", "80", cwd=folder)
    one_error(refused, "schedule", "60", "80")
    assert len(losses(folder)) == 20
