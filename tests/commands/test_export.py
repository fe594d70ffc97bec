"""`export`: every workload's trained model, by torch alone, by the project, and with int8
weights."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from importing import imported
from rendering import REPOSITORY, render, replace
from running import check_run, documented, newest_run
from safetensors.torch import load_file
from sizes import TINY
from variants import choices

EXPORT = {"extras": ["export"], "loader": "dataloader"}
SHORT = ("--training.max_steps", "20")


def trained(workload, folder):
    """A project with the command, and a short run of it in `folder`."""
    project = render(workload=workload, **EXPORT)
    check_run(project, "train", *TINY[workload], *SHORT, cwd=folder)
    return project


def measured(out):
    """The loss as trained and with int8."""
    (losses,) = re.findall(r"^loss +(\S+) +(\S+)$", out, re.MULTILINE)
    return [float(loss) for loss in losses]


# chat writes a folder of Hugging Face: tests/workloads/test_chat.py.
PROGRAMS = [workload for workload in choices("workload") if workload != "chat"]


# The program of an LSTM takes ten times as long.
@pytest.mark.parametrize("workload", sorted(PROGRAMS, key=lambda w: w != "tabular"))
@pytest.mark.first(1)
def test_every_workload_is_written_and_loads(workload, tmp_path):
    """Also where blocks are compiled, as on a GPU: no other machine could run such a program."""
    project = trained(workload, tmp_path)
    words = ("export", "--int8", "--compile.enabled", "true", "--training.precision", "bf16")
    result = check_run(project, *words, cwd=tmp_path)
    folder = newest_run(tmp_path) / "export"
    program = torch.export.load(folder / "model.pt2").module()
    batch = load_file(folder / "example.safetensors")
    first = program({name: value[:1] for name, value in batch.items()})
    for name, value in program(batch).items():
        torch.testing.assert_close(first[name], value[:1], equal_nan=True, rtol=1e-3, atol=1e-4)
    full = load_file(folder / "model.safetensors")
    small = load_file(folder / "model.int8.safetensors")
    for name in [name for name in small if f"{name}.scale" in small]:
        scale = small[f"{name}.scale"]
        assert ((small[name] * scale - full[name]).abs() <= 0.51 * scale + 1e-9).all(), name
    if workload != "vision":  # whose weights are convolutions, and stay
        size = (folder / "model.safetensors").stat().st_size
        assert (folder / "model.int8.safetensors").stat().st_size < 0.7 * size
    before, after = measured(result.out)
    assert after == pytest.approx(before, rel=0.05)
    if workload == "tabular":
        assert after != before, "it is the rounded model that is measured"


@pytest.mark.full
def test_the_example_predicts_with_torch_alone_and_with_the_project(tmp_path):
    """In an interpreter of its own, from another working folder."""
    project = trained("timeseries", tmp_path)
    output = tmp_path / "elsewhere" / "model"
    check_run(project, "export", "--output", str(output), cwd=tmp_path)

    def printed(path):
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, output / "load.py"]
        return subprocess.check_output(command, cwd="/", env=environment, text=True)

    alone = printed("/nowhere")
    assert "prediction (64, 12, 3)" in alone
    (output / "model.pt2").unlink()
    assert printed(f"{project}/src") == alone


def test_a_model_that_torch_export_refuses_is_written_all_the_same(tmp_path):
    project = shutil.copytree(trained("tabular", tmp_path), tmp_path / "project")
    head = "return self.head(x).float()"
    replace(project / "src/my_training/model.py", head, f"{head} if x.sum().item() else x")
    result = check_run(project, "export", cwd=tmp_path)
    assert "note: no model.pt2, because torch.export failed: " in result.out
    folder = newest_run(tmp_path) / "export"
    assert not (folder / "model.pt2").exists()
    assert (folder / "load.py").exists()


def test_an_lstm_says_what_int8_is_not():
    module = imported(render(workload="timeseries", **EXPORT), "commands.export")
    model = torch.nn.Module()
    model.encoder = torch.nn.LSTM(8, 16)
    model.predict = lambda batch: {}
    before = model.encoder.weight_hh_l0.detach().clone()
    rounded, notes = module.quantize(model, {})
    assert set(rounded) == {"encoder.weight_ih_l0", "encoder.weight_hh_l0"}
    assert "encoder: smaller, not faster: torchao has no int8 for LSTM" in "".join(notes)
    whole, scale = rounded["encoder.weight_hh_l0"]
    assert scale.shape == (64, 1)
    torch.testing.assert_close(model.encoder.weight_hh_l0.detach(), whole * scale)
    assert 0 < (model.encoder.weight_hh_l0 - before).abs().max() <= 0.5 * scale.max() * 1.01


def test_the_commands_of_the_page_work(tmp_path):
    for words in documented(REPOSITORY / "docs/how-to/export.md"):
        fewer = ("--max-steps", "50") if words[0] == "train" else ()
        check_run(render(workload="tabular", **EXPORT), *words, *fewer, cwd=tmp_path)
