"""`doctor`: on this machine as it is, and check by check with GPUs that are not here."""

import os
import re
import shutil
import sys
from pathlib import Path
from shlex import split
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from rendering import render
from running import Result, run

doctor = imported(render(), "commands.doctor")
gpus = imported(render(), "engine.gpus")
config = imported(render(), "config")
Card = gpus.Card

CPU = Card("CPU", None)
V100 = Card("Tesla V100-SXM2-16GB", (7, 0), 15.8, 80)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", (8, 9), 23.6, 128)
H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 79.1, 132)
SLICE = Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), 9.8, 16)
MI300X = Card("AMD Instinct MI300X", (9, 4), 191.7, 304, hip=True)
CHECKS = ["driver", "wheel", "card", "precision", "data", "compile"]
STATE = ("device", "torch", "TF32 in matmuls", "deterministic")


# ---- this machine, through the command line ----


def no_compiler(function: object) -> None:
    """For `torch.compile`: what it raises without a compiler."""
    kind = type("BackendCompilerFailed", (Exception,), {"__module__": "torch._dynamo.exc"})
    raise kind("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found")


def command(folder: Path, workload: str, *words: str) -> Result:
    """`doctor` where there is no GPU, no nvidia-smi, and nothing compiles."""

    def put() -> None:
        os.environ.update(PATH=str(Path(sys.executable).parent), CUDA_VISIBLE_DEVICES="")
        torch.compile = no_compiler  # type: ignore[assignment]

    project = render(workload=workload)
    folder.joinpath(".copier-answers.yml").write_text("gpu: auto\n")
    return run(project, "doctor", *words, cwd=folder, before=put)


def findings(done: Result) -> dict[str, str]:
    """The state of each check."""
    lines = done.out.partition("\n\n")[0].splitlines()
    return {line.split()[1]: line.split()[0] for line in lines}


def test_a_healthy_machine_exits_with_0_and_shows_what_is_set(tmp_path):
    done = command(tmp_path, "tabular", "--verify")
    assert done.code == 0, done.out + done.err
    assert findings(done) == dict.fromkeys(CHECKS, "ok")
    assert re.search(r"[1-9][\d,]+ training samples in .+ as `prepare` wrote them", done.out)
    assert re.search("fp32: there is no GPU.+; bf16 on this CPU: .+ as in fp32 .measured", done.out)
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
    assert re.search(r"compile  .+no working C\+\+ compiler.+--compile.enabled false", done.out)
    assert re.search("fp16 on this CPU: .+measured.; the LSTM computes in float32", done.out)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_the_compiler_is_tried_for_real():
    settings = config.load(overrides=[("compile.enabled", "true")])
    assert doctor.check_compile(settings, CPU) == ("ok", "a small function was compiled")


# ---- cards that are not here ----


@pytest.fixture
def on_a_gpu(monkeypatch):
    """`on_a_gpu(card, built)` makes torch report that card, and have code for it or not."""

    def pretend(card, built=True):
        def ones(*_, **__):
            if not built:
                raise RuntimeError("CUDA error: no kernel image is available")
            return torch.zeros(1)

        monkeypatch.setattr(torch, "ones", ones)
        distributed = SimpleNamespace(Distributed=lambda: SimpleNamespace(device=device))
        device = torch.device("cuda")
        monkeypatch.setitem(
            sys.modules, f"{doctor.__package__[:-9]}.engine.distributed", distributed
        )

    saved = torch.get_float32_matmul_precision()
    yield pretend
    torch.set_float32_matmul_precision(saved)


@pytest.mark.parametrize(
    ("card", "precision", "state", "chosen", "matmul"),
    [
        (H100, "fp32", "ok", "fp32", "highest"),
        (H100, "bf16", "ok", "bf16", "high"),
        (V100, "tf32", "warning", "fp32", "highest"),
        (V100, "bf16", "failed", "precision bf16", "highest"),
    ],
)
def test_the_precision_is_set_as_training_sets_it(on_a_gpu, card, precision, state, chosen, matmul):
    on_a_gpu(card)
    torch.set_float32_matmul_precision("highest")
    settings = config.load(overrides=[("training.precision", precision)])
    found, line = doctor.attempt(lambda: doctor.check_precision(settings, card), settings)
    assert (found, line.partition(":")[0]) == (state, chosen)
    assert torch.get_float32_matmul_precision() == matmul


OTHER = "gpu=other -d gpu_compute_capability=9.0 -d gpu_memory_gb=10"


@pytest.mark.parametrize(
    ("card", "answers", "state", "command"),
    [
        (CPU, {"gpu": "auto"}, "ok", ""),
        (CPU, {"gpu": "h100"}, "warning", ""),
        (H100, {"gpu": "h100"}, "ok", ""),
        (H100, {"gpu": "cpu"}, "warning", "gpu=h100"),
        (RTX_4090, {"gpu": "h100", "precision": "bf16"}, "warning", "gpu=rtx_4090"),
        (V100, {"gpu": "h100", "precision": "bf16"}, "warning", "gpu=v100 -d precision=auto"),
        (SLICE, {"gpu": "h100"}, "warning", OTHER),
        (SLICE, {"gpu": "other", "gpu_compute_capability": "8.0"}, "warning", OTHER),
        (MI300X, {"gpu": "h100"}, "warning", "gpu=mi300x"),
    ],
)
def test_another_card_than_the_answer_has_the_command_that_moves_the_project(
    card, answers, state, command
):
    found, line = doctor.check_card(card, answers)
    assert found == state
    if not command:
        assert "copier" not in line
        return
    assert line.endswith(f": copier update --defaults -r :current: -d {command}")
    answers = dict(pair.split("=") for pair in command.split(" -d "))
    if "gpu_memory_gb" in answers:
        answers["gpu_memory_gb"] = float(answers["gpu_memory_gb"])
    assert render(**answers).exists(), "Copier accepts these answers"


def test_a_wheel_without_code_names_one_that_has_it(on_a_gpu):
    on_a_gpu(V100)
    assert doctor.check_wheel(V100)[0] == "ok"
    on_a_gpu(V100, built=False)
    state, line = doctor.check_wheel(V100)
    assert state == "failed"
    assert "no code for sm 7.0: install torch" in line
    assert line.endswith("/whl/cu126")


@pytest.mark.parametrize(
    ("card", "answer", "script", "state", "says"),
    [
        (H100, "auto", "echo 580.95", "ok", "580.95"),
        (CPU, "cpu", "echo 580.95", "ok", "580.95"),
        (CPU, "auto", "echo 580.95", "failed", "cannot use the GPU: update the driver"),
        (H100, "auto", "echo version mismatch; exit 18", "failed", "version mismatch: reload"),
    ],
)
def test_the_driver_is_asked(tmp_path, monkeypatch, card, answer, script, state, says):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found, line = doctor.check_driver(card, {"gpu": answer})
    assert found == state
    assert says in line
