"""Faults of running and resuming that users met: each is right, or one line."""

import ctypes
import os
import re
import shutil
import signal
import sys
from shlex import split

import pytest
import torch
from importing import imported
from made_up import columns, lines, written
from rendering import render
from running import check_run, evaluations, last_state, losses, one_error, run

TABULAR = render(workload="tabular", extras=["finetune"])
SMALL = (
    *("--model.width", "16", "--data.batch_size", "64", "--schedule.warmup_steps", "2"),
    *("--monitor.every_steps", "1"),
)


def with_hook(folder, source, extras=(), **answers):
    """A tabular project with one hook of its own."""
    rendered = render(workload="tabular", extras=["finetune", *extras], **answers)
    project = shutil.copytree(rendered, folder / "project")
    (project / "src/my_training/hooks/own.py").write_text(source)
    return project


# ---- the start -----------------------------------------------------------------------------------


def test_a_warm_up_that_does_not_end_is_a_note(tmp_path):
    words = ("train", "--training.max_steps", "3", "--schedule.warmup_steps")
    for steps, is_longer in (("5", True), ("3", False), ("auto", False)):
        done = check_run(TABULAR, *words, steps, cwd=tmp_path)
        noted = (
            "note: the warm-up of 5 steps is longer than the run of 3, so the learning" in done.out
        )
        assert noted == is_longer


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


def killed_before_a_save():
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


# ---- memory --------------------------------------------------------------------------------------

HOARD = '''"""Keeps 60 MB more after each epoch."""

import numpy as np


class Hook:
    def __init__(self):
        self.kept = []

    def after_step(self, run):
        if run.step % run.steps_per_epoch == 0:
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


# ---- files that cannot be read or written --------------------------------------------------------


def as_other_users():
    """Root may read and write everything: give up these two capabilities."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    for place in range(3):
        data[place] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, data) == 0


def set_mode(folder, mode):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(mode | (0o100 if path.is_dir() and mode else 0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on prepared data that stopped after 4 of 6 steps."""
    folder = tmp_path_factory.mktemp("trained")
    table = written(folder, lines(columns()))
    words = ("--target", "price", "--task", "regression")
    check_run(TABULAR, "prepare", "--input", table, *words, cwd=folder)
    words = (*SMALL, "--training.max_steps", "6", "--max-steps", "4")
    check_run(TABULAR, "train", "--name", "first", *words, cwd=folder)
    return folder


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    yield tmp_path
    set_mode(tmp_path, 0o700)


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_what_may_not_be_written_or_read_is_one_line(place):
    set_mode(place / "runs", 0o500)
    done = run(TABULAR, "evaluate", cwd=place, before=as_other_users)
    assert "mse_original" in done.out
    one_error(done, "Permission denied.*runs/first", "permissions")
    resumed = run(TABULAR, "train", "--resume", cwd=place, before=as_other_users)
    one_error(resumed, "Permission denied.*runs/first", "permissions")

    set_mode(place / "runs", 0o700)
    (place / "data/manifest.json").chmod(0)
    refused = run(TABULAR, "train", *SMALL, cwd=place, before=as_other_users)
    assert "damaged" not in one_error(refused, "Permission denied.*data", "permissions")


LINKED = ("metrics.jsonl", "events.jsonl", "status.json", "env.json", "report.md", "checkpoints")
LINKED += ("examples", ".lock", ".report.md.partial", "tensorboard")


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_written_through_a_link_out_of_a_run(place, tmp_path_factory, monkeypatch):
    """To a file, a folder or nothing. A link inside of a run, and one to a whole run, are used."""
    monkeypatch.chdir(place)
    outside = tmp_path_factory.mktemp("outside")
    folder = place / "runs/first"
    runs = imported(TABULAR, "engine.runs")
    for name in LINKED:
        path = folder / name
        if path.exists():
            shutil.move(path, outside / name)
        path.symlink_to(outside / name)
        with pytest.raises(runs.UserError, match=f"leads out of the run: runs/first/{name}: copy"):
            runs.find_run("first")
        if name == "checkpoints":
            before = contents(outside)
            for words in (("train", "--resume"), ("evaluate",), ("report",)):
                one_error(run(TABULAR, *words, cwd=place), "a link leads out of the run")
            assert contents(outside) == before
        path.unlink()
        if (outside / name).exists():
            shutil.move(outside / name, path)

    (folder / "notes.txt").write_text("mine")
    (folder / ".evaluation.json.partial").symlink_to("notes.txt")
    shutil.move(folder, outside / "moved")
    folder.symlink_to(outside / "moved")
    check_run(TABULAR, "evaluate", cwd=place)
    assert (folder / "notes.txt").read_text() == "mine"


# ---- weights of other programs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("model.pt", lambda state: state),
        ("pytorch_model.bin", lambda state: {"state_dict": state, "epoch": 3}),
        ("step-00000003-mine.pt", lambda state: {"model": state, "step": 3}),
    ],
)
def test_a_run_starts_from_what_torch_save_wrote(name, wrap, place):
    torch.save(wrap(last_state(place)["model"]), place / name)
    content = (place / name).read_bytes()
    words = ("train", *SMALL, "--training.max_steps", "1", "--finetune.init_from")
    done = check_run(TABULAR, *words, name, cwd=place)
    line = rf"weights of {name}: \d+ tensors fit; new: nothing; unused: nothing"
    assert re.search(line, done.out)
    assert (place / name).read_bytes() == content


# ---- what a resume needs -------------------------------------------------------------------------


def test_a_resume_without_checkpoints_says_so(place):
    shutil.rmtree(place / "runs/first/checkpoints")
    done = check_run(TABULAR, "train", "--resume", cwd=place)
    assert "note: the run has no checkpoint: it starts again at step 0" in done.out
    assert [step for step, _ in losses(place)] == list(range(1, 7))


def test_a_resume_without_its_data_is_one_line(place):
    shutil.rmtree(place / "data")
    for words in (("train", "--resume", "first"), ("evaluate", "--run", "first")):
        one_error(run(TABULAR, *words, cwd=place), "no prepared data: data: run `prepare")
    assert not (place / "data").exists()


SPOIL = '''"""Removes or cuts the prepared data after the first step."""

import os


class Hook:
    def after_step(self, run):
        for path in run.project.store.folder.glob("*.bin"):
            CHANGE
'''


@pytest.mark.parametrize("change", ["path.unlink()", "os.truncate(path, 8)"])
def test_a_file_that_disappears_is_one_line_of_a_worker(change, place):
    """The worker of the next epoch maps the files."""
    project = with_hook(place, SPOIL.replace("CHANGE", change), loader="dataloader")
    words = "--data.num_workers 1 --data.persistent_workers false --training.epochs 3"
    done = run(project, "train", *SMALL, *words.split(), cwd=place)
    one_error(done, "the rows of .* are not here", "--data.path")
