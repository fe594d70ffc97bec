"""The scripts on a GPU: they learn, go on after a signal, measure themselves, and never wait."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_training import losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
SMALL = {  # flags with which a script learns in 60 steps
    "tabular": (),
    "timeseries": ("--width", "64", "--learning_rate", "0.01"),
    "forecast": ("--width", "64", "--learning_rate", "0.01"),
    "windows": ("--width", "64", "--learning_rate", "0.01"),
    "llm": (
        *("--block_size", "128", "--batch_size", "16", "--layers", "2", "--width", "256"),
        *("--learning_rate", "3e-3"),
    ),
    "graph": ("--batch_size", "8", "--learning_rate", "3e-3"),
    "seq2seq": ("--batch_size", "32", "--learning_rate", "3e-3"),
    "vision": ("--width", "32", "--batch_size", "64"),
}
OPTIONS = ("--max_steps", "60", "--log_every", "1", "--warmup_steps", "10")
EAGER = ("--compile", "off")
GUARD = """
import torch
step = train.Trainer.step
def guarded(self):
    if self.progress.step:  # the first batch may move everything to the GPU, once
        torch.cuda.set_sync_debug_mode("error")
    norm = step(self)
    torch.cuda.set_sync_debug_mode("default")
    return norm
train.Trainer.step = guarded
"""
SLOW = """
import time
step = train.Trainer.step
def slow(self):
    time.sleep(0.05)
    return step(self)
train.Trainer.step = slow
"""
every_script = pytest.mark.parametrize("workload", SMALL)


def script(workload):
    """The rendered script of a workload."""
    carried = os.environ.get("FASTTRAIN_PROJECTS")
    if carried:
        return Path(carried).resolve() / f"script-{workload}"
    from rendering import render

    return render(workload=workload, layout="script")


def start(workload, folder, *words, before=""):
    """`python train.py WORDS` in the folder; `before` is Python that runs when it is loaded."""
    folder.mkdir(exist_ok=True)
    code = f"import sys; sys.path.insert(0, {str(script(workload))!r})\nimport train\n{before}\n"
    code += "sys.exit(train.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def run(workload, folder, *words, before=""):
    """Run it to its end, without an error; what it printed."""
    process = start(workload, folder, *words, before=before)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out


@every_script
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_learns_and_goes_on_after_a_signal(workload, precision, tmp_path):
    """In deterministic mode both parts together repeat the whole run bit for bit."""
    words = (*OPTIONS, *SMALL[workload], "--precision", precision, "--deterministic", "1")
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    run(workload, whole, *words)
    process = start(workload, parts, *words, before=SLOW)
    while process.poll() is None and not [*parts.glob("runs/*/metrics.jsonl")]:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM
    run(workload, parts, "--resume")
    assert losses(parts) == losses(whole)
    assert losses(whole)[-1] <= 0.9 * losses(whole)[0]


@every_script
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_never_waits_for_the_gpu(workload, precision, tmp_path):
    """torch raises at any synchronising call in a step and in the making of its batches."""
    words = (*OPTIONS, *SMALL[workload], "--precision", precision, *EAGER)
    run(workload, tmp_path, *words, before=GUARD)


@every_script
def test_measures_what_each_optimization_gains(workload, tmp_path):
    words = (*SMALL[workload], "--benchmark", "each", "--rounds", "1", "--log_every", "5")
    out = run(workload, tmp_path, *words)
    assert "precision: a step adds" in out
    assert "fused: a step adds" in out
