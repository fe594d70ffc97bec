"""`doctor`: what it prints and what it finds, with and without a GPU."""

import os
import re
import sys
from pathlib import Path
from shlex import split

from rendering import render
from running import one_error, run

STATE = ("precision", "TF32 in matmuls", "fused optimizer", "compile", "deterministic", "order")


def command(folder, workload, *words):
    """`doctor` where there is no GPU and no nvidia-smi."""

    def put():
        os.environ.update(PATH=str(Path(sys.executable).parent), CUDA_VISIBLE_DEVICES="")

    return run(render(workload=workload), "doctor", *words, cwd=folder, before=put)


def test_a_healthy_machine_exits_with_0_and_shows_what_is_set(tmp_path):
    done = command(tmp_path, "tabular")
    assert done.code == 0, done.out + done.err
    assert re.match(r"CPU, \d+ threads?, python 3.+, torch 2.+\n", done.out)
    assert re.search(r"\n[1-9][\d,]+ training samples in ", done.out)
    for name in STATE:
        assert f"\n  {name} " in done.out
    assert "float32 matmul precision is highest" in done.out


def test_the_size_of_compiled_code_is_shown(tmp_path, monkeypatch):
    """It is kept in the project, unless the environment names another folder."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    other = tmp_path / "other"
    for folder in (tmp_path / ".cache/inductor", other):
        (folder / "ab").mkdir(parents=True)
        (folder / "ab/code.so").write_bytes(bytes(2_340_000))
        (line,) = command(tmp_path, "tabular").out.splitlines()[-1:]
        assert line == f"2.3 MB of compiled code in {folder}, which you may delete"
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(other))
    ignored = (render(workload="tabular") / ".gitignore").read_text().splitlines()
    assert "/.cache/" in ignored


def test_what_is_set_is_what_training_prints(tmp_path):
    words = split("--training.precision bf16 --training.gradient_checkpointing true")
    shown = command(tmp_path, "tabular", *words)
    flags = split("--training.max_steps 1 --model.width 8")
    trained = run(render(workload="tabular"), "train", *words, *flags, cwd=tmp_path)
    lines = [line for line in shown.out.splitlines() if line.startswith("  ")]
    assert len(lines) > len(STATE)
    assert set(lines) <= set(trained.out.splitlines())


def test_what_is_broken_is_one_line_after_the_device(tmp_path):
    words = "--data.path nowhere --training.precision fp16"
    done = command(tmp_path, "timeseries", *split(words))
    one_error(done, "nowhere", "prepare")
    assert re.match(r"CPU, \d+ threads?", done.out)
