"""A run belongs to one process; a closed output and a library that does not load end in one
line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import running
from rendering import render
from running import one_error, until

ENDLESS = ("--training.epochs", "100000", "--monitor.every_steps", "1", "--name", "a")


def start(folder: Path, *words: str, path: str = "") -> subprocess.Popen[str]:
    """`python -m my_training WORDS` of the smallest project, in a process of its own."""
    source = render(workload="tabular") / "src"
    environment = {**os.environ, "PYTHONPATH": f"{path}:{source}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "my_training", *words]
    (folder / "config.yaml").touch()
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_that_is_being_trained_is_refused_until_its_process_has_ended(tmp_path):
    """However it ends, and though its workers may live a moment longer."""
    project = render(workload="tabular")
    again = ("train", "--resume", "a", "--max-steps", "6")
    words = (*ENDLESS, "--data.num_workers", "1", "--checkpoint.every_steps", "5")
    first = running.start(project, "train", *words, cwd=tmp_path, name="1")
    try:
        checkpoints = tmp_path / "runs/a/checkpoints"
        until(lambda: any(checkpoints.glob("step-*")), "a checkpoint of the first process")
        second = running.run(project, *again, cwd=tmp_path)
        line = one_error(second, f"the run is in use by process {first.pid} on host ")
        assert second.err == f"{line}\n"
        assert os.waitpid(first.pid, os.WNOHANG) == (0, 0)
    finally:
        first.kill()
        first.wait()
    third = running.run(project, *again, cwd=tmp_path)
    assert third.code == 0, third.err
    assert "resumed at step" in third.out


def test_a_closed_output_stops_a_run_in_one_line(tmp_path):
    trained = start(tmp_path, "train", *ENDLESS)
    trained.stdout.readline()
    trained.stdout.close()
    said = trained.stderr.read()
    assert trained.wait() == 128 + signal.SIGPIPE
    assert said.splitlines()[-1:] == ["stopped: the output of train was closed"]
    assert "Traceback" not in said
    assert json.loads((tmp_path / "runs/a/status.json").read_text())["state"] == "stopped"
    assert (tmp_path / "runs/a/report.md").exists()


MISSING = "libgomp.so.1: cannot open shared object file: No such file or directory"
LOADED = [  # what importing torch does, and the line
    (
        f'raise ImportError("{MISSING}", name="torch")',
        f"torch cannot be loaded: {MISSING}: `make setup` installs it",
    ),
    (
        f'raise OSError("{MISSING}")',
        f"libgomp cannot be loaded: {MISSING}: install it with the packages",
    ),
    (
        'raise RuntimeError("NumPy was built with baseline optimizations: \\n(X86_V2)")',
        "numpy cannot be loaded: NumPy was built with baseline optimizations:",
    ),
]


@pytest.mark.parametrize(("torch", "line"), LOADED, ids=["torch", "libgomp", "numpy"])
@pytest.mark.parametrize("command", ["train", "doctor"])
@pytest.mark.cover(1)
def test_a_library_that_cannot_be_loaded_is_one_line(command, torch, line, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch)
    broken = start(tmp_path, command, path=str(tmp_path))
    out, said = broken.communicate()
    assert broken.returncode == 2
    assert said.startswith(f"error: {line}")
    assert (out, said.count("\n")) == ("", 1)
    helps = start(tmp_path, command, "--help", path=str(tmp_path))
    assert "usage" in helps.communicate()[0]
    assert helps.returncode == 0
