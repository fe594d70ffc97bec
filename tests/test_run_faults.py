"""Faults of running and resuming that users met: each is right, or one line."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch
from importing import imported
from made_up import values
from rendering import render
from running import check_run, evaluations, losses, run
from test_windows import hdf5

TABULAR = render(workload="tabular")
SMALL = (
    *("--model.width", "16", "--data.batch_size", "64", "--schedule.warmup_steps", "2"),
    *("--monitor.every_steps", "1"),
)


def with_hook(folder: Path, source: str, **answers: Any) -> Path:
    """A tabular project with one hook of its own."""
    project = shutil.copytree(render(workload="tabular", **answers), folder / "project")
    (project / "src/my_training/hooks/own.py").write_text(source)
    return project


# ---- the chunk loader alone ----------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", ["auto", 40e-6])
def test_batches_of_the_chunk_loader_can_be_kept(size, shuffle, tmp_path):
    targets = values(1000)[:, :1]
    path = hdf5(tmp_path, targets=targets, features=values(1000))
    loader_class = imported(render(workload="windows", loader="chunk"), "engine.loader")
    options = {"chunk_size_gb": size, "device": "cpu", "shuffle": shuffle}
    with loader_class.ChunkDataLoader(path, 64, **options) as loader:
        kept = torch.cat([target for _, target in loader])
    assert kept.unique().equal(torch.from_numpy(targets).unique())
    with loader_class.ChunkDataLoader(path, 64, reuse=True, **options) as loader:
        assert torch.cat([target.clone() for _, target in loader]).equal(kept)


# ---- evaluations ---------------------------------------------------------------------------------

INTERRUPT = '''"""Receives a signal in an evaluation, as long as the file `interrupt` exists."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path


class Hook:
    @contextmanager
    def evaluating(self, run):
        if Path("interrupt").exists():
            Path("interrupt").unlink()
            os.kill(os.getpid(), signal.SIGTERM)
        yield
'''


def killed_before_a_save() -> None:
    real = os.replace

    def replace(source, target):
        if "step-" in f"{source} {target}":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(source, target)

    os.replace = replace


def test_an_evaluation_that_was_not_saved_is_logged_once(tmp_path):
    project = with_hook(tmp_path, INTERRUPT)
    words = (*SMALL, "--training.max_steps", "6", "--evaluation.every_steps", "3")
    (tmp_path / "interrupt").touch()
    assert run(project, "train", *words, cwd=tmp_path).code == 143
    killed = run(project, "train", "--resume", cwd=tmp_path, before=killed_before_a_save)
    assert killed.code == -signal.SIGKILL
    assert [step for step, _ in evaluations(tmp_path)] == [3], "logged, but not saved"
    check_run(project, "train", "--resume", cwd=tmp_path)
    assert [step for step, _ in evaluations(tmp_path)] == [3, 6]
    assert [step for step, _ in losses(tmp_path)] == list(range(1, 7))


def test_a_higher_patience_continues_a_run_that_stopped_early(tmp_path):
    words = (*SMALL, "--training.max_steps", "12", "--evaluation.every_steps", "2")
    words = (*words, "--optimizer.learning_rate", "0.5", "--schedule.name", "constant")
    patience = "--evaluation.patience"
    early = check_run(TABULAR, "train", *words, patience, "1", cwd=tmp_path)
    assert "early stop: 1 evaluations" in early.out
    steps = losses(tmp_path)[-1][0]
    assert steps < 12
    again = check_run(TABULAR, "train", "--resume", cwd=tmp_path)
    assert f"finished at step {steps} of 12" in again.out
    done = check_run(TABULAR, "train", "--resume", patience, "100", cwd=tmp_path)
    assert "finished at step 12 of 12" in done.out
    assert [step for step, _ in losses(tmp_path)] == list(range(1, 13))


# ---- memory --------------------------------------------------------------------------------------

HOARD = '''"""Keeps 60 MB more after each epoch."""

import numpy as np


class Hook:
    def __init__(self):
        self.kept = []

    def after_step(self, run):
        if run.progress.batch == 0:
            self.kept.append(np.ones(60 << 20, np.uint8))
'''


@pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read from /proc")
def test_memory_that_grows_a_little_in_each_epoch_is_an_alert(tmp_path):
    project = with_hook(tmp_path, HOARD, extras=["watch"])
    words = split("--data.fraction 0.02 --data.batch_size 140 --training.epochs 6")
    done = check_run(project, "train", "--model.width", "16", *words, cwd=tmp_path)
    alerts = re.findall("alert: memory: the training process grew by ([0-9]+) MB", done.out)
    assert len(alerts) == 1, done.out
    assert 100 < int(alerts[0]) < 200
