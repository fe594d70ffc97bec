"""Weights that a run starts from, `finetune.init_from`, and freezes, `finetune.freeze`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from ranks import run_ranks
from rendering import REPOSITORY, render
from running import (
    check_run,
    documented,
    flip_bit,
    last_checkpoint,
    last_state,
    losses,
    newest_run,
    one_error,
    run,
    weights,
)
from safetensors.torch import save_file
from sizes import TINY
from variants import choices

WORDS = (
    *("--data.batch_size", "128", "--model.width", "16", "--schedule.warmup_steps", "2"),
    *("--data.fraction", "0.1", "--training.max_steps", "8", "--monitor.every_steps", "1"),
)
STILL = ("--optimizer.learning_rate", "1e-30")  # a step that changes no weight
FROM = "--finetune.init_from"
every_framework = pytest.mark.parametrize("framework", choices("framework"))


def tensors(folder):
    return last_state(folder)["model"]


def assert_tensors(actual, expected):
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def note(result):
    assert result.code == 0, result.err[-2000:]
    (line,) = (line for line in result.out.splitlines() if line.startswith("note: weights of "))
    return line


def train(place, *words, **answers):
    return run(
        render(workload="tabular", extras=["finetune"], **answers), "train", *words, cwd=place
    )


def write_phases(place, *phases):
    config = {"finetune": {"phases": list(phases)}}
    (place / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run called `source`, and its synthetic data."""
    folder = tmp_path_factory.mktemp("trained")
    result = train(folder, "--name", "source", *WORDS, "--checkpoint.every_steps", "4")
    assert result.code == 0, result.err[-2000:]
    return folder


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@every_framework
@pytest.mark.parametrize("what", ["run", "path of a run", "checkpoint", "copy", "folder", "file"])
@pytest.mark.cover(1)
def test_a_new_run_starts_from_weights_anywhere(framework, what, place):
    expected = tensors(place)
    checkpoint = last_checkpoint(place)
    (place / "elsewhere").mkdir()
    copy = place / "elsewhere/step-00000008-0123456789abcdef.pt"
    shutil.copy(checkpoint, copy)
    save_file(expected, place / "elsewhere/whatever.safetensors")
    sources = {
        "run": "source",
        "path of a run": place / "runs/source",
        "checkpoint": checkpoint,
        "copy": copy,
        "folder": "elsewhere",
        "file": "elsewhere/whatever.safetensors",
    }
    words = (*WORDS, *STILL, "--reproducibility.seed", "7", FROM, str(sources[what]))
    result = train(place, *words, "--max-steps", "1", framework=framework)
    assert "new: nothing; unused: nothing" in note(result)
    assert newest_run(place).name != "source"
    assert copy.exists(), "only checkpoints of a run are judged by their names"
    assert_tensors(tensors(place), expected)


def test_the_best_checkpoint_is_taken_and_hashes_are_compared(place):
    checkpoints = place / "runs/source/checkpoints"
    best = max(checkpoints.glob("step-*-best-*"))
    words = (*WORDS, "--max-steps", "1", FROM)
    assert f"{best.name}: " in note(train(place, *words, "source"))
    flip_bit(best, -1)
    assert f"{best.name}: " not in note(train(place, *words, "source")), "the newest that is whole"
    one_error(train(place, *words, str(best)), "no valid checkpoint", best.name)
    assert best.exists(), "only its own run renames it"


def test_what_fits_is_taken_and_the_rest_is_named(place):
    expected = tensors(place)
    others = {"head.weight": torch.zeros(3, 16), "spare": torch.zeros(2)}
    save_file(expected | others, place / "other.safetensors")
    line = note(train(place, *WORDS, *STILL, "--model.depth", "4", FROM, "other.safetensors"))
    assert "new: layers.2.linear.weight 16×16, layers.2.linear.bias 16, head.weight 1×16; " in line
    assert line.endswith("unused: head.weight 3×16, spare 2")
    started = tensors(place)
    assert torch.equal(started["first.weight"], expected["first.weight"])
    assert started["head.weight"].shape == (1, 16)


def test_weights_that_are_missing_or_do_not_fit_are_one_line(place):
    spare = {"spare": torch.zeros(2)}
    save_file(spare, place / "other.safetensors")
    (place / "broken.safetensors").write_bytes(b"no weights at all")
    expected = {
        "nowhere": "there are no weights: finetune.init_from nowhere: give a run",
        "other.safetensors": "no weight fits .* it has spare 2; the model has .* and .* more",
        "broken.safetensors": "cannot read the weights",
        "https://me:secret@host/a": "there are no weights: .*: give",
    }
    for source, pattern in expected.items():
        assert "secret" not in one_error(train(place, *WORDS, FROM, source), pattern)
    assert [path.name for path in (place / "runs").iterdir()] == ["source"]


@every_framework
@pytest.mark.first(1)
def test_a_resumed_run_continues_from_its_own_weights(framework, place):
    words = (*WORDS, FROM, "source")
    assert train(place, *words, framework=framework).code == 0
    expected = (losses(place), weights(place))
    assert train(place, *words, "--max-steps", "5", framework=framework).code == 0
    shutil.rmtree(place / "runs/source")  # it is not needed any more
    one_error(
        train(place, "--resume", FROM, "other", framework=framework), "cannot change .*init_from"
    )
    result = train(place, "--resume", FROM, "source", framework=framework)
    assert result.code == 0
    assert (losses(place), weights(place)) == expected


@every_framework
@pytest.mark.first(1)
def test_frozen_weights_stay_and_a_phase_trains_them(framework, place):
    """No update, no weight decay, nothing in the optimizer; over phases bit for bit."""
    start = tensors(place)
    head = {"training.max_steps": 4, "finetune.freeze": ["first.*", "layers.0.*", "*.bias"]}
    write_phases(place, head, {"training.max_steps": 4})
    words = (*WORDS, FROM, "source", "--optimizer.weight_decay", "0.5")
    result = train(place, *words, "--phase", "1", framework=framework)
    assert result.code == 0, result.err[-2000:]
    trained = tensors(place)
    moved = {name for name in trained if not torch.equal(trained[name], start[name])}
    assert moved == {"embedding.weight", "layers.1.linear.weight", "head.weight"}
    state = last_state(place)["optimizer"]["state"]
    assert len(state) == len(moved)

    assert train(place, "--resume", framework=framework).code == 0
    expected = (losses(place), weights(place))
    assert not torch.equal(tensors(place)["first.weight"], start["first.weight"])
    for stop in ("2", "4", "6", "8"):
        assert train(place, *words, "--max-steps", stop, framework=framework).code == 0
        words = ("--resume",)
    assert (losses(place), weights(place)) == expected


def test_wrong_patterns_and_phases_are_one_line(place):
    unknown = train(place, *WORDS, "--finetune.freeze", "first.*, lost.*")
    one_error(unknown, "no weight's name matches 'lost.*'", "finetune.freeze", "first.weight")
    every = train(place, *WORDS, "--finetune.freeze", "*")
    one_error(every, "every weight is frozen", "finetune.freeze")
    assert [path.name for path in (place / "runs").iterdir()] == ["source"]
    write_phases(place, {}, {"finetune.init_from": "source"})
    one_error(train(place), "phase cannot change finetune.init_from: config.yaml phase 2")


def odd_tensors(name, tensor):
    """A state_dict with one tensor of each kind that has no plain values."""
    quantized = torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)
    packed = torch.zeros(tensor.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    odd = {
        "sparse": tensor.to_sparse(),
        "sparse rows": tensor.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([tensor[0], tensor[1]]),
        "ragged": torch.nested.nested_tensor([tensor[0], tensor[1]], layout=torch.jagged),
        "meta": tensor.to("meta"),
        "quantized": quantized,
        "packed": packed,
    }
    return {kind: {name: value} for kind, value in odd.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of such tensors
def test_tensors_without_plain_values_are_one_line(place):
    """In a file and in a checkpoint; complex ones and other keys are left out."""
    state = tensors(place)
    name = "layers.0.linear.weight"
    sources = {}
    for kind, odd in odd_tensors(name, state[name]).items():
        torch.save(state | odd, place / f"{kind}.pt")
        sources[f"{kind}.pt"] = name
    content = torch.load(last_checkpoint(place), weights_only=True)
    for source, model in (
        ("listed", list(state.values())),
        ("sparse", {name: state[name].to_sparse()}),
    ):
        folder = place / "runs" / source / "checkpoints"
        folder.mkdir(parents=True)
        torch.save(content | {"model": model}, folder / "new")
        (folder / "new").rename(folder / f"step-00000008-{digest(folder / 'new')}.pt")
        sources[source] = "finetune.init_from"
    for source, pattern in sources.items():
        one_error(train(place, *WORDS, FROM, source), pattern)
    torch.save(state | {name: state[name].to(torch.complex64), 7: state[name]}, place / "mixed.pt")
    assert f"new: {name} 16×16; unused: {name} 16×16" in note(
        train(place, *WORDS, FROM, "mixed.pt")
    )


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def test_frozen_weights_that_are_new_are_refused_unless_asked_for(place):
    """They would stay random: without initial weights, from a file that lacks them, in a phase."""
    state = tensors(place)
    head = {name: tensor for name, tensor in state.items() if name.startswith("head.")}
    save_file(head, place / "head.safetensors")
    freeze = ("--finetune.freeze", "head.*, first.*")
    says = "'first.*' freezes weights that are new and stay random: first.weight: finetune.freeze"
    one_error(train(place, *WORDS, FROM, "head.safetensors", *freeze), re.escape(says))
    write_phases(place, {"finetune.freeze": ["head.bias"], "training.max_steps": 1})
    one_error(train(place, *WORDS), "'head.bias' freezes weights that are new")
    assert [path.name for path in (place / "runs").iterdir()] == ["source"]
    write_phases(place)
    one_error(train(place, *WORDS, *freeze), "'head.[*]' freezes weights that are new")
    asked = train(place, *WORDS, *freeze, "--finetune.freeze_new", "true", "--max-steps", "1")
    assert asked.code == 0, asked.err
    same = train(place, *WORDS, FROM, "head.safetensors", "--finetune.freeze", "head.*")
    assert "first.weight" in note(same)


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_start_from_whole_and_from_sharded_weights(distributed, tmp_path):
    """And one process from what two have saved, with averages that start there, too."""
    answers = {"workload": "llm", "extras": ["ema", "finetune"]}
    words = ("train", *TINY["llm"], "--training.precision", "fp32", *STILL)
    words = (*words, "--training.max_steps", "2", "--evaluation.every_steps", "100")
    check_run(render(**answers), *words, "--name", "one", cwd=tmp_path)
    expected = tensors(tmp_path)
    words = (*words, "--reproducibility.seed", "7", FROM)
    ranks = ("--data.batch_size", "4", "--finetune.freeze", "layers.0.*", "--name")
    project = render(**answers, distributed=distributed)
    for source, name in (("one", "two"), ("two", "three")):
        first, second = run_ranks(project, *words, source, *ranks, name, cwd=tmp_path)
        assert "new: nothing; unused: nothing" in note(first)
        assert second.code == 0
    if distributed == "fsdp":
        refused = run(render(**answers), *words, "three", cwd=tmp_path)
        one_error(refused, "cannot use the checkpoint", "folders need distributed=fsdp")
    check_run(project, *words, "three", "--name", "four", cwd=tmp_path)
    assert_tensors(tensors(tmp_path), expected)
    state = last_state(tmp_path)
    assert_tensors(expected, state["hooks"]["ema"]["averages"])


def test_the_pages_commands_work(tmp_path):
    page = REPOSITORY / "docs/how-to/weights.md"
    project = render(workload="tabular", extras=["finetune"])
    for words in documented(page):
        check_run(project, *words, cwd=tmp_path)
    (code,) = re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    sources = {**os.environ, "PYTHONPATH": str(project / "src")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=sources, check=True)
