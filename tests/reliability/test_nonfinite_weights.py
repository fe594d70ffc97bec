"""Weights that are not finite are never saved: the last good checkpoint stays the newest."""

import json
import shutil

import pytest
from ranks import run_ranks
from rendering import render
from running import (
    check_run,
    last_checkpoint,
    last_state,
    losses,
    newest_run,
    one_error,
    run,
    weights,
)
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
        elif where == "buffer":
            dict(model.named_buffers())["statistics"].fill_(float(what))

    def after_step(self, run):
        """The state of something else than the model, after the update."""
        self.state["own"] = torch.zeros(2)
        if not Path("spoil").exists():
            return
        what, where, step = Path("spoil").read_text().split()
        if run.progress.step != int(step):
            return
        if where == "optimizer":
            next(iter(run.project.optimizer.state.values()))["exp_avg"][0] = float(what)
        elif where == "average":
            next(iter(run.hooks.all["ema"].averages.values()))[0] = float(what)
        elif where == "hook":
            self.state["own"][1] = float(what)

    state = {"own": torch.zeros(2), "unknown yet": torch.full((2,), torch.inf)}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state
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
            shutil.copytree(render(workload="tabular", **answers), folder)
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
    saved = last_state(tmp_path)
    assert saved["step"] == newest
    assert all(x.isfinite().all() for name, x in saved["model"].items() if name != "mask")
    status = json.loads((newest_run(tmp_path) / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"] in line

    (tmp_path / "spoil").unlink()
    check_run(project, "train", "--resume", cwd=tmp_path)
    assert losses(tmp_path)[-1] == losses(undisturbed)[-1]
    assert weights(tmp_path) == weights(undisturbed)


def test_a_state_beside_the_weights_is_not_saved_either(tmp_path):
    """That of the optimizer, of the averages, of an own hook: the weights and the loss are finite.

    What was not finite before the first step may stay so.
    """
    rendered = render(workload="tabular", extras=["ema"])
    project = shutil.copytree(rendered, tmp_path / "project")
    (project / "src/my_training/hooks/spoil.py").write_text(SPOIL)
    for spoil, name in (
        ("nan optimizer", "optimizer['state'][0]['exp_avg']"),
        ("inf average", "hooks['ema']['averages']["),
        ("-inf hook", "hooks['spoil']['own']"),
    ):
        (tmp_path / "spoil").write_text(f"{spoil} {STEPS}")
        line = one_error(
            run(project, "train", *WORDS, cwd=tmp_path), f"not finite after step {STEPS}"
        )
        assert line.startswith(f"error: {name}")
        assert last_state(tmp_path)["step"] == STEPS - 2
        status = json.loads((newest_run(tmp_path) / "status.json").read_text())
        assert status["state"] == "failed"
    (tmp_path / "spoil").unlink()
    check_run(project, "train", "--resume", cwd=tmp_path)
    assert last_state(tmp_path)["step"] == STEPS


OVERFLOW = '''"""Lets the gradients of the first steps overflow."""

from pathlib import Path

import torch


class Hook:
    def before_step(self, run):
        def spoil(gradient):
            if run.step < int(Path("overflows").read_text()):
                return torch.full_like(gradient, torch.inf)

        if not hasattr(self, "handle"):
            self.handle = next(run.project.model.parameters()).register_hook(spoil)
'''


def test_a_run_whose_steps_all_overflow_ends_with_one_line(tmp_path):
    project = shutil.copytree(render(workload="tabular"), tmp_path / "project")
    (project / "src/my_training/hooks/overflow.py").write_text(OVERFLOW)
    half = (*WORDS, "--training.precision", "fp16", "--monitor.every_steps", "10")
    for overflows, steps, ends_at in ((8, 8, 8), (60, 60, 40)):
        (tmp_path / "overflows").write_text(f"{overflows}")
        flags = ("--training.max_steps", f"{steps}")
        refused = run(project, "train", *half, *flags, cwd=tmp_path)
        line = f"fp16: the last {ends_at} steps overflowed and changed no weight: set training.prec"
        one_error(refused, line)
        alert = "alert: fp16: the last 20 steps overflowed"
        assert (alert in refused.out) == (ends_at > 20)
    for words in (("--name", "parts", "--max-steps", "30", *half, *flags), ("--resume", "parts")):
        refused = run(project, "train", *words, cwd=tmp_path)
    one_error(refused, line)  # a resume continues to count
    (tmp_path / "overflows").write_text("39")
    flags = ("--training.max_steps", "50", "--evaluation.every_steps", "50")
    assert alert in check_run(project, "train", *half, *flags, cwd=tmp_path).out


@pytest.mark.parametrize("spoil", ["nan gradient", "inf buffer"])
def test_all_ranks_end_with_one_line(spoil, spoiled, undisturbed, tmp_path):
    (tmp_path / "data").symlink_to(undisturbed / "data")
    (tmp_path / "spoil").write_text(f"{spoil} 4")
    results = run_ranks(spoiled("pytorch", "ddp"), "train", *WORDS, cwd=tmp_path)
    one_error(results[0], "not finite")
    assert results[1].code == 2
    assert not results[1].errors()
    assert last_checkpoint(tmp_path).name.startswith("step-00000002-")
