"""Tier B: every workload × loader × framework × precision trains, evaluates, stops and resumes on a
CPU."""

# ruff: noqa: F811 - the fixture `place` is imported

import functools
import math
import os
import statistics

import pytest
import torch
from fresh import Command, run_in
from overflow import overflowing
from rendering import render
from running import (
    PACKAGE,
    check_run,
    evaluation_of,
    evaluations,
    losses,
    newest_run,
    report_of,
    rows,
    weights,
)
from sizes import EMULATED, TINY
from synthetic import EVERY_STEP, SHORT, place  # noqa: F401
from tiers import covering
from variants import choices, name, pairs, products

CELLS = products("workload", "loader", "framework", "precision")
PAIRS = [CELLS[number] for number in sorted(covering([pairs(cell) for cell in CELLS]))]
Reference = tuple[list, list]
LONG = (
    *EVERY_STEP,
    *("--training.max_steps", "60"),  # of 110 or more in an epoch
    *("--evaluation.every_steps", "25", "--checkpoint.every_steps", "20"),
)


def train(project, *words, cwd, **more):
    check_run(project, "train", *words, cwd=cwd, **more)


def project_of(cell):
    """A cell's project and flags. Precision is a setting; only fp8 needs a file more."""
    if cell["precision"] == "fp8":
        return render(**cell), EMULATED
    shared = {**cell, "layout": "package", "distributed": "none"}  # also of tier A
    precision = shared.pop("precision")
    return render(**shared), ("--training.precision", precision)


@functools.cache
def uninterrupted(workload, precision, place, length=LONG):
    """Losses and evaluations by the first loader and framework: all other cells must repeat
    them."""
    cells = (cell for cell in CELLS if cell["workload"] == workload)
    first = next(cell for cell in cells if cell["precision"] == precision)
    folder = place(workload)
    project, words = project_of(first)
    train(project, *words, *TINY[workload], *length, cwd=folder)
    return losses(folder), evaluations(folder)


@pytest.mark.cover(2, "workload", "loader", "framework")
@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_some_steps_an_evaluation_and_two_resumes_equal_those_of_the_first_cell(cell, place):
    workload = cell["workload"]
    project, precision = project_of(cell)
    expected, measured = uninterrupted(workload, cell["precision"], place, SHORT)
    assert (len(expected), len(measured)) == (6, 2)
    folder = place(workload)
    begin = (*precision, *TINY[workload], *SHORT, "--max-steps", "3")
    resume = ("--resume",)
    for words in begin, (*resume, "--max-steps", "5"), resume, resume:  # the last one is finished
        train(project, *words, cwd=folder)
        assert losses(folder) == expected[: len(losses(folder))]
    assert (losses(folder), evaluations(folder)) == (expected, measured)


@pytest.mark.cover(1, "workload")
@pytest.mark.parametrize("cell", PAIRS, ids=name)
def test_learns_and_evaluates(cell, place):
    workload = cell["workload"]
    project, precision = project_of(cell)
    folder = place(workload)
    train(project, *precision, *TINY[workload], *LONG, cwd=folder)
    curve = [float.fromhex(loss) for _, loss in losses(folder)]
    assert statistics.mean(curve[-10:]) <= 0.9 * statistics.mean(curve[:5])

    check_run(project, "evaluate", cwd=folder)
    result = evaluation_of(folder)
    assert result["split"] == "test"
    # The test split has other samples: of llm, other files of the Python that runs.
    assert result["metrics"]["loss"] < 1.25 * float.fromhex(evaluations(folder)[-1][1])
    assert math.isfinite(result["baseline_loss"])
    for file in ("report.md", "curves.png", "env.json"):
        assert (newest_run(folder) / file).stat().st_size > 0


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_accumulation_last_short_group_steps_and_resumes(framework, place):
    """55 micro-batches in groups of 4 make 14 steps an epoch; a stop is always between two
    groups."""
    options = (
        *("--data.batch_size", "256", "--model.width", "32", "--monitor.every_steps", "1"),
        *("--training.epochs", "2", "--training.gradient_accumulation_steps", "4"),
    )
    project = render(workload="tabular", framework=framework)
    whole = place("tabular")
    parts = place("tabular")
    train(project, *options, cwd=whole)
    assert [step for step, _ in losses(whole)] == list(range(1, 29))
    train(project, *options, "--max-steps", "13", cwd=parts)
    for stop in ("14", "15", "28"):
        train(project, "--resume", "--max-steps", stop, cwd=parts)
    assert losses(parts) == losses(whole)
    assert weights(parts) == weights(whole)


def test_a_run_resumes_under_another_framework(place):
    expected = uninterrupted("tabular", "fp16", place)
    folder = place("tabular")
    words = (*TINY["tabular"], *LONG)
    for framework, stop in zip(choices("framework"), ("21", "42", "60"), strict=True):
        project = render(workload="tabular", precision="fp16", framework=framework)
        train(project, *words, "--max-steps", stop, cwd=folder)
        words = ("--resume",)
    assert (losses(folder), evaluations(folder)) == expected


def without_compiler():
    """What loads torch's compiler fails."""
    torch.use_deterministic_algorithms = None  # type: ignore[assignment]
    torch.optim.Optimizer.__init__ = None  # type: ignore[assignment,method-assign]


def test_a_command_that_does_not_train_loads_no_compiler(place):
    """Seconds of each start: torch's optimizers and its deterministic mode import torch._dynamo."""
    project = render(workload="tabular")
    folder = place("tabular")
    train(project, *TINY["tabular"], "--training.max_steps", "2", cwd=folder)
    check_run(project, "evaluate", cwd=folder, before=without_compiler)


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.cover(1)
def test_an_overflow_under_fp16_skips_an_update_and_is_counted_over_a_resume(
    framework, fused, place
):
    """One before the stop that no record told of yet, one after it; weights stay finite."""
    answers = {"precision": "fp16", "framework": framework, "extras": ["compare"]}
    project = render(workload="tabular", **answers)
    folder = place("tabular")
    words = (*TINY["tabular"], "--training.max_steps", "20", "--monitor.every_steps", "10")
    words = (*words, "--optimizer.fused", fused)
    train(project, *words, "--max-steps", "7", cwd=folder, before=overflowing)
    train(project, "--resume", cwd=folder, before=overflowing)
    skipped = {row["step"]: row["skipped_steps"] for row in rows(folder) if "split" not in row}
    assert skipped == {1: 0, 2: 0, 5: 0, 10: 1, 20: 1}
    assert "| steps skipped because of fp16 overflow | 2 |" in report_of(folder)


def test_the_number_format_of_accelerate_launch_changes_nothing(place, monkeypatch):
    """`accelerate launch --mixed_precision bf16` and its accumulation come by the environment."""
    expected, _ = uninterrupted("tabular", "fp32", place)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    project = render(workload="tabular", precision="fp32", framework="accelerate")
    folder = place("tabular")
    train(project, *TINY["tabular"], *LONG, "--max-steps", "12", cwd=folder)
    assert losses(folder) == expected[:12]


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.first(1)
def test_hash_seed_of_the_interpreter_changes_nothing(workload, place):
    """A fresh interpreter, since a fork has its parent's seed: no order of a set gets in."""
    expected, _ = uninterrupted(workload, "fp32", place, SHORT)
    project = render(workload=workload, precision="fp32")
    folder = place(workload)
    another = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    words = ("train", *TINY[workload], *SHORT)
    command = Command(project / "src", f"{PACKAGE}.__main__", words, folder)
    (done,) = run_in({"PYTHONHASHSEED": another}, [command])
    assert done.code == 0, done.err
    assert losses(folder) == expected
