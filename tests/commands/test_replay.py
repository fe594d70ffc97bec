"""`replay` of the extra `replay`: equal bits, the first step of a fault, and what a step computes."""

import json
import re
import shutil
import subprocess

import pytest
import torch
from rendering import REPOSITORY, render, replace
from running import PACKAGE, check_run, documented, newest_run, one_error, run
from sizes import TINY

EXTRAS = ["finetune", "replay"]
LENGTH = (
    *("--training.max_steps", "40", "--monitor.every_steps", "15", "--schedule.warmup_steps", "4"),
    *("--checkpoint.every_steps", "9", "--evaluation.every_steps", "20"),
    *("--training.gradient_accumulation_steps", "2"),
)


def command(folder, *words, workload="tabular", **answers):
    project = render(workload=workload, extras=EXTRAS, **answers)
    return run(project, *words, cwd=folder)


def train(folder, *words, workload="tabular", **answers):
    done = command(folder, "train", *TINY[workload], *LENGTH, *words, workload=workload, **answers)
    assert done.code == 0, done.err
    return newest_run(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(folder, "--name", "a")
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A run whose files a test may change."""
    (tmp_path / "data").symlink_to(trained / "data")
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize(
    ("workload", "framework"),
    [
        ("llm", "pytorch"),
        ("tabular", "lightning"),
        ("tabular", "accelerate"),
        *((workload, "pytorch") for workload in sorted(TINY) if workload not in ("llm", "chat")),
    ],
)
@pytest.mark.first(3)
def test_a_stopped_and_resumed_run_has_equal_bits(workload, framework, tmp_path):
    answers = {"workload": workload, "framework": framework}
    folder = train(tmp_path, "--max-steps", "21", **answers)
    assert command(tmp_path, "train", "--resume", **answers).code == 0
    done = command(tmp_path, "replay", **answers)
    start = f"{folder.relative_to(tmp_path)}: 40 steps from the start, about 0:00:"
    assert done.code == 0, done.err
    assert done.out.startswith(start)
    assert done.out.endswith("\nequal bits: steps 1 to 40\n")

    # A checkpoint has the weights before the step after it, also in the middle of a record.
    done = command(tmp_path, "replay", "--step", "37", "--save", "it.pt", **answers)
    assert "1 steps from the checkpoint of step 36" in done.out, done.err
    assert done.out.endswith("equal bits: steps 37 to 37\nsaved step 37: it.pt\n")
    state = torch.load(tmp_path / "it.pt")
    assert state["equal_bits"] is True
    assert len(state["batches"]) == 2
    (path,) = (folder / "checkpoints").glob("step-00000036-*")
    weights = torch.load(path)["model"]
    assert weights.keys() == state["weights"].keys()
    assert all(weights[name].equal(state["weights"][name]) for name in weights)
    gradients = [tensor for tensor in state["gradients"].values() if tensor is not None]
    assert len(gradients) > 2
    assert all(gradient.any() for gradient in gradients)


def test_a_run_from_other_weights_has_equal_bits(place):
    train(place, "--finetune.init_from", "a", "--optimizer.learning_rate", "1e-4", "--name", "b")
    done = command(place, "replay", "b", "--steps", ":9")
    assert done.out.endswith("\nequal bits: steps 1 to 9\n"), done.err


@pytest.fixture
def under_git(place):
    """The run, in a project that is under git; its files are a test's own."""
    shutil.copytree(render(workload="tabular", extras=EXTRAS), place, dirs_exist_ok=True)
    (place / ".gitignore").write_text("/data\n/runs\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "--all"), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *words], cwd=place, check=True)
    return place


FORWARD = "output = model(batch)"
WRONG = "output._replace(loss=output.loss * {})"
RATE = "rate = learning_rate(run.step, run.num_steps, run.settings)"
SPOILED = f"{FORWARD}\n            output = output if run.step < 18 else {WRONG}"


# A loss shows what is wrong in the forward of its step, a gradient norm in its backward. An update
# shows in the next loss.
@pytest.mark.parametrize(
    ("old", "new", "step", "what"),
    [
        (RATE, f"{RATE} * (1.1 if run.step == 20 else 1)", 22, r"loss \S+ in the run, \S+ now"),
        (FORWARD, SPOILED.format(1.00001), 19, r"loss \S+ in the run, \S+ now"),
        (FORWARD, SPOILED.format("float('nan')"), 19, "the loss or the gradient is not finite now"),
        ("run.divisor(), ", "run.divisor() * 1.00001, ", 1, r"gradient norm \S+ in the .+ now"),
    ],
    ids=["update", "loss", "nan", "gradient"],
)
def test_a_fault_is_found_at_its_first_step(old, new, step, what, under_git):
    replace(under_git / "src" / PACKAGE / "train.py", old, new)
    more = ("--against", "HEAD") if old == RATE else ()
    done = run(under_git, "replay", *more, cwd=under_git)
    assert done.code == 1, done.err
    _, first, commit, *rest = done.out.splitlines()
    assert re.fullmatch(f"different bits from step {step} on: {what}", first)
    assert re.fullmatch(r"commit: \S+ in the run, [0-9a-f]{7}\+changes now", commit)
    if more:
        assert [line.rpartition(" of ")[0] for line in rest] == [
            "first difference of the code: step 21, update"
        ]
    else:
        assert rest == []


def test_a_step_that_is_not_that_of_the_run_is_saved_only_on_demand(place):
    """Here the record differs, and the data have another seal."""
    folder = place / "runs/a"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["step"] == 15)
    row["bits"] = row["bits"][:-1] + "01"[row["bits"][-1] == "0"]  # of the norm of step 15
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**data, "seal": "other"}))

    done = command(place, "replay", "a", "--step", "20")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[1].startswith("different bits from step 15 on: gradient norm ")
    assert lines[3].startswith("data: other in the run, ")
    assert lines[4] == "step 20 is not that of the run: not saved; --anyway saves it"
    done = command(place, "replay", "a", "--step", "20", "--anyway")
    assert done.code == 1
    assert done.out.endswith("\nsaved step 20, not as in the run: runs/a/step-20.pt\n")
    assert torch.load(folder / "step-20.pt")["equal_bits"] is False


def test_a_run_without_exact_numbers(place):
    """An older version of the project made it, or the step came after the last record."""
    path = place / "runs/a/metrics.jsonl"
    path.write_text(re.sub(r'"bits": "\w+"', '"bits": 5', path.read_text()))
    done = command(place, "replay", "a")
    one_error(done, "there are no exact numbers of these steps", "metrics.jsonl")
    path.write_text("")
    done = command(place, "replay", "a", "--step", "3", "--anyway")
    assert (done.code, done.out.count("\n")) == (0, 2), done.err
    assert done.out.endswith("saved step 3, not as in the run: runs/a/step-3.pt\n")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--steps 5:x", ("this is no range of steps", "--steps 5:x")),
        ("--steps 9:5", ("the run has no such steps",)),
        ("--steps :41", ("the run has no such steps", "of 40 steps")),
        ("--step 0", ("the run has no such steps",)),
        ("--step 3 --steps 2:", ("not allowed with",)),
        ("--against nowhere", ("git cannot read this commit",)),
        ("b", ("no run 'b'",)),
    ],
)
@pytest.mark.first(4)
def test_what_cannot_be_replayed_is_one_line(words, parts, trained):
    one_error(command(trained, "replay", *words.split()), *parts)


def test_a_run_of_several_processes_is_refused(place):
    path = place / "runs/a/env.json"
    environment = json.loads(path.read_text())
    assert environment["processes"] == 1
    path.write_text(json.dumps({**environment, "processes": 2}))
    one_error(command(place, "replay", "a"), "the run had 2 processes, and replay has one")


def test_the_pages_commands_work(under_git):
    for words in documented(REPOSITORY / "docs/how-to/replay.md"):
        check_run(under_git, *words, cwd=under_git)
