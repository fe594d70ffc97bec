"""`layout: script`: what owners write into the file, and what they give it, is right or one line.

An owner's edit is code at the end of `train.py`, where it replaces what has the same name.
"""

import functools
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Result, last_checkpoint, losses, newest_run, one_error
from test_script import (
    CASES,
    Before,
    at_step,
    every_script,
    nothing,
    result_of,
    run_script,
    saved_steps,
    script,
    send,
    series,
    weights,
    words_of,
)

MAIN = '\nif __name__ == "__main__":'


def edit(workload: str, cwd: Path, code: str) -> Path:
    """A script with an owner's code at its end."""
    project = cwd / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(script(workload), project)
    path = project / "train.py"
    text, main, call = path.read_text(encoding="utf-8").partition(MAIN)
    path.write_text(f"{text}\n{code}\n{main}{call}", encoding="utf-8")
    return project


def model_with(change: str, in_forward: str = "") -> str:
    """Code for a model that is changed when it is built, and acts in each forward pass."""
    return f"""
class Edited(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        {change}

    def forward(self, *inputs):
        {in_forward or "pass"}
        return super().forward(*inputs)

Model = Edited
"""


def train(
    workload: str, cwd: Path, *flags: str, code: str = "", before: Before = nothing, steps: int = 30
) -> Result:
    """Train an edited script. It saves every 15 steps and at the end."""
    cwd.mkdir(exist_ok=True)
    CASES[workload].write(cwd / "data.file")
    words = [*words_of(workload, steps, accumulation=1), *flags]
    return run_script(edit(workload, cwd, code), *words, cwd=cwd, before=before)


def resume(cwd: Path) -> Result:
    return run_script(cwd / "project", "--resume", cwd=cwd)


def assert_trained(done: Result, cwd: Path, steps: int = 30) -> None:
    assert done.code == 0, done.err
    assert len(losses(cwd)) == steps


# --- models


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize(
    "change",
    [
        "next(self.parameters()).requires_grad_(False)",
        "self.unused = nn.Linear(2, 2)",
        "[weight.requires_grad_(weight.dim() < 2) for weight in self.parameters()]",
    ],
    ids=["frozen", "unused", "no matrices"],
)
def test_weights_without_a_gradient_are_no_error(workload, change, tmp_path):
    assert_trained(train(workload, tmp_path, code=model_with(change)), tmp_path)


# --- random numbers

DRAW = """
import random

def draw():
    return 1 + random.random() + np.random.rand()
"""
IN_LOSS = """
true_loss = compute_loss

def compute_loss(model, batch):
    loss, *others = true_loss(model, batch)
    return loss * draw(), *others
"""
IN_DATASET = """
class Noisy(Rows):
    def __getitem__(self, numbers):
        batch = super().__getitem__(numbers)
        batch["features"] = batch["features"] * np.float32(draw())
        return batch

Rows = Noisy
"""


@pytest.mark.parametrize(
    ("workload", "code", "flags"),
    [
        ("timeseries", IN_LOSS, ""),
        ("llm", IN_LOSS, ""),
        ("tabular", IN_DATASET, "--num_workers 0"),
    ],
    ids=["timeseries", "llm", "tabular"],
)
def test_random_numbers_of_python_and_numpy_are_seeded_and_resumed(workload, code, flags, tmp_path):
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    assert_trained(train(workload, whole, *flags.split(), code=DRAW + code), whole)
    kill = at_step(22, send(signal.SIGKILL))
    done = train(workload, killed, *flags.split(), code=DRAW + code, before=kill)
    assert (done.code, saved_steps(killed)) == (-signal.SIGKILL, [15])
    assert resume(killed).code == 0
    assert result_of(killed) == result_of(whole)


# --- values that are not finite

# Changes the gradient of the first weight in the backward pass with this number.
GRADIENT = "next(self.parameters()).register_hook(lambda x: x * bad if next(calls) == {} else x)"
COUNT = "from itertools import count\ncalls = count(1)\nbad = float('{}')\n"


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("steps", [30, 40], ids=["at the end", "before it"])
def test_a_gradient_that_is_not_finite_saves_nothing(workload, value, steps, tmp_path):
    code = COUNT.format(value) + model_with(GRADIENT.format(30))
    done = train(workload, tmp_path, "--log_every", "50", code=code, steps=steps)
    one_error(done, "gradient norm of step 30 is (nan|inf)", r"samples \[\d+, \d+")
    assert saved_steps(tmp_path) == [15]
    ended = resume(tmp_path)
    assert ended.code == 0, ended.err
    assert saved_steps(tmp_path)[-1] == steps


def test_an_earlier_gradient_is_named_instead_of_the_losses_that_follow(tmp_path):
    code = COUNT.format("nan") + model_with(GRADIENT.format(20))
    done = train("timeseries", tmp_path, "--log_every", "50", code=code)
    one_error(done, "gradient norm of step 20 is nan")


def test_a_step_that_fp16_skips_is_no_error(tmp_path):
    code = COUNT.format("inf") + model_with(GRADIENT.format(30))
    assert_trained(train("timeseries", tmp_path, "--precision", "fp16", code=code), tmp_path)
    assert saved_steps(tmp_path) == [15, 30]
    for content in weights(tmp_path).values():
        assert np.isfinite(np.frombuffer(content, np.float32)).all()


@every_script
def test_a_loss_that_is_not_finite_names_what_to_check(workload, tmp_path):
    done = train(workload, tmp_path, code=IN_LOSS + "draw = lambda: float('nan')")
    one_error(done, "loss of step 1 is nan", r"samples \[\d+, \d+", "compute_loss")


# --- memory


def in_forward(error: str) -> str:
    return model_with("pass", f"raise {error}")


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize(
    "error",
    [
        "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB.')",
        "MemoryError()",
        "RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')",
    ],
    ids=["device", "numpy", "host"],
)
def test_missing_memory_is_one_line(workload, error, tmp_path):
    one_error(train(workload, tmp_path, code=in_forward(error)), "out of memory", "--batch_size")


def test_a_model_that_is_too_large_is_one_line(tmp_path):
    one_error(train("timeseries", tmp_path, "--width", "3000000"), "out of memory")


def test_another_error_keeps_its_traceback(tmp_path):
    done = train("timeseries", tmp_path, code=in_forward("RuntimeError('of the owner')"))
    assert "Traceback" in done.err
    assert "of the owner" in done.err


# --- the environment

SWITCHES = ("USE_AMP", "DETERMINISTIC", "PIN_MEMORY", "PERSISTENT_WORKERS")


def tabular(cwd: Path, *words: str, before: Before = nothing) -> Result:
    CASES["tabular"].write(cwd / "data.file")
    short = ["--data", "data.file", "--max_steps", "1", *words]
    return run_script(script("tabular"), *short, cwd=cwd, before=before)


@pytest.mark.parametrize("is_on", [True, False])
def test_words_turn_variables_on_and_off(is_on, tmp_path, monkeypatch):
    for word in ("1 true On YES" if is_on else "0 False off NO").split():
        for name in SWITCHES:
            monkeypatch.setenv(name, word)
        assert tabular(tmp_path).code == 0
        saved = json.loads((newest_run(tmp_path) / "settings.json").read_text())
        assert saved["precision"] == ("auto" if is_on else "fp32"), word
        for name in SWITCHES[1:]:
            assert saved[name.lower()] == is_on, (name, word)


@pytest.mark.parametrize("name", [*SWITCHES, "ALLOW_UNSAFE_DATALOADER"])
def test_another_word_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "maybe")
    one_error(tabular(tmp_path), f"{name.lower()}: 'maybe' .*use 1 or 0")


def test_no_worker_starts_where_workers_are_forbidden(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLOW_UNSAFE_DATALOADER", "false")

    def forbid(train: Any) -> None:
        os.fork = lambda: pytest.fail("a worker starts")

    done = tabular(tmp_path, "--num_workers", "1", before=forbid)
    assert done.code == 0, done.err


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SHOW_ALLOCATOR = """
true_training = run_training

def run_training(*arguments):
    code = true_training(*arguments)
    print(*(value for name, value in os.environ.items() if name.endswith("_ALLOC_CONF")))
    return code
"""


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize("name", ALLOCATOR)
def test_the_users_settings_of_the_allocator_are_kept(workload, name, tmp_path, monkeypatch):
    for variable in ALLOCATOR:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    done = train(workload, tmp_path, code=SHOW_ALLOCATOR, steps=1)
    assert "max_split_size_mb:64" in done.out
    assert "expandable_segments:True" not in done.out


# --- Windows, imitated: without fcntl, SIGHUP and SIGUSR1


def as_on_windows(module: Any) -> None:
    for name in ("SIGHUP", "SIGUSR1"):
        delattr(signal, name)
    sys.modules["fcntl"] = None  # an import of it fails


@pytest.mark.cover(1)
@every_script
def test_nothing_needs_what_windows_lacks(workload, tmp_path):
    whole = tmp_path / "whole"
    stopped = tmp_path / "stopped"
    assert_trained(train(workload, whole, before=as_on_windows), whole)

    def stop(module: Any) -> None:
        as_on_windows(module)
        at_step(22, send(signal.SIGTERM))(module)

    assert train(workload, stopped, before=stop).code == 143
    done = run_script(stopped / "project", "--resume", cwd=stopped, before=as_on_windows)
    assert done.code == 0, done.err
    assert result_of(stopped) == result_of(whole)


# --- levers


@every_script
def test_all_optimizations_are_off_with_one_flag(workload, tmp_path):
    workers = ("--num_workers", "0") if workload == "tabular" else ()
    done = train(workload, tmp_path, "--no-optimize", *workers, steps=2)
    assert_trained(done, tmp_path, steps=2)
    table = done.out.partition("optimization ")[2].partition("\nChange one")[0]
    states = {line.split()[0]: line.split()[1] for line in table.splitlines()[1:]}
    kept = {"gradient_accumulation_steps": "1", "num_workers": "0", "precision": "fp32"}
    assert states.pop("precision", "fp32") == "fp32"
    assert all(state == kept.get(name, "off") for name, state in states.items()), states


@pytest.mark.cover(1)
@every_script
@pytest.mark.parametrize("kind", ["all", "each"])
def test_the_benchmark_compares_on_with_off(workload, kind, tmp_path):
    CASES[workload].write(tmp_path / "data.file")
    words = f"{CASES[workload].script} --data data.file --log_every 2 --rounds 1".split()
    done = run_script(script(workload), *words, "--benchmark", kind, cwd=tmp_path)
    assert done.code == 0, done.err
    assert re.search(r"^fused +on ", done.out, re.MULTILINE)
    measured = re.findall(r"^([\w ]+): .* ms a step against .*× as fast", done.out, re.MULTILINE)
    assert "fused" in measured if kind == "each" else measured == ["all optimizations"]
    assert not (tmp_path / "runs").exists()


def test_a_lever_without_effect_is_a_note_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("NUM_WORKERS", "4")
    flags = ("--pin_memory", "0", "--compile", "default", "--precision", "tf32")
    done = train("timeseries", tmp_path, *flags, steps=1)
    assert "note: NUM_WORKERS has no effect: this script has no DataLoader" in done.out
    assert "note: --compile has no effect: the compiler gains nothing for an LSTM" in done.out
    assert "note: --precision has no effect: tf32 needs a GPU from sm 8.0" in done.out


@pytest.mark.cover(1)
@every_script
def test_checkpointed_blocks_change_no_loss(workload, tmp_path):
    plain = tmp_path / "plain"
    saving = tmp_path / "saving"
    assert_trained(train(workload, plain), plain)
    assert_trained(train(workload, saving, "--gradient_checkpointing"), saving)
    assert losses(saving) == losses(plain)


# --- files


@every_script
def test_a_file_in_the_home_folder_is_read(workload, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_trained(train(workload, tmp_path, "--data", "~/data.file", steps=3), tmp_path, steps=3)


def test_times_in_milliseconds_give_the_same_run(tmp_path):
    """A time only orders the rows."""
    for name, factor in {"seconds": 1, "milliseconds": 1000}.items():
        cwd = tmp_path / name
        cwd.mkdir()
        series(cwd / "iso")
        header, *lines = (cwd / "iso").read_text().splitlines()
        timed = [header]
        for row, line in enumerate(lines):
            timed.append(f"{(1_700_000_000 + 3600 * row) * factor},{line.partition(',')[2]}")
        (cwd / "epoch.csv").write_text("\n".join(timed))
        assert_trained(train("timeseries", cwd, "--data", "epoch.csv"), cwd)
    assert result_of(tmp_path / "seconds") == result_of(tmp_path / "milliseconds")


def test_a_checkpoint_runs_no_code_where_torch_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert_trained(train("timeseries", tmp_path), tmp_path)
    hostile = pickle.dumps(functools.partial(os.mkdir, "was-run"))
    name = f"step-00000099-{hashlib.sha256(hostile).hexdigest()[:16]}.pt"
    (last_checkpoint(tmp_path).with_name(name)).write_bytes(hostile)
    one_error(resume(tmp_path), r"cannot load \(UnpicklingError\)", name)
    assert not (tmp_path / "was-run").exists()
