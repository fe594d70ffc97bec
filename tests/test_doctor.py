"""`doctor`: on this machine as it is, and check by check with GPUs that are not here."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from rendering import render
from running import PACKAGE, Result, run

doctor = imported(render(), "commands.doctor")
gpus = imported(render(), "engine.gpus")
errors = imported(render(), "engine.errors")
config = imported(render(), "config")
Card = gpus.Card

CPU = Card("CPU", None)
V100 = Card("Tesla V100-SXM2-16GB", (7, 0), 15.8, 80)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", (8, 9), 23.6, 128)
H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 79.1, 132)
SLICE = Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), 9.8, 16)
MI300X = Card("AMD Instinct MI300X", (9, 4), 191.7, 304, hip=True)

STATE = {
    "device",
    "TF32 in matmuls",
    "TF32 in cuDNN",
    "float32 matmul precision",
    "cuDNN benchmark",
    "deterministic",
}
CHECKS = ["driver", "wheel", "card", "precision", "environment", "data", "compile"]


def row_of(card: Card):
    return gpus.match(card.name, card.sm_count, card.memory_gb)[0]


@pytest.fixture
def torch_state():
    """Puts back what `doctor` sets in torch."""
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


@pytest.fixture
def on_a_gpu(monkeypatch, torch_state):
    """`on_a_gpu(card, built)` makes torch report that card, and have code for it or not."""
    ones = torch.ones

    def pretend(card: Card, built: bool = True) -> None:
        def launch(*shape, device="cpu", **more):
            if device == "cuda" and not built:
                raise RuntimeError(
                    "CUDA error: no kernel image is available for execution on the device"
                )
            return ones(*shape, **more)

        (major, minor), memory = card.capability, int(card.memory_gb * 2**30)
        facts = SimpleNamespace(name=card.name, major=major, minor=minor, total_memory=memory)
        facts.multi_processor_count = card.sm_count
        monkeypatch.setattr(torch, "ones", launch)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: facts)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        for check in ("check_data", "check_compile"):  # they would need the card
            monkeypatch.setattr(doctor, check, lambda *_: ("ok", ""))
        monkeypatch.setattr(sys, "executable", "true")  # whether it can import torch is tried above
        monkeypatch.setattr(doctor, "driver", lambda: (card.name, "580.95.05"))

    return pretend


def report(capsys, monkeypatch, folder: Path, **overrides: str) -> tuple[int, dict]:
    """Exit code and the JSON of `doctor --json`, run in this process."""
    monkeypatch.chdir(folder)
    settings = config.load(
        overrides=[(key.replace("__", "."), value) for key, value in overrides.items()]
    )
    code = doctor.run(argparse.Namespace(json=True, verify=False), lambda: settings)
    return code, json.loads(capsys.readouterr().out)


def states(found: dict) -> dict[str, str]:
    return {check["name"]: check["state"] for check in found["checks"]}


# ---- this machine, through the command line ----


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "a project"
    shutil.copytree(render(), folder)
    return folder


def verb(project: Path, *words: str) -> Result:
    """`doctor` where there is no GPU, no nvidia-smi, and nothing compiles."""

    def put() -> None:
        os.environ.update(PATH=str(Path(sys.executable).parent), CUDA_VISIBLE_DEVICES="")
        module = importlib.import_module(f"{PACKAGE}.commands.doctor")
        module.COMPILED = "raise RuntimeError('no compiler')"

    return run(project, "doctor", *words, cwd=project, before=put)


def test_a_healthy_machine_exits_with_0(project):
    done = verb(project, "--json")
    found = json.loads(done.out)
    assert done.code == 0, done.out + done.err
    assert found["ok"]
    assert found["update"] is None
    assert set(found["state"]) >= STATE | {"python", "torch", "cuda"}
    assert [check["name"] for check in found["checks"]] == CHECKS
    assert not any("\n" in check["line"] for check in found["checks"])
    lines = {check["name"]: check["line"] for check in found["checks"]}
    assert re.search(r"[1-9][\d,]+ training samples, [\d,.]+ MB in .+", lines["data"]), lines[
        "data"
    ]


def test_lines_say_the_same_as_json(project):
    text = verb(project).out
    for name in (*STATE, *CHECKS):
        assert name in text


def test_something_broken_exits_with_1_and_the_rest_is_checked(project):
    done = verb(project, "--json", "--data.path", "nowhere", "--compile.enabled", "true")
    found = json.loads(done.out)
    assert done.code == 1
    assert not found["ok"]
    assert {name for name, state in states(found).items() if state == "failed"} == {
        "data",
        "compile",
    }
    assert len(found["checks"]) == len(CHECKS)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_the_compiler_is_tried_for_real():
    state, line = doctor.check_compile(config.load(overrides=[("compile.enabled", "true")]), CPU)
    assert (state, line[:28]) == ("ok", "a small function compiled in")


def test_a_compiler_that_hangs_or_fails_is_said_so(monkeypatch):
    settings = config.load(overrides=[("compile.enabled", "true")])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "COMPILED", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "COMPILE_SECONDS", 0.5)
    assert doctor.check_compile(settings, CPU) == ("failed", "no result after 0.5 s")
    monkeypatch.setattr(doctor, "COMPILED", "raise ValueError('wrong result')")
    monkeypatch.setattr(doctor, "COMPILE_SECONDS", 600)
    assert doctor.check_compile(settings, CPU) == ("failed", "ValueError: wrong result")
    assert doctor.check_compile(config.load(), CPU)[0] == "ok"  # not used by training on a CPU


def test_what_could_not_be_compiled_is_named_by_its_error_and_not_by_a_hint():
    hints = "\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n"
    said = "Traceback:\n  File x\ntorch._dynamo.exc.Unsupported: a graph break" + hints
    assert doctor.why_not_compiled(said) == "torch._dynamo.exc.Unsupported: a graph break"
    said = (
        "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found"
        + hints
    )
    assert re.search("no working compiler.+--compile.enabled false", doctor.why_not_compiled(said))


# ---- what half precision costs here ----


@pytest.mark.parametrize(
    ("workload", "precision", "says"),
    [
        ("tabular", "auto", "fp32: there is no GPU.+; bf16 on this CPU: .+ as in fp32 .measured.$"),
        ("timeseries", "fp16", "fp16 on this CPU: .+measured.; the LSTM computes in float32$"),
        ("tabular", "bf16", "bf16 on this CPU: .+measured.$"),
    ],
)
def test_half_precision_on_a_cpu_has_its_price(workload, precision, says, tmp_path):
    words = ("doctor", "--json", "--training.precision", precision)
    done = run(render(workload=workload), *words, cwd=tmp_path)
    (line,) = (
        check["line"] for check in json.loads(done.out)["checks"] if check["name"] == "precision"
    )
    assert re.search(says, line), line


# ---- what is set, as training sets it ----


@pytest.mark.parametrize(
    ("precision", "tf32", "matmul"),
    [("fp32", "off", "highest"), ("tf32", "on", "high"), ("bf16", "on", "high")],
)
def test_the_printed_state_is_what_training_sets(
    on_a_gpu, capsys, monkeypatch, tmp_path, precision, tf32, matmul
):
    on_a_gpu(H100)
    _, found = report(
        capsys,
        monkeypatch,
        tmp_path,
        training__precision=precision,
        training__cudnn_benchmark="true",
    )
    state, lines = found["state"], {check["name"]: check["line"] for check in found["checks"]}
    assert state["device"] == f"{H100.name}, sm 9.0, 79.1 GB"
    assert (state["TF32 in matmuls"], state["TF32 in cuDNN"]) == (tf32, tf32)
    assert (state["float32 matmul precision"], lines["precision"].partition(":")[0]) == (
        matmul,
        precision,
    )
    assert (state["cuDNN benchmark"], state["deterministic"]) == ("on", "off")


def test_an_old_card_does_not_fail(on_a_gpu, capsys, monkeypatch, tmp_path):
    on_a_gpu(V100)
    code, found = report(capsys, monkeypatch, tmp_path, training__precision="tf32")
    assert code == 0
    assert found["state"]["TF32 in matmuls"] == "off"
    assert any(
        check["line"] == "fp32: sm 7.0 has no TF32: it runs as fp32" for check in found["checks"]
    )
    assert states(found)["precision"] == "warning"


def test_an_impossible_precision_fails(on_a_gpu, capsys, monkeypatch, tmp_path):
    on_a_gpu(V100)
    code, found = report(capsys, monkeypatch, tmp_path, training__precision="bf16")
    assert code == 1
    assert states(found)["precision"] == "failed"


# ---- the card against the answers ----


@pytest.mark.parametrize(
    ("card", "answers", "expected"),
    [
        (H100, {"gpu": "h100"}, None),
        (H100, {"gpu": "auto"}, None),
        (H100, {}, None),
        (CPU, {"gpu": "h100"}, None),
        (H100, {"gpu": "cpu"}, "gpu=h100"),
        (RTX_4090, {"gpu": "h100", "precision": "bf16"}, "gpu=rtx_4090"),
        (V100, {"gpu": "h100", "precision": "bf16"}, "gpu=v100 -d precision=auto"),
        (V100, {"gpu": "h100", "precision": "fp16"}, "gpu=v100"),
        (SLICE, {"gpu": "h100"}, "gpu=other -d gpu_compute_capability=9.0 -d gpu_memory_gb=10"),
        (SLICE, {"gpu": "other", "gpu_compute_capability": "9.0", "gpu_memory_gb": 10.0}, None),
        (
            SLICE,
            {"gpu": "other", "gpu_compute_capability": "8.0"},
            "gpu=other -d gpu_compute_capability=9.0 -d gpu_memory_gb=10",
        ),
        (MI300X, {"gpu": "h100"}, "gpu=mi300x"),
    ],
)
def test_the_command_that_moves_the_project(card, answers, expected):
    command = doctor.update_command(card, row_of(card) if card.capability else None, answers)
    assert command == (expected and f"copier update --defaults -r :current: -d {expected}")
    if command is None:
        return
    words = shlex.split(command)
    new = dict(word.split("=") for flag, word in pairwise(words) if flag == "-d")
    new |= {"gpu_memory_gb": float(new["gpu_memory_gb"])} if "gpu_memory_gb" in new else {}
    old = {name: value for name, value in answers.items() if name == "precision"}
    assert (
        render(**{**old, **new}) / ".copier-answers.yml"
    ).exists()  # Copier accepts these answers


def test_another_card_is_a_warning_with_the_command(on_a_gpu, capsys, monkeypatch, tmp_path):
    on_a_gpu(RTX_4090)
    (tmp_path / ".copier-answers.yml").write_text("gpu: h100\nprecision: auto\n")
    code, found = report(capsys, monkeypatch, tmp_path)
    assert code == 0
    assert states(found)["card"] == "warning"
    assert found["update"] == "copier update --defaults -r :current: -d gpu=rtx_4090"
    assert any(found["update"] in check["line"] for check in found["checks"])


@pytest.mark.parametrize(
    ("answers", "card", "state"),
    [
        ("gpu: auto\n", CPU, "ok"),
        ("gpu: cpu\n", CPU, "ok"),
        ("gpu: h100\n", CPU, "warning"),
        ("gpu: h100\n", H100, "ok"),
        ("gpu: auto\n", SLICE, "ok"),
        ("", H100, "warning"),
        ("gpu: [", H100, "warning"),
    ],
)
def test_answers_on_the_card(tmp_path, answers, card, state):
    path = tmp_path / "answers.yml"
    path.write_text(answers)
    given = doctor.read_answers(path)
    row = row_of(card) if card.capability else None
    assert (
        doctor.check_card(card, "why", given, doctor.update_command(card, row, given))[0] == state
    )


# ---- wheel and driver ----


def test_a_wheel_without_code_names_one_that_has_it(on_a_gpu):
    on_a_gpu(V100)
    assert doctor.check_wheel(V100, row_of(V100))[0] == "ok"
    on_a_gpu(V100, built=False)
    state, line = doctor.check_wheel(V100, row_of(V100))
    assert state == "failed"
    assert "no code for sm 7.0 (sm_75, sm_80): install " in line
    assert row_of(V100).torch in line
    assert line.endswith("/whl/cu126")


@pytest.mark.parametrize(
    ("card", "cuda", "version", "state"),
    [
        (H100, "13.0", "580.95.05", "ok"),
        (
            H100,
            "13.0",
            "570.86.15",
            "warning",
        ),  # torch sees it all the same: compatibility packages exist
        (CPU, "13.0", "570.86.15", "failed"),
        (CPU, None, "580.95.05", "failed"),  # a CPU build on a machine with a GPU
        (H100, "12.6", "570.86.15", "ok"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the table of drivers is for Linux")
def test_driver_versions(monkeypatch, card, cuda, version, state):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert doctor.check_driver(card, {"gpu": "auto"}, ("a card", version))[0] == state


def test_a_hidden_gpu_is_no_failure(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.check_driver(CPU, {"gpu": "auto"}, ("a card", "999.0"))[0] == "warning"


def fake_smi(folder: Path, monkeypatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_nvidia_smi_is_read(tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, "echo 'NVIDIA L4, 550.54.15'")
    assert doctor.driver() == ("NVIDIA L4", "550.54.15")
    fake_smi(
        tmp_path,
        monkeypatch,
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
    )
    with pytest.raises(errors.UserError, match="version mismatch"):
        doctor.driver()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert doctor.driver() is None


# ---- environment ----


@pytest.mark.parametrize(
    ("environment", "state", "says"),
    [
        ({}, "ok", "no variable"),
        ({"TORCH_ALLOW_TF32_OVERRIDE": "1"}, "warning", "does nothing"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "warning", "a default only"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, "warning", "turns TF32 off"),
    ],
)
def test_variables_that_are_believed_to_set_tf32(environment, state, says):
    found = doctor.check_environment(environment)
    assert found[0] == state
    assert says in found[1]
