"""Runs and data of older versions and of other answers: gone on with, or refused by one line that says so."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

import golden
import pytest
from rendering import REPOSITORY, render, render_into
from running import evaluations, losses, newest_run, one_error, run
from test_tier_b import TINY
from variants import choices

# Versions, by their commits: each release adds a line. The first shape had samples come in another order.
ANOTHER_ORDER = ("31e3d70",)
SAME_ORDER = ("b307fa5",)

STEPS, STOP = 40, 23
LENGTH = (
    "--training.max_steps",
    str(STEPS),
    "--evaluation.every_steps",
    "20",
    "--monitor.every_steps",
    "1",
)


def there(revision: str) -> bool:
    """Whether this clone has the commit: a shallow one does not."""
    done = subprocess.run(
        ["git", "cat-file", "-e", f"{revision}^{{commit}}"], cwd=REPOSITORY, capture_output=True
    )
    return done.returncode == 0


@functools.cache
def older(revision: str, workload: str, folder: Path) -> Path:
    """The project that the version rendered."""
    if not there(revision):
        pytest.skip(f"this clone has no commit {revision}")
    source = golden.Tree(revision, folder).source
    return render_into(folder / "project", source=source, workload=workload)


@pytest.mark.parametrize("workload", ["timeseries", "tabular", "llm"])
@pytest.mark.parametrize("revision", ANOTHER_ORDER)
@pytest.mark.first(1)
def test_a_run_of_another_order_is_evaluated_and_not_resumed(
    revision: str, workload: str, tmp_path: Path
) -> None:
    project, folder = older(revision, workload, tmp_path / "older"), tmp_path / "work"
    words = ("--max-steps", str(STOP), *TINY[workload], *LENGTH)
    assert run(project, "train", *words, cwd=folder).code == 0
    (folder / "config.yaml").unlink()  # as an update leaves it: of the new version
    evaluated = run(render(workload=workload), "evaluate", cwd=folder)
    assert evaluated.code == 0, evaluated.err
    measured = json.loads((newest_run(folder) / "evaluation.json").read_text())["metrics"]["loss"]
    assert measured == pytest.approx(float.fromhex(evaluations(folder)[-1][1]), rel=0.3)
    one_error(
        run(render(workload=workload), "train", "--resume", cwd=folder),
        "rule 1 of the order",
        "rule 2",
    )
    assert len(losses(folder)) == STOP


@pytest.mark.parametrize("workload", choices("workload"))
@pytest.mark.parametrize("revision", SAME_ORDER)
@pytest.mark.first(2)
def test_a_run_goes_on_after_an_update(revision: str, workload: str, tmp_path: Path) -> None:
    project, folder = older(revision, workload, tmp_path / "older"), tmp_path / "work"
    words = ("--max-steps", str(STOP), *TINY[workload], *LENGTH)
    assert run(project, "train", *words, cwd=folder).code == 0
    (folder / "config.yaml").unlink()
    for verb in ("train", "--resume"), ("evaluate",):
        done = run(render(workload=workload), *verb, cwd=folder)
        assert done.code == 0, done.err
    assert [step for step, _ in losses(folder)] == list(range(1, STEPS + 1))


def test_a_run_goes_on_when_extras_tracker_and_loader_are_others(tmp_path: Path) -> None:
    """All of it taken away: a note names the sections that are gone, and every loss is the same."""
    everything = render(
        workload="timeseries", loader="chunk", tracker="tensorboard", extras=list(choices("extras"))
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(everything, "train", *TINY["timeseries"], *LENGTH, cwd=whole).code == 0
    words = ("--max-steps", str(STOP), *TINY["timeseries"], *LENGTH)
    assert run(everything, "train", *words, cwd=parts).code == 0
    (parts / "config.yaml").unlink()
    resumed = run(render(workload="timeseries", extras=[]), "train", "--resume", cwd=parts)
    assert resumed.code == 0, resumed.err
    assert "watch" in resumed.err
    assert losses(parts) == losses(whole)
    assert evaluations(parts) == evaluations(whole)
