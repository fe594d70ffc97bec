"""`layout: script`: what owners write into the file, and what they give it, is right or one line.

An owner's edit is code at the end of `train.py`, where it replaces what has the same name.
"""

import errno
import functools
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from running import last_checkpoint, losses, newest_run, one_error
from scripts import CASES, at_step, nothing, result_of, run_script, script, send, words_of
from test_script import every_script, load_script, saved_steps

MAIN = '\nif __name__ == "__main__":'


def edit(workload, cwd, code):
    """A script with an owner's code at its end."""
    project = cwd / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(script(workload), project)
    path = project / "train.py"
    text, main, call = path.read_text(encoding="utf-8").partition(MAIN)
    path.write_text(f"{text}\n{code}\n{main}{call}", encoding="utf-8")
    return project


def model_with(change, in_forward=""):
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


def train(workload, cwd, *flags, code="", before=nothing, steps=30):
    """Train an edited script. It saves every 15 steps and at the end."""
    cwd.mkdir(exist_ok=True)
    CASES[workload].write(cwd / "data.file")
    words = [*words_of(workload, steps, accumulation=1), *flags]
    return run_script(edit(workload, cwd, code), *words, cwd=cwd, before=before)


def train_py(cwd):
    return cwd / "project/train.py"


def resume(cwd):
    return run_script(cwd / "project", "--resume", cwd=cwd)


def assert_trained(done, cwd, steps=30):
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

def fault():
    return 1 + random.random() + np.random.rand()
"""
IN_LOSS = """
true_loss = compute_loss

def compute_loss(model, batch):
    loss, *others = true_loss(model, batch)
    return loss * fault(), *others
"""
IN_DATASET = """
class Noisy(Rows):
    def __getitem__(self, numbers):
        batch = super().__getitem__(numbers)
        batch["features"] = batch["features"] * np.float32(fault())
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
GRADIENT = (
    "next(p for p in self.parameters() if p.requires_grad)"
    ".register_hook(lambda x: x * bad if next(calls) == {} else x)"
)
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


# Changes something at the end of a step; the losses stay finite.
SPOIL = """
update = Trainer.update

def spoiled(trainer, *arguments):
    norm = update(trainer, *arguments)
    if trainer.progress.step == 30:
        with torch.no_grad():
            {}
    return norm

Trainer.update = spoiled
"""
MASK = "self.mask = nn.Buffer(torch.full((2,), -math.inf))"


def test_only_finite_states_are_saved(tmp_path):
    """A mask of minus infinity, which was there from the start, is no fault."""
    code = model_with(f"{MASK}; self.statistics = nn.Buffer(torch.zeros(2))")
    states = {
        "exp_avg": "next(iter(trainer.optimizer.state.values()))['exp_avg'].fill_(math.nan)",
        "exp_avg_sq": "[*trainer.optimizer.state.values()][-1]['exp_avg_sq'][0] = math.inf",
        "first.bias": "trainer.model.first.bias[0] = -math.inf",
        "statistics": "trainer.model.statistics[1] = math.nan",
    }
    for name, line in states.items():
        cwd = tmp_path / name
        done = train("tabular", cwd, code=code + SPOIL.format(line))
        one_error(done, f"{name} is not finite after step 30", "--resume")
        assert saved_steps(cwd) == [15]
    run = train_py(cwd)
    run.write_text(run.read_text().replace("step == 30", "step == 999"))
    assert resume(cwd).code == 0
    assert saved_steps(cwd)[-1] == 30


@pytest.mark.parametrize(("workload", "metric"), [("timeseries", "loss"), ("forecast", "mase")])
def test_the_lowest_validation_loss_or_mase_that_is_finite_is_the_best(workload, metric, tmp_path):
    code = f"""
evaluate = Trainer.evaluate
values = iter([-math.inf, 1.0, math.nan, 2.0, -math.inf, math.nan])
Trainer.evaluate = lambda *arguments: evaluate(*arguments) | {{"{metric}": next(values)}}
"""
    assert_trained(train(workload, tmp_path, "--evaluate_every", "6", code=code), tmp_path)
    checkpoint = torch.load(last_checkpoint(tmp_path), weights_only=True)
    assert (checkpoint["best_step"], checkpoint[f"best_{metric}"]) == (12, 1.0)


def test_fp16_that_skips_every_step_is_an_error(tmp_path):
    """Some in a row are none."""
    flags = ("--precision", "fp16", "--log_every", "4")
    code = COUNT.format("inf") + model_with(GRADIENT.format("not 20"))
    for steps, last in ((60, 40), (5, 5)):
        cwd = tmp_path / str(steps)
        endless = code.replace("next(calls) == not 20", "True")
        done = train("timeseries", cwd, *flags, "--save_every", "99", code=endless, steps=steps)
        one_error(done, f"gradient norm of step {last} is (nan|inf)", "another --precision")
        assert saved_steps(cwd) == []
        assert ("warning: fp16 skipped 10 steps in a row, up to step 10" in done.out) == (last > 9)
    some = code.replace("next(calls) == not 20", "next(calls) < 13")
    done = train("timeseries", tmp_path / "some", *flags, code=some)
    assert_trained(done, tmp_path / "some", steps=10)


@pytest.mark.first(2)
@every_script
def test_a_loss_that_is_not_finite_names_what_to_check(workload, tmp_path):
    done = train(workload, tmp_path, code=IN_LOSS + "fault = lambda: float('nan')")
    one_error(done, "loss of step 1 is nan", r"samples \[\d+, \d+", "compute_loss")
    assert saved_steps(tmp_path) == []


# --- memory


def in_forward(error):
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


def test_another_error_keeps_its_traceback(tmp_path):
    done = train("timeseries", tmp_path, code=in_forward("RuntimeError('of the owner')"))
    assert "Traceback" in done.err
    assert "of the owner" in done.err


# --- the environment


def test_no_worker_starts_where_workers_are_forbidden(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLOW_UNSAFE_DATALOADER", "false")

    def forbid(train):
        os.fork = lambda: pytest.fail("a worker starts")

    assert_trained(train("tabular", tmp_path, before=forbid), tmp_path)


# --- Windows, imitated: without fcntl, SIGHUP and SIGUSR1


def as_on_windows(module):
    for name in ("SIGHUP", "SIGUSR1"):
        delattr(signal, name)
    sys.modules["fcntl"] = None  # an import of it fails


@pytest.mark.first(2)
@every_script
def test_nothing_needs_what_windows_lacks(workload, tmp_path):
    whole = tmp_path / "whole"
    stopped = tmp_path / "stopped"
    assert_trained(train(workload, whole, before=as_on_windows), whole)

    def stop(module):
        as_on_windows(module)
        at_step(22, send(signal.SIGTERM))(module)

    assert train(workload, stopped, before=stop).code == 143
    done = run_script(stopped / "project", "--resume", cwd=stopped, before=as_on_windows)
    assert done.code == 0, done.err
    assert result_of(stopped) == result_of(whole)


# --- levers


@every_script
def test_all_optimizations_are_off_with_one_flag(workload, tmp_path):
    done = train(workload, tmp_path, "--no-optimize", steps=2)
    assert_trained(done, tmp_path, steps=2)
    table = done.out.partition("optimization ")[2].partition("\nChange one")[0]
    states = {line.split()[1] for line in table.splitlines()[1:]}
    assert "off" in states
    assert states <= {"off", "fp32", "0", "1"}  # numbers of micro-batches and workers


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
    results = [json.loads(path.read_text()) for path in (tmp_path / "benchmark_results").iterdir()]
    assert sorted(result["compared"] for result in results) == sorted(measured)
    (rounds,) = {np.shape(result["measured"]) for result in results}
    assert rounds == (1, 2, 2)  # on and off: milliseconds of a step, its memory


def test_a_lever_without_effect_is_a_note_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("NUM_WORKERS", "4")
    flags = ("--pin_memory", "0", "--compile", "default", "--precision", "tf32")
    done = train("timeseries", tmp_path, *flags, "--warmup_steps", "9", steps=1)
    assert "note: the warm-up is longer than the run: lower --warmup_steps" in done.out
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
    if workload in (
        "timeseries",
        "windows",
    ):  # the gradients of stretches of time add up in another order
        pairs = zip(losses(saving), losses(plain), strict=True)
        for (_, one), (_, other) in pairs:
            assert float.fromhex(one) == pytest.approx(float.fromhex(other), rel=1e-3)
    else:
        assert losses(saving) == losses(plain)


@pytest.mark.first(3)
@pytest.mark.parametrize("workload", ["tabular", "llm", "graph", "seq2seq"])
def test_checkpointed_blocks_are_compiled(workload, tmp_path, monkeypatch):
    """The graph of each block, forward and backward, is that of a compiler which counts them."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    def compile_block(block, **options):
        block._compiled_call_impl = torch.compile(block._call_impl, backend=counter, **options)

    module = load_script(workload, monkeypatch)
    monkeypatch.chdir(tmp_path)
    CASES[workload].write(tmp_path / "data.file")
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda block, mode, **options: compile_block(block, **options)
    )
    flags = ["--gradient_checkpointing", "--compile", "default"]
    settings, _ = module.read_settings(module.parse([*words_of(workload, 1, 1), *flags]))
    trainer = module.Trainer(settings)
    assert (trainer.settings.compile, trainer.settings.gradient_checkpointing) == ("default", True)
    trainer.step()
    assert counter.frame_count >= 1
    assert trainer.optimizer.state


# --- files

# What may happen to a line of metrics.jsonl, and what it is then.
DAMAGES = {
    "flipped": lambda line: line.replace(b'"loss"', b'"los\xf3"'),
    "cut": lambda line: line[:20],
    "no step": lambda line: line.replace(b'"step"', b'"stop"'),
    "text": lambda line: re.sub(rb'"loss": [^,]+', b'"loss": "low"', line),
    "huge": lambda line: re.sub(rb'"loss": [^,]+', b'"loss": ' + 400 * b"9", line),
    "huge step": lambda line: re.sub(rb'"step": [^,]+', b'"step": ' + 40 * b"9", line),
    "list": lambda line: b"[1, 2]",
    "no number": lambda line: re.sub(rb'"loss": [^,]+', b'"loss": [1, 2]', line),
    "steps": lambda line: re.sub(rb'"step": [^,]+', b'"step": [1, 2]', line),
    "no step in a list": lambda line: re.sub(rb'"step": [^,]+', b'"step": []', line),
    "empty": lambda line: b"",
}


def test_a_damaged_record_costs_that_record(tmp_path):
    """The others stay as they are, and the run ends with its plot."""
    kill = at_step(22, send(signal.SIGKILL))
    assert train("timeseries", tmp_path, before=kill).code == -signal.SIGKILL
    path = newest_run(tmp_path) / "metrics.jsonl"
    whole = path.read_bytes().splitlines()
    assert len(whole) == 21
    damaged = [*whole]
    for place, damage in enumerate(DAMAGES.values(), start=3):
        damaged[place] = damage(damaged[place])
        assert damaged[place] != whole[place]
    path.write_bytes(b"\n".join(damaged))
    done = resume(tmp_path)
    assert done.code == 0, done.err
    assert done.out.count("note: not a record of a loss") == 2 * len(DAMAGES)  # resume and plot
    lines = path.read_bytes().splitlines()
    assert lines[:15] == damaged[:15]
    assert [json.loads(line)["step"] for line in lines[15:]] == [*range(16, 31), 30, 30]
    assert (path.parent / "curves.png").exists()


def test_checkpoints_that_cannot_be_listed_are_one_line_and_stay(tmp_path):
    stop = at_step(22, send(signal.SIGTERM))
    assert train("timeseries", tmp_path, before=stop).code == 143
    files = newest_run(tmp_path).rglob("*.*")
    before = {path: path.read_bytes() for path in files if path.name != ".lock"}

    def fail(module):
        for name in ("listdir", "scandir"):
            real = getattr(os, name)

            def list_or_fail(path=".", real=real):
                if "checkpoints" in str(path):
                    raise PermissionError(errno.EACCES, "Permission denied", path)
                return real(path)

            setattr(os, name, list_or_fail)

    done = run_script(tmp_path / "project", "--resume", cwd=tmp_path, before=fail)
    one_error(done, "Permission denied.*checkpoints")
    assert {path: path.read_bytes() for path in before} == before
    assert_trained(resume(tmp_path), tmp_path)


def test_a_checkpoint_runs_no_code_where_torch_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert_trained(train("timeseries", tmp_path), tmp_path)
    hostile = pickle.dumps(functools.partial(os.mkdir, "was-run"))
    name = f"step-00000099-{hashlib.sha256(hostile).hexdigest()[:16]}.pt"
    (last_checkpoint(tmp_path).with_name(name)).write_bytes(hostile)
    one_error(resume(tmp_path), "cannot load it", name)
    assert not (tmp_path / "was-run").exists()


def test_a_file_of_another_program_is_no_checkpoint(tmp_path):
    """Else an empty one would begin the run again and overwrite its records."""
    assert_trained(train("timeseries", tmp_path), tmp_path)
    folder = newest_run(tmp_path)
    records = (folder / "metrics.jsonl").read_bytes()
    for content in ([], [1, 2], {}, {"model": {}}, torch.ones(3), 5, "text", None):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        name = f"step-00000099-{hashlib.sha256(buffer.getvalue()).hexdigest()[:16]}.pt"
        path = folder / "checkpoints" / name
        path.write_bytes(buffer.getvalue())
        one_error(resume(tmp_path), "cannot load it", name, "use another checkpoint")
        assert (folder / "metrics.jsonl").read_bytes() == records
        path.unlink()
    assert resume(tmp_path).code == 0
