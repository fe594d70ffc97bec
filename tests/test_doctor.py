"""`doctor`: what it prints and what it finds, with and without a GPU."""

import os
import re
import shutil
import sys
from pathlib import Path
from shlex import split

import pytest
import torch
from importing import imported
from rendering import render
from running import Result, run

doctor = imported(render(), "commands.doctor")
gpus = imported(render(), "engine.compute.gpus")
config = imported(render(), "config")
errors = imported(render(), "engine.errors")
Card = gpus.Card

CPU = torch.device("cpu")
CHECKS = ["device", "precision", "data", "compile"]
STATE = ("TF32 in matmuls", "fused optimizer", "deterministic")


def no_compiler(function: object) -> None:
    """For `torch.compile`: what it raises without a compiler."""
    kind = type("BackendCompilerFailed", (Exception,), {"__module__": "torch._dynamo.exc"})
    raise kind("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found")


def command(folder: Path, workload: str, *words: str) -> Result:
    """`doctor` where there is no GPU, no nvidia-smi, and nothing compiles."""

    def put() -> None:
        os.environ.update(PATH=str(Path(sys.executable).parent), CUDA_VISIBLE_DEVICES="")
        torch.compile = no_compiler  # type: ignore[assignment]

    return run(render(workload=workload), "doctor", *words, cwd=folder, before=put)


def findings(done: Result) -> dict[str, str]:
    """The state of each check."""
    lines = done.out.partition("\n\n")[0].splitlines()
    return {line.split()[1]: line.split()[0] for line in lines}


def test_a_healthy_machine_exits_with_0_and_shows_what_is_set(tmp_path):
    done = command(tmp_path, "tabular")
    assert done.code == 0, done.out + done.err
    assert findings(done) == dict.fromkeys(CHECKS, "ok")
    assert re.search(r"device  .+CPU, \d+ threads?, python 3.+, torch 2", done.out)
    assert re.search(r"[1-9][\d,]+ training samples in ", done.out)
    for name in STATE:
        assert f"\n{name} " in done.out
    assert "float32 matmul precision is highest" in done.out


def test_something_broken_exits_with_1_and_the_rest_is_checked(tmp_path):
    words = "--data.path nowhere --compile.enabled true --training.precision fp16"
    done = command(tmp_path, "timeseries", *split(words))
    assert done.code == 1
    states = findings(done)
    assert list(states) == CHECKS
    assert [name for name in states if states[name] == "failed"] == ["data", "compile"]
    assert "UserError" not in done.out
    assert re.search(r"compile  .+no working C\+\+ compiler.+--compile.enabled false", done.out)
    assert re.search("precision +fp16: set by training.precision", done.out)
    assert "\nTF32 in matmuls " in done.out


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_the_compiler_is_tried_for_real():
    settings = config.load(overrides=[("compile.enabled", "true")])
    assert "a small function was compiled" in doctor.check_compile(settings, CPU)


@pytest.mark.parametrize(
    ("capability", "precision", "says", "matmul"),
    [
        ((9, 0), "fp32", "fp32: set by", "highest"),
        ((9, 0), "bf16", "bf16: set by", "high"),
        ((7, 0), "tf32", "fp32: sm 7.0 has no TF32", "highest"),
        ((7, 0), "bf16", "precision bf16: sm 7.0 has no bf16", "highest"),
    ],
)
def test_the_precision_is_set_as_training_sets_it(monkeypatch, capability, precision, says, matmul):
    monkeypatch.setattr(doctor, "this_card", lambda device: Card("a GPU", capability, 16.0, 80))
    saved = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    settings = config.load(overrides=[("training.precision", precision)])
    try:
        line = doctor.check_precision(settings, torch.device("cuda"))
    except errors.UserError as error:
        line = str(error)
    assert line.startswith(says)
    assert torch.get_float32_matmul_precision() == matmul
    torch.set_float32_matmul_precision(saved)
