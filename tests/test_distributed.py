"""Several processes of one run: the losses of one, stops that all agree on, one that writes."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks, start_ranks
from rendering import render
from running import evaluations, losses, newest_run, one_error, rows, run, weights
from test_tier_b import TINY, place  # noqa: F401 - a fixture
from variants import choices, name, products

CELLS = [
    cell for cell in products("workload", "framework", "distributed") if cell["distributed"] != "none"
]
STEPS = 24
# Samples of a step: two ranks take half each. Dropout draws other numbers on each rank, so there is none here.
BATCH = {"tabular": 64, "llm": 8, "graph": 4, "timeseries": 32, "seq2seq": 8}
SAME = (
    *("--model.dropout", "0", "--training.precision", "fp32", "--monitor.every_steps", "1"),
    *("--training.max_steps", str(STEPS), "--evaluation.every_steps", "12", "--checkpoint.every_steps", "8"),
    *("--evaluation.batch_size", "16", "--schedule.warmup_steps", "4"),
)


def flags(workload: str, world: int, *more: str) -> tuple[str, ...]:
    return (*TINY[workload], *SAME, "--data.batch_size", str(BATCH[workload] // world), *more)


@functools.cache
def alone(workload: str, place, *more: str) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:  # noqa: F811
    """Losses and evaluations of one process with the same samples in a step."""
    folder = place(workload)
    result = run(render(workload=workload), "train", *flags(workload, 1, *more), cwd=folder)
    assert result.code == 0, result.err
    return folder, trained(folder), measured(folder)


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if "split" not in row]


def measured(folder: Path) -> list[dict[str, Any]]:
    drop = ("seconds", "time", "split")
    return [
        {key: row[key] for key in row if key not in drop} for row in rows(folder) if "split" in row
    ]


def assert_good(results: list) -> None:
    assert [result.code for result in results] == [0] * len(results), [result.err[-2500:] for result in results]


def assert_close(folder: Path, workload: str, place, *more: str) -> None:  # noqa: F811
    """Losses and evaluations are those of one process within 1e-5."""
    _, expected, evaluated = alone(workload, place, *more)
    assert [row["loss"] for row in trained(folder)] == pytest.approx([row["loss"] for row in expected], rel=1e-5)
    norms = [row["gradient_norm"] for row in expected]
    assert [row["gradient_norm"] for row in trained(folder)] == pytest.approx(norms, rel=1e-3)
    for row, wanted in zip(measured(folder), evaluated, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_two_ranks_train_stop_resume_and_evaluate_as_one(cell: dict[str, str], place) -> None:  # noqa: F811
    project, workload = render(**cell), cell["workload"]
    folder = place(workload)
    assert_good(run_ranks(project, "train", *flags(workload, 2), "--max-steps", "11", cwd=folder))
    assert len(losses(folder)) == 11
    assert_good(run_ranks(project, "train", "--resume", cwd=folder))
    assert_close(folder, workload, place)
    (found,) = (folder / "runs").iterdir()
    assert json.loads((found / "status.json").read_text())["resumes"] == [11]
    assert sum(1 for _ in rows(folder)) == STEPS + len(measured(folder)), "one rank writes"

    results = run_ranks(project, "evaluate", "--split", "validation", "--checkpoint", "last", cwd=folder)
    assert_good(results)
    assert "samples/s" in results[0].out
    assert results[1].out == ""
    together = json.loads((found / "evaluation.json").read_text())
    assert_good([run(project, "evaluate", "--split", "validation", "--checkpoint", "last", cwd=folder)])
    by_one = json.loads((found / "evaluation.json").read_text())
    assert together["metrics"] == pytest.approx(by_one["metrics"], rel=1e-6)
    assert together["metrics"]["loss"] == pytest.approx(measured(folder)[-1]["loss"], rel=1e-6)


SHORT = ("--training.gradient_accumulation_steps", "3")


@pytest.mark.parametrize("workload", choices("workload"))
def test_accumulation_over_ranks(workload: str, place) -> None:  # noqa: F811
    """Groups of three micro-batches, gradients exchanged once: as one process with three times the batch."""
    folder, project = place(workload), render(workload=workload, distributed="ddp")
    assert_good(run_ranks(project, "train", *flags(workload, 2, *SHORT), cwd=folder))
    assert_close(folder, workload, place, *SHORT)
