"""Lines that blame the wrong thing, or advise what makes it worse."""

import json
import shutil
import sys
from shlex import split

import pytest
import torch
from importing import imported
from rendering import render
from running import check_run, one_error, run

SHORT = split("--training.max_steps 3 --monitor.every_steps 1 --evaluation.every_steps 1000")


# ---- a loss that is not finite -------------------------------------------------------------------

FAILING = """

build_sound_model = build_model


def build_model(*given: Any) -> Any:
    model = build_sound_model(*given)
    sound_forward = model.forward

    def forward(batch: Any) -> Any:
        output = sound_forward(batch)
        fails = ({fails}) & batch["present"]
        return output._replace(loss=output.loss + torch.where(fails, torch.nan, 0.0).sum())

    model.forward = forward
    return model
"""


def failing(folder, fails, **answers):
    """A project whose model has no finite loss for the samples that `fails` says."""
    project = shutil.copytree(render(extras=["diagnose"], **answers), folder / "project")
    with open(project / "src/my_training/model.py", "a") as model:
        model.write(FAILING.format(fails=fails))
    return project


@pytest.mark.parametrize("loader", ["dataloader", "memmap", "chunk"])
@pytest.mark.parametrize(
    "workload", ["tabular", "timeseries", "forecast", "llm", "graph", "windows"]
)
@pytest.mark.cover(1)
def test_a_model_that_fails_for_most_samples_blames_none_of_them(workload, loader, tmp_path):
    project = failing(tmp_path, 'batch["index"] % 8 != 0', workload=workload, loader=loader)
    refused = run(project, "train", *SHORT, cwd=tmp_path)
    line = one_error(refused, "loss of step 1 is not finite", "of 1?\\d other", "model.py, forward")
    assert "training sample" not in line
    assert "learning_rate" not in line, "no step has changed the weights before the first loss"


def test_a_model_that_fails_for_few_samples_names_one_of_them_and_itself(tmp_path):
    project = failing(tmp_path, 'batch["index"] % 8 == 0', workload="tabular")
    refused = run(project, "train", *SHORT, cwd=tmp_path)
    line = one_error(refused, r"training sample \d+: fix that sample, .*, or forward in model.py$")
    assert int(line.partition("training sample ")[2].partition(":")[0]) % 8 == 0


# ---- the compiler --------------------------------------------------------------------------------


def refuse_to_compile():
    """For `run(..., before=…)`."""
    torch.compile = lambda *_, **__: pytest.fail("compiled, though compile.enabled is false")


def test_only_the_settings_decide_whether_accelerate_compiles(tmp_path, monkeypatch):
    """`accelerate launch` sets this variable."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    project = render(workload="tabular", framework="accelerate")
    words = ("train", *SHORT, "--compile.enabled", "false")
    check_run(project, *words, cwd=tmp_path, before=refuse_to_compile)


# ---- passwords and tokens ------------------------------------------------------------------------

ADDRESSES = {
    "https://host/a.csv?token=SECRET": "https://host/a.csv?…",
    "https://host/a?b=1&X-Amz-Signature=SECRET%3D&c=2": "https://host/a?…",
    "'https://host/a?sig=SECRET'": "'https://host/a?…'",
    "--input=https://host/a?SECRET:": "--input=https://host/a?…:",
    "host/a?access_token=SECRET, and more": "host/a?access_token=…, and more",
    "s3://me:SECRET@bucket/data": "s3://…@bucket/data",
    "s3://me:SECRET@bucket/data?key=SECRET": "s3://…@bucket/data?…",
    "https:/SECRET@host/a?key=SECRET": "https:/…@host/a?…",
    "http://me:SEC/RET@proxy:8080/": "http://…@proxy:8080/",
}
HARMLESS = (
    "data/*.csv?",
    "is it? yes",
    "https://host/a.csv",
    "C:/data/a.csv",
    "me@host",
    "a?b c=d",
)


def test_no_line_or_file_shows_a_secret_of_an_address(tmp_path, monkeypatch, capsys):
    project = render(tracker="mlflow")
    errors = imported(project, "engine.errors")
    for address, shown in ADDRESSES.items():
        assert str(errors.UserError("no such file", address)) == f"no such file: {shown}"
        assert imported(project, "engine.monitoring.tracking").shown(OSError(address)) == shown
        errors.note(f"skipped {address}")
    for text in HARMLESS:
        assert str(errors.UserError(text)) == text
    monkeypatch.setattr(sys, "argv", ["my_training", "train", *ADDRESSES])
    write = imported(project, "engine.training.environment").write_environment
    write(tmp_path, torch.device("cpu"))
    argv = json.loads((tmp_path / "env.json").read_text())["argv"]
    assert argv == ["train", *ADDRESSES.values()]
    imported(project, "engine.runs").write_status(tmp_path, "failed", "; ".join(ADDRESSES), 3)
    assert "SEC" not in (tmp_path / "status.json").read_text() + capsys.readouterr().err
