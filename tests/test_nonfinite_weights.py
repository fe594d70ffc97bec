"""Weights that are not finite are never saved: the last good checkpoint stays the newest."""

import json
import shutil

import pytest
import torch
from ranks import run_ranks
from rendering import render
from running import (
    check_run,
    last_checkpoint,
    losses,
    newest_run,
    one_error,
    run,
    weights,
)
from test_phases import configure
from variants import choices

STEPS = 8
WORDS = (
    *("--training.max_steps", f"{STEPS}", "--checkpoint.every_steps", "2", "--model.width", "16"),
    *("--data.batch_size", "64", "--schedule.warmup_steps", "2"),
)
# As long as the file `spoil` exists, its step is spoiled, and the loss of that step is finite.
SPOIL = '''"""Spoils a gradient or a buffer."""

from pathlib import Path

import torch


def spoil(gradient):
    what, _, _ = Path("spoil").read_text().split()
    return torch.full_like(gradient, float(what))


class Hook:
    def before_step(self, run):
        if not Path("spoil").exists():
            return
        what, where, step = Path("spoil").read_text().split()
        if run.progress.step + 1 != int(step):
            return
        model = run.project.model
        if where == "gradient":
            next(model.parameters()).register_hook(spoil)
        else:
            dict(model.named_buffers())["statistics"].fill_(float(what))
'''
BUFFERS = """

without_buffers = build_model


def build_model(settings, facts):
    model = without_buffers(settings, facts)
    model.register_buffer("statistics", torch.zeros(2))
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    return model
"""


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    """Makes a project whose hook spoils a step."""

    def make(framework, distributed="none"):
        folder = tmp_path_factory.getbasetemp() / f"spoiled-{framework}-{distributed}"
        if not folder.exists():
            answers = {"framework": framework, "distributed": distributed}
            project = render(workload="tabular", extras=["finetune"], **answers)
            shutil.copytree(project, folder)
            (folder / "src/my_training/hooks/spoil.py").write_text(SPOIL)
            with open(folder / "src/my_training/model.py", "a") as model:
                model.write(BUFFERS)
        return folder

    return make


@pytest.fixture(scope="module")
def undisturbed(spoiled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    check_run(spoiled("pytorch"), "train", *WORDS, cwd=folder)
    return folder


def newest_step(folder):
    """That of the newest checkpoint, whose weights must be finite."""
    saved = torch.load(last_checkpoint(folder), weights_only=True)
    tensors = saved["model"]
    assert all(tensor.isfinite().all() for name, tensor in tensors.items() if name != "mask")
    return saved["step"]


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.parametrize("spoil", ["nan gradient", "inf gradient", "nan buffer", "inf buffer"])
@pytest.mark.parametrize(("step", "newest"), [(4, 2), (STEPS, 6), (5, 4)])
@pytest.mark.cover(1)
def test_a_step_that_spoils_weights_is_one_line_and_is_not_saved(
    framework, spoil, step, newest, spoiled, undisturbed, tmp_path
):
    project = spoiled(framework)
    (tmp_path / "data").symlink_to(undisturbed / "data")
    (tmp_path / "spoil").write_text(f"{spoil} {step}")
    line = one_error(run(project, "train", *WORDS, cwd=tmp_path), "not finite")
    if "gradient" in spoil:
        assert f"the gradient of step {step} is not finite" in line
    else:
        assert "statistics" in line
        assert "mask" not in line
    assert newest_step(tmp_path) == newest
    status = json.loads((newest_run(tmp_path) / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"] in line

    (tmp_path / "spoil").unlink()
    check_run(project, "train", "--resume", cwd=tmp_path)
    assert losses(tmp_path)[-1] == losses(undisturbed)[-1]
    assert weights(tmp_path) == weights(undisturbed)


@pytest.mark.parametrize("spoil", ["nan gradient", "inf buffer"])
def test_all_ranks_end_with_one_line(spoil, spoiled, undisturbed, tmp_path):
    (tmp_path / "data").symlink_to(undisturbed / "data")
    (tmp_path / "spoil").write_text(f"{spoil} 4")
    results = run_ranks(spoiled("pytorch", "ddp"), "train", *WORDS, cwd=tmp_path)
    one_error(results[0], "not finite")
    assert results[1].code == 2
    assert not results[1].errors()
    assert last_checkpoint(tmp_path).name.startswith("step-00000002-")


def test_a_later_phase_keeps_the_checkpoint_of_the_one_before(spoiled, tmp_path):
    project = spoiled("pytorch")
    configure(tmp_path, [{"training.max_steps": 3}, {"training.max_steps": 5}])
    (tmp_path / "spoil").write_text("nan gradient 4")
    words = ("--model.width", "16", "--checkpoint.every_steps", "100")
    one_error(run(project, "train", *words, cwd=tmp_path), "the gradient of step 4 is not finite")
    (checkpoint,) = tmp_path.glob("runs/*/phase-*/checkpoints/step-*")
    assert checkpoint.parts[-3:-1] == ("phase-1", "checkpoints")
    (tmp_path / "spoil").unlink()
    assert "finished at step 5" in check_run(project, "train", "--resume", cwd=tmp_path).out


@pytest.mark.parametrize("framework", choices("framework"))
@pytest.mark.first(1)
def test_steps_that_fp16_skips_are_no_error(framework, spoiled, tmp_path):
    (tmp_path / "spoil").write_text("inf gradient 4")
    words = (*WORDS, "--training.precision", "fp16")
    check_run(spoiled(framework), "train", *words, cwd=tmp_path)
    assert newest_step(tmp_path) == STEPS
