"""`replay` of the extra `replay`: equal bits, the first step of a fault, and what a step computes."""

import hashlib
import importlib
import io
import json
import pdb
import random
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from importing import imported
from overflow import overflowing
from rendering import REPOSITORY, render, replace
from running import PACKAGE, check_run, documented, newest_run, one_error, run
from sizes import TINY
from torch.utils._pytree import tree_leaves

EXTRAS = ["finetune", "replay"]
LENGTH = (
    *("--training.max_steps", "40", "--monitor.every_steps", "15", "--schedule.warmup_steps", "4"),
    *("--checkpoint.every_steps", "9", "--evaluation.every_steps", "20"),
    *("--training.gradient_accumulation_steps", "2", "--checkpoint.keep_every", "20"),
)


def command(folder, *words, workload="tabular", extras=EXTRAS, before=None, **answers):
    project = render(workload=workload, extras=extras, **answers)
    return run(project, *words, cwd=folder, before=before)


def train(folder, *words, workload="tabular", **options):
    done = command(folder, "train", *TINY[workload], *LENGTH, *words, workload=workload, **options)
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
        *((workload, "pytorch") for workload in sorted(TINY) if workload != "llm"),
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

    # The checkpoint of a milestone is still there.
    done = command(tmp_path, "replay", "--steps=-19:22", **answers)
    assert "2 steps from the checkpoint of step 20" in done.out, done.err
    assert done.out.endswith("equal bits: steps 21 to 22\n")


def test_a_resume_with_other_settings_is_named(tmp_path):
    """Steps with another number of micro-batches have no numbers to compare."""
    words = ("--data.batch_size", "4", "--training.gradient_accumulation_steps", "4")
    train(tmp_path, "--data.batch_size", "8", "--max-steps", "21")
    assert command(tmp_path, "train", "--resume", *words).code == 0
    done = command(tmp_path, "replay")
    assert "\ndifferent bits from step 31 on: " in done.out, done.err
    assert "note: settings that a resume at step 21 changed count from the start" in done.err
    assert command(tmp_path, "replay", "--steps", "37:").code == 0


def sha(tensors):
    content = hashlib.sha256()
    for tensor in tree_leaves(tensors):
        if isinstance(tensor, torch.Tensor):
            content.update(tensor.detach().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def recording():
    """Write hashes of each step's weights, batches and gradients, without `replay`."""
    module = importlib.import_module(f"{PACKAGE}.engine.training.run")
    real = module.Run.next_batches

    def next_batches(run):
        weights = sha(run.project.model.state_dict())
        batches = []
        for batch, is_last in real(run):
            batches.append(batch)
            yield batch, is_last
        line = [weights, sha(batches)]

        def add_gradients(*_):
            named = run.project.model.named_parameters()
            line.append(sha({name: weight.grad for name, weight in named}))
            handle.remove()
            with open("steps.jsonl", "a") as file:
                print(json.dumps(line), file=file)

        handle = run.project.optimizer.register_step_pre_hook(add_gradients)

    module.Run.next_batches = next_batches


@pytest.mark.parametrize("framework", ["pytorch", "lightning", "accelerate"])
@pytest.mark.parametrize("workload", ["tabular", "timeseries", "llm"])
@pytest.mark.full
def test_30_random_steps_are_those_of_the_run(workload, framework, tmp_path):
    options = {"workload": workload, "framework": framework}
    words = ("--training.max_steps", "100", "--name", "a")
    train(tmp_path, *words, before=recording, **options)
    steps = random.Random(f"{workload} {framework}").sample(range(1, 101), 30)

    def replay_all():
        main = importlib.import_module(f"{PACKAGE}.__main__").main
        for step in steps:
            assert main(["replay", "--step", str(step), "--save", f"{step}.pt"]) == 0

    done = command(tmp_path, "replay", before=replay_all, **options)
    assert done.out.count("equal bits") == 31, done.err
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    for step in steps:
        state = torch.load(tmp_path / f"{step}.pt")
        saved = [sha(state[name]) for name in ("weights", "batches", "gradients")]
        assert saved == json.loads(lines[step - 1]), step


PHASES = "[{training.max_steps: 9}, {training.max_steps: 12, optimizer.learning_rate: 1.0e-4}]"
LORA = ["replay", "lora", "finetune"]
# What a run is like: answers, flags of `train`, flags of `replay`, a fault.
MEMBERS = {
    "a step that fp16 skipped": ({"precision": "fp16"}, (), (), overflowing),
    "phases": ({}, ("--finetune.phases", PHASES), ()),
    "compiled": ({}, ("--compile.enabled", "true"), ()),
    "2 workers, then none": ({}, ("--data.num_workers", "2"), ("--data.num_workers", "0")),
    "no worker, then 2": ({}, ("--data.num_workers", "0"), ("--data.num_workers", "2")),
    "lora, fresh": ({"workload": "chat", "extras": LORA}, ("--lora.rank", "4"), ()),
    "fp8": ({"workload": "llm", "precision": "fp8"}, ("--training.fp8_emulation", "true"), ()),
    "a carried state": (
        {"workload": "timeseries", "extras": ["replay", "lanes"]},
        ("--data.order", "lanes"),
        (),
    ),
    "one process of ddp": ({"distributed": "ddp"}, (), ()),
    "one process of fsdp": ({"workload": "llm", "distributed": "fsdp"}, (), ()),
}


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.first(2)
def test_any_run_is_trained_again_with_equal_gradients(member, tmp_path):
    answers, words, others, *before = MEMBERS[member]
    options = {**answers, "before": before[0] if before else None}
    train(tmp_path, "--exact", *words, **options)
    done = command(tmp_path, "replay", "--exact", *others, **options)
    assert re.search(r"\nequal bits: steps 1 to \d\d\n$", done.out), done.err


@pytest.mark.full
def test_lora_on_weights_of_a_run_has_equal_bits(tmp_path):
    options = {"workload": "llm", "extras": LORA}
    train(tmp_path, "--name", "base", **options)
    words = ("--finetune.init_from", "base", "--lora.rank", "4", "--name", "b")
    train(tmp_path, *words, **options)
    done = command(tmp_path, "replay", "b", "--steps", ":9", **options)
    assert done.out.endswith("\nequal bits: steps 1 to 9\n"), done.err


def test_a_step_is_captured_where_the_whole_model_is_compiled():
    rerun = imported(render(workload="tabular", extras=EXTRAS), "measure.rerun")
    model = torch.nn.Linear(4, 4)
    model.compile(backend="eager", fullgraph=True)
    project = SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters()))
    run_of_model = SimpleNamespace(project=project, step=0)
    state = rerun.capture(run_of_model, 12)
    for step in range(14):
        run_of_model.step = step
        model(torch.full((2, 4), float(step))).sum().backward()
        project.optimizer.step()
    assert [batch[0, 0].item() for batch in state["batches"]] == [11.0]
    assert set(state["gradients"]) == {"weight", "bias"}


def typed(*lines):
    """A person in the debugger. pytest has replaced what `breakpoint` calls."""

    def before():
        sys.stdin = io.StringIO("\n".join(lines))
        sys.breakpointhook = lambda: pdb.Pdb().set_trace(sys._getframe(1))

    return before


@pytest.mark.parametrize("framework", ["pytorch", "lightning", "accelerate"])
@pytest.mark.first(1)
def test_the_debugger_stops_before_the_forward_of_a_step(framework, tmp_path):
    options = {"framework": framework}
    train(tmp_path, "--name", "a", **options)
    step = ("replay", "a", "--step", "22", "--pdb")
    stop = "-> return forward(*inputs)"
    steps = ["s", "n"]
    if sys.version_info >= (3, 13):  # its debugger stops one line earlier
        stop = "-> breakpoint()"
        steps = ["s", "s", "n"]
    before = typed("p run.step", *steps, 'p batch["present"].shape', "c", "c", "")
    done = command(tmp_path, *step, before=before, **options)
    assert done.code == 0, done.err
    said = done.out.splitlines()
    assert sum(line.startswith(stop) for line in said) == 2  # for each micro-batch
    assert said[3] == "(Pdb) 21"
    assert "-> def forward(self, batch: Batch) -> Output:" in said
    assert "(Pdb) torch.Size([128])" in said
    assert done.out.endswith("(Pdb) equal bits: steps 21 to 22\n")

    done = command(tmp_path, *step, before=typed("q"), **options)
    assert (done.code, "Traceback" in done.err) == (130, False)


def test_the_debugger_opens_no_step_of_another_run(place):
    """A step before it has other bits."""
    path = place / "runs/a/metrics.jsonl"
    path.write_text(re.sub(r'"bits": "\w{8}', '"bits": "00000000', path.read_text()))
    done = command(place, "replay", "a", "--step", "5", "--pdb", before=typed("c", "c"))
    assert (done.code, "(Pdb)" in done.out) == (1, False)
    assert done.out.startswith("runs/a: 5 steps from the start, about 0:00:00\ndifferent bits from")
    assert done.out.endswith("\nstep 5 is not that of the run: add --anyway to save or debug it\n")
    anyway = (*("replay", "a", "--step", "5", "--pdb"), "--anyway")
    done = command(place, *anyway, before=typed("c", "c"))
    assert done.out.count("(Pdb)") == 2


def test_a_run_from_other_weights_has_equal_bits(place):
    train(place, "--finetune.init_from", "a", "--optimizer.learning_rate", "1e-4", "--name", "b")
    done = command(place, "replay", "b", "--steps", ":9")
    assert done.out.endswith("\nequal bits: steps 1 to 9\n"), done.err


@pytest.fixture
def under_git(place):
    """The run, in a project that is under git; its files are a test's own."""
    shutil.copytree(render(workload="tabular", extras=EXTRAS), place, dirs_exist_ok=True)
    (place / ".gitignore").write_text("/data\n/runs\n")
    commit(place)
    return place


def commit(folder):
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "--all"), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *words], cwd=folder, check=True)


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


def test_a_hash_of_gradients_shows_what_losses_and_norms_do_not(under_git):
    """The norm is taken before clipping, and AdamW makes the same first steps of larger ones."""
    words = ("--training.gradient_clip", "0.5", "--exact", "--name", "b")
    words = (*TINY["tabular"], *LENGTH, *words)
    check_run(under_git, "train", *words, cwd=under_git)
    clip = "torch.maximum(divisor, norm / clip) if clip else divisor"
    replace(under_git / "src" / PACKAGE / "engine/compute/precision.py", clip, "divisor")
    done = run(under_git, "replay", "b", "--steps", ":9", cwd=under_git)
    assert done.code == 1, done.err
    what = r"different bits from step 1 on: hash of the gradients \S+ in the run, \S+ now"
    assert re.fullmatch(what, done.out.splitlines()[1])
    done = run(under_git, "replay", "b", "--monitor.exact", "no", "--steps", ":9", cwd=under_git)
    assert "step 1 on" not in done.out


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
    assert lines[4] == "step 20 is not that of the run: add --anyway to save or debug it"
    assert not (folder / "step-20.pt").exists()
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
        ("--exact", ("the run has no hashes of its gradients", "train --exact")),
        ("--pdb", ("there is no step to save or to debug", "add --step N")),
        ("--save it.pt", ("there is no step to save or to debug", "add --step N")),
        ("b", ("no run 'b'",)),
    ],
)
@pytest.mark.first(3)
def test_what_cannot_be_replayed_is_one_line(words, parts, trained):
    one_error(command(trained, "replay", *words.split()), *parts)


def test_code_with_a_link_is_refused(under_git):
    (under_git / "src" / PACKAGE / "link.py").symlink_to("/nowhere.py")
    commit(under_git)
    done = run(under_git, "replay", "--against", "HEAD", cwd=under_git)
    one_error(done, "is a link to an absolute path", "copy the file, and commit it")


def test_a_run_of_several_processes_is_refused(place):
    path = place / "runs/a/env.json"
    environment = json.loads(path.read_text())
    assert environment["processes"] == 1
    path.write_text(json.dumps({**environment, "processes": 2}))
    one_error(command(place, "replay", "a"), "the run had 2 processes, and replay has one")


def test_the_pages_commands_work(under_git):
    for words in documented(REPOSITORY / "docs/how-to/replay.md"):
        check_run(under_git, *words, cwd=under_git)
