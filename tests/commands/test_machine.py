"""`machine` of the extra `check`: this machine, and cards, builds and drivers that are not here."""

import re

import pytest
import torch
from importing import imported
from rendering import render
from running import flip_bit, run

PROJECT = render(workload="tabular", extras=["check"])
CHECKS = ["driver", "wheel", "card", "compile"]
machine = imported(PROJECT, "commands.machine")
Card = imported(PROJECT, "engine.compute.gpus").Card

CPU = Card("CPU", None)
V100 = Card("Tesla V100-SXM2-16GB", (7, 0), 15.8, 80)
H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 79.1, 132)
SLICE = Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), 9.8, 16)


def test_this_machine_and_all_stored_data(tmp_path):
    done = run(PROJECT, "machine", "--verify", cwd=tmp_path)
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines] == [*CHECKS, "data"]
    assert "are as `prepare` wrote them" in lines[-1]
    file = min((tmp_path / "data/synthetic").glob("*.bin"))
    flip_bit(file, 100)
    done = run(PROJECT, "machine", "--verify", cwd=tmp_path)
    assert done.code == 1
    assert "failed   data         the stored data are damaged" in done.out


def no_compiler(function):
    """For `torch.compile`: what it raises without a compiler."""
    kind = type("BackendCompilerFailed", (Exception,), {"__module__": "torch._dynamo.exc"})
    raise kind("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found")


def test_something_broken_exits_with_1_and_the_rest_is_checked(tmp_path):
    def put():
        torch.compile = no_compiler  # type: ignore[assignment]

    words = ("--compile.enabled", "true", "--verify", "--data.path", "nowhere")
    done = run(PROJECT, "machine", *words, cwd=tmp_path, before=put)
    assert done.code == 1
    failed = [line.split()[1] for line in done.out.splitlines() if line.startswith("failed")]
    assert failed == ["compile", "data"]
    assert re.search(r"compile  .+no working C\+\+ compiler.+--compile.enabled false", done.out)


OTHER = "gpu=other -d gpu_compute_capability=9.0 -d gpu_memory_gb=10"


@pytest.mark.parametrize(
    ("card", "answers", "state", "command"),
    [
        (CPU, {"gpu": "auto"}, "ok", ""),
        (CPU, {"gpu": "h100"}, "warning", ""),
        (H100, {"gpu": "h100"}, "ok", ""),
        (H100, {"gpu": "cpu"}, "warning", "gpu=h100"),
        (V100, {"gpu": "h100", "precision": "bf16"}, "warning", "gpu=v100 -d precision=auto"),
        (SLICE, {"gpu": "h100"}, "warning", OTHER),
    ],
)
def test_another_card_than_the_answer_has_the_command_that_moves_the_project(
    card, answers, state, command
):
    found, line = machine.check_card(card, answers)
    assert found == state
    if not command:
        assert "copier" not in line
        return
    assert line.endswith(f": copier update --defaults -r :current: -d {command}")
    answers = dict(pair.split("=") for pair in command.split(" -d "))
    if "gpu_memory_gb" in answers:
        answers["gpu_memory_gb"] = float(answers["gpu_memory_gb"])
    assert render(**answers).exists(), "Copier accepts these answers"


def test_a_wheel_without_code_names_one_that_has_it(monkeypatch):
    def ones(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available")

    monkeypatch.setattr(torch, "ones", ones)
    state, line = machine.check_wheel(V100)
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
    found, line = machine.check_driver(card, {"gpu": answer})
    assert found == state
    assert says in line
