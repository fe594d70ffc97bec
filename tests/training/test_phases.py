"""Phases: runs in the folder of one run, each with its own settings, one after another."""

import errno
import importlib
import json
import os
import shutil
import signal
import sys
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rendering import render
from running import PACKAGE, check_run, flip_bit, one_error, rows, run
from variants import choices

OPTIONS = ("--model.width", "16", "--monitor.every_steps", "1", "--schedule.warmup_steps", "2")
PHASES = [
    {"training.max_steps": 12, "data": {"batch_size": 64}},
    {"training.max_steps": 15, "optimizer.learning_rate": 1e-4},
    {"training.max_steps": 5, "training.gradient_accumulation_steps": 2},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    configure(folder)
    train(folder, *OPTIONS)
    return folder


@pytest.fixture
def place(reference, tmp_path):
    (tmp_path / "data").symlink_to(reference / "data")
    configure(tmp_path)
    return tmp_path


def configure(folder, phases=PHASES):
    config = yaml.safe_load(
        (render(workload="tabular", extras=["finetune"]) / "config.yaml").read_text()
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"finetune": {"phases": phases}}))


def train(place, *words, framework="pytorch"):
    project = render(workload="tabular", framework=framework, extras=["finetune"])
    check_run(project, "train", *words, cwd=place)


def phases_of(place):
    (whole,) = (place / "runs").iterdir()
    return sorted(whole.glob("phase-*"))


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def results(place):
    """What must be the same of each phase, bit for bit, however often a run was stopped."""
    return results_of(phases_of(place))


def results_of(phases):
    found = []
    for folder in phases:
        losses = [(row["step"], row.get("split"), row["loss"]) for row in records(folder)]
        state = torch.load(max((folder / "checkpoints").glob("step-*")), weights_only=True)
        found.append((losses, {name: tensor.tolist() for name, tensor in state["model"].items()}))
    return found


def test_a_phase_starts_from_the_last_weights_of_the_one_before(reference, tmp_path):
    """It is the run that `finetune.init_from` makes of them."""
    first, second, _ = phases_of(reference)
    checkpoint = max((first / "checkpoints").glob("step-*"))
    (tmp_path / "data").symlink_to(reference / "data")
    words = ("--finetune.init_from", str(checkpoint), "--training.max_steps", "15")
    train(tmp_path, *OPTIONS, *words, "--optimizer.learning_rate", "1e-4")
    assert [row["loss"] for row in rows(tmp_path)] == [row["loss"] for row in records(second)]


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize("stops", [(5, 9, 14), (11, 12, 4), (12, 13, 2)], ids=str)
@pytest.mark.cover(1)
def test_resume_inside_any_phase(framework, stops, place, reference):
    """A stop counts the steps of the phase in which it is."""
    words = OPTIONS
    for stop in (*stops, 99):
        train(place, *words, "--max-steps", str(stop), framework=framework)
        words = ("--resume",)
    assert results(place) == results(reference)


@pytest.mark.parametrize(("phase", "step"), [(1, 7), (2, 0), (2, 9)])
def test_a_kill_anywhere_changes_nothing(phase, step, place, reference):
    """In a phase, and between two of them."""

    def armed():
        run_module: Any = importlib.import_module(f"{PACKAGE}.engine.training.run")
        begin = run_module.Run.begin
        end_step = run_module.Run.end_step

        def killed_at_begin(run, resumed):
            if step == 0 and run.folder.name == f"phase-{phase}":
                os.kill(os.getpid(), signal.SIGKILL)
            begin(run, resumed)

        def killed_after_step(run, norm):
            end_step(run, norm)
            if run.step == step and run.folder.name == f"phase-{phase}":
                os.kill(os.getpid(), signal.SIGKILL)

        run_module.Run.begin = killed_at_begin
        run_module.Run.end_step = killed_after_step

    project = render(workload="tabular", extras=["finetune"])
    words = ("--checkpoint.every_steps", "4")
    killed = run(project, "train", *OPTIONS, *words, cwd=place, before=armed)
    assert killed.code == -signal.SIGKILL
    train(place, "--resume")
    assert results(place) == results(reference)


def of_first_phase(place):
    """Its checkpoints, the newest first."""
    return sorted((phases_of(place)[0] / "checkpoints").glob("step-*"), reverse=True)


@pytest.mark.parametrize("loss", ["deleted", "damaged", "folder"])
@pytest.mark.first(2)
def test_a_phase_with_checkpoints_needs_none_of_an_earlier_one(loss, place, reference):
    train(place, *OPTIONS, "--max-steps", "12", "--checkpoint.every_steps", "4")
    assert len(phases_of(place)) == 2
    if loss == "folder":
        shutil.rmtree(phases_of(place)[0])
    for path in of_first_phase(place) if loss != "folder" else []:
        path.unlink() if loss == "deleted" else flip_bit(path, -1)
    train(place, "--resume")
    assert results_of(phases_of(place)[-2:]) == results(reference)[1:]


@pytest.mark.parametrize("loss", ["damaged", "deleted"])
@pytest.mark.first(1)
def test_a_phase_whose_last_checkpoint_is_lost_is_completed_again(loss, place, reference):
    """Before the next one begins: that one would begin with other weights."""
    project = render(workload="tabular", extras=["finetune"])
    train(place, *OPTIONS, "--phase", "1", "--checkpoint.every_steps", "4")
    newest, *_ = of_first_phase(place)
    newest.unlink() if loss == "deleted" else flip_bit(newest, -1)
    early = run(project, "train", "--phase", "2", cwd=place)
    one_error(early, "phase 1 is not finished", "resume it first")
    assert len(phases_of(place)) == 1
    train(place, "--resume")
    assert results(place) == results(reference)


def test_one_phase_at_a_time(place, reference):
    words = OPTIONS
    for number in (1, 2, 3):
        train(place, *words, "--phase", str(number))
        assert len(phases_of(place)) == number
        words = ()
    train(place, "--phase", "2")
    assert results(place) == results(reference), "a finished phase stays as it is"


def test_a_phase_waits_for_the_one_before(place):
    project = render(workload="tabular", extras=["finetune"])
    one_error(run(project, "train", "--phase", "2", cwd=place), "no run yet")
    train(place, *OPTIONS, "--phase", "1", "--max-steps", "7")
    one_error(run(project, "train", "--phase", "4", cwd=place), "no phase 4")
    early = run(project, "train", "--phase", "2", cwd=place)
    one_error(early, "phase 1 is not finished", "step 7")


def test_a_phase_trains_and_evaluates_on_data_of_its_own(tmp_path):
    """Two prepared tables, one after the other."""
    project = render(workload="tabular", extras=["finetune"])
    a = np.random.default_rng(0).normal(2, 1, 300)
    phases = []
    for name, slope, steps in (("one", 1.0, 9), ("two", -3.0, 11)):
        table = np.column_stack([a, slope * a])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,target", comments="")
        words = f"--input {name}.csv --target target --task regression --data.path data/{name}"
        check_run(project, "prepare", *words.split(), cwd=tmp_path)
        phases.append({"training.max_steps": steps, "data.path": f"data/{name}"})
    configure(tmp_path, phases)
    train(tmp_path, *OPTIONS, "--data.batch_size", "64", "--max-steps", "10")
    train(tmp_path, "--resume")
    # The second table's targets go down where the first one's go up.
    first, second = phases_of(tmp_path)
    assert records(second)[0]["loss"] > 2 * records(first)[-1]["loss"]
    words = ("--checkpoint", "last", "--split", "validation")
    for name, folder in (((), second), (("--run", f"{first.parent.name}/phase-1"), first)):
        check_run(project, "evaluate", *words, *name, cwd=tmp_path)
        measured = json.loads((folder / "evaluation.json").read_text())["metrics"]["loss"]
        assert measured == [row["loss"] for row in records(folder) if "split" in row][-1]


def test_an_error_that_passes_and_lost_settings_cost_no_phase(place, reference):
    """A folder that cannot be listed, and a phase whose settings are gone, keep what is there."""
    project = render(workload="tabular", extras=["finetune"])
    train(place, *OPTIONS, "--max-steps", "14", "--checkpoint.every_steps", "4")
    second = phases_of(place)[1]

    def unlisted():
        scandir = os.scandir

        def fail_at_phases(path="."):
            if str(path) == str(second.parent.relative_to(place)):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return scandir(path)

        os.scandir = fail_at_phases

    config = second / "config.resolved.yaml"
    config.rename(place / "kept.yaml")
    before = sorted(second.rglob("*"))
    refused = run(project, "train", "--resume", cwd=place)
    one_error(refused, "phase has no config.resolved.yaml", "restore the file")
    assert sorted(second.rglob("*")) == before
    (place / "kept.yaml").rename(config)
    done = run(project, "train", "--resume", cwd=place, before=unlisted)
    if sys.version_info >= (3, 13):  # every listing goes through `scandir` there, and one may fail
        one_error(done, "Permission denied")
        done = run(project, "train", "--resume", cwd=place)
    assert done.code == 0, done.err
    assert results(place) == results(reference)

    one_error(
        run(project, "train", "--data.path", "nowhere", "--name", "new", cwd=place), "nowhere"
    )
    assert [path.name for path in (place / "runs").iterdir()] == [second.parent.name]
