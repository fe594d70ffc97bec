"""Weights that a run starts from, `training.init_from`, and those that it leaves alone, `training.freeze`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from ranks import run_ranks
from rendering import REPOSITORY, render
from running import documented, losses, newest_run, one_error, run, weights
from safetensors.torch import load_file, save_file
from test_tier_b import TINY
from variants import choices

WORDS = (
    *("--data.batch_size", "128", "--model.width", "16", "--schedule.warmup_steps", "2"),
    *("--data.fraction", "0.1", "--training.max_steps", "12", "--monitor.every_steps", "1"),
)
STILL = ("--optimizer.learning_rate", "1e-30")  # a step that changes no weight
every_framework = pytest.mark.parametrize("framework", choices("framework"))


def last(folder: Path) -> Path:
    """The last checkpoint of the newest run."""
    return max((newest_run(folder) / "checkpoints").glob("step-*"))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(last(folder) / "model.safetensors")


def note(out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith("note: weights of ")]
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run called `source`, and its synthetic data."""
    folder = tmp_path_factory.mktemp("trained")
    result = run(render(workload="tabular"), "train", "--name", "source", *WORDS, cwd=folder)
    assert result.code == 0, result.err[-2000:]
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@every_framework
@pytest.mark.parametrize("what", ["run", "path of a run", "checkpoint", "folder", "file"])
@pytest.mark.cover(1)
def test_a_new_run_starts_from_weights_anywhere(framework: str, what: str, place: Path) -> None:
    wanted, source = tensors(place), place / "runs/source"
    checkpoint = last(place)
    (place / "elsewhere").mkdir()
    shutil.copy(checkpoint / "model.safetensors", place / "elsewhere/whatever.safetensors")
    places = {"run": "source", "path of a run": source, "checkpoint": checkpoint}
    places |= {"folder": "elsewhere", "file": "elsewhere/whatever.safetensors"}
    words = (
        *WORDS,
        *STILL,
        "--reproducibility.seed",
        "7",
        "--training.init_from",
        str(places[what]),
    )
    project = render(workload="tabular", framework=framework)
    result = run(project, "train", *words, "--max-steps", "1", cwd=place)
    assert result.code == 0, result.err[-2000:]
    assert "new: nothing; left: nothing" in note(result.out)
    found = tensors(place)
    assert newest_run(place).name != "source"
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
    assert "init_from" in (newest_run(place) / "config.resolved.yaml").read_text()


def test_the_best_checkpoint_is_taken_and_hashes_are_looked_at(place: Path) -> None:
    checkpoints = place / "runs/source/checkpoints"
    best = json.loads((checkpoints / "best.json").read_text())["checkpoint"]
    words = (*WORDS, "--max-steps", "1", "--training.init_from", "source")
    result = run(render(workload="tabular"), "train", *words, cwd=place)
    assert f"{best}: " in note(result.out)
    file = checkpoints / best / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    result = run(render(workload="tabular"), "train", *words, cwd=place)
    assert f"note: skipped a damaged checkpoint: {best} (" in result.out
    assert f"{best}: " not in note(result.out), "the newest that is whole"
    words = (*words, "--training.init_from", str(checkpoints / best))
    one_error(
        run(render(workload="tabular"), "train", *words, cwd=place), "no valid checkpoint", "sha256"
    )


def test_what_fits_is_taken_and_the_rest_is_named(place: Path) -> None:
    wanted = tensors(place)
    source = {**wanted, "head.weight": torch.zeros(3, 16), "spare": torch.zeros(2)}
    save_file(source, place / "other.safetensors")
    words = (*WORDS, *STILL, "--model.depth", "4", "--training.init_from", "other.safetensors")
    result = run(render(workload="tabular"), "train", *words, cwd=place)
    line = note(result.out)
    assert "new: layers.2.linear.weight 16×16, layers.2.linear.bias 16, head.weight 1×16; " in line
    assert line.endswith("left: head.weight 3×16, spare 2")
    found = tensors(place)
    assert torch.equal(found["first.weight"], wanted["first.weight"])
    assert found["head.weight"].shape == (1, 16)
    assert (
        line.removeprefix("note: ")
        in json.loads((newest_run(place) / "env.json").read_text())["notes"]
    )


def test_tied_weights_need_one_of_their_names(tmp_path: Path) -> None:
    project, words = render(workload="llm"), (*TINY["llm"], "--training.max_steps", "2")
    assert run(project, "train", *words, "--name", "tied", cwd=tmp_path).code == 0
    result = run(project, "train", *words, "--training.init_from", "tied", cwd=tmp_path)
    assert "new: nothing; left: nothing" in note(result.out)


def test_weights_that_are_not_there_or_do_not_fit_are_one_line(place: Path) -> None:
    project = render(workload="tabular")

    def refused(source: str, *parts: str) -> None:
        one_error(run(project, "train", *WORDS, "--training.init_from", source, cwd=place), *parts)
        assert [path.name for path in (place / "runs").iterdir()] == ["source"], (
            "nothing is left of it"
        )

    refused("nowhere", "there are no weights: training.init_from nowhere: give a run")
    save_file({"spare": torch.zeros(2)}, place / "other.safetensors")
    refused(
        "other.safetensors",
        "no weight fits this model",
        "it has spare 2; the model has .* and .* more",
    )
    (place / "broken.safetensors").write_bytes(b"no weights at all")
    refused("broken.safetensors", "cannot read the weights")
    (place / "two").mkdir()
    for name in "ab":
        save_file({"spare": torch.zeros(2)}, place / f"two/{name}.safetensors")
    refused("two", "two files have a tensor 'spare'", "one file")


@every_framework
@pytest.mark.first(1)
def test_a_resumed_run_goes_on_from_its_own_weights(framework: str, place: Path) -> None:
    project, words = (
        render(workload="tabular", framework=framework),
        (*WORDS, "--training.init_from", "source"),
    )
    assert run(project, "train", *words, cwd=place).code == 0
    whole = losses(place), weights(place)
    assert run(project, "train", *words, "--max-steps", "5", cwd=place).code == 0
    shutil.rmtree(place / "runs/source")  # it is not needed any more
    result = run(project, "train", "--resume", "--training.init_from", "other", cwd=place)
    assert "note: --training.init_from has no effect" in result.out
    assert (losses(place), weights(place)) == whole


def test_a_run_that_died_before_its_first_checkpoint_starts_from_them_again(place: Path) -> None:
    project, words = render(workload="tabular"), (*WORDS, "--training.init_from", "source")
    assert run(project, "train", *words, cwd=place).code == 0
    whole = losses(place)
    shutil.rmtree(newest_run(place) / "checkpoints")
    assert "tensors fit" in note(run(project, "train", "--resume", cwd=place).out)
    assert losses(place) == whole


@every_framework
@pytest.mark.first(1)
def test_frozen_weights_stay_and_a_phase_trains_them(framework: str, place: Path) -> None:
    """No update, no weight decay, nothing in the optimizer; over the border of phases bit for bit."""
    project, start = render(workload="tabular", framework=framework), tensors(place)
    phases = [
        {
            "name": "head",
            "steps": 5,
            "overrides": {"training.freeze": ["first.*", "layers.0.*", "*.bias"]},
        },
        {"name": "all", "steps": 5},
    ]
    config = yaml.safe_load((project / "config.yaml").read_text()) | {"phases": phases}
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    words = (*WORDS, "--training.init_from", "source", "--optimizer.weight_decay", "0.5")
    result = run(project, "train", *words, "--phase", "1", cwd=place)
    assert result.code == 0, result.err[-2000:]
    assert "training.freeze: " in result.out
    found = tensors(place)
    moved = {name for name in found if not torch.equal(found[name], start[name])}
    assert moved == {"embedding.weight", "layers.1.linear.weight", "head.weight"}
    state = torch.load(last(place) / "state.pt", weights_only=True)["optimizer"]["state"]
    assert len(state) == len(moved)
    assert run(project, "train", "--resume", cwd=place).code == 0
    whole = losses(place), weights(place)
    assert not torch.equal(tensors(place)["first.weight"], start["first.weight"])
    for number, stop in enumerate((3, 5, 8, 10)):
        more = words if number == 0 else ("--resume",)
        assert run(project, "train", *more, "--max-steps", str(stop), cwd=place).code == 0
    assert (losses(place), weights(place)) == whole


def test_a_pattern_that_fits_nothing_and_one_that_fits_all_are_one_line(place: Path) -> None:
    project = render(workload="tabular")
    for given, parts in {
        "first.*, lost.*": ("no weight's name fits 'lost.*'", "training.freeze", "first.weight"),
        "*": ("every weight is frozen", "training.freeze"),
    }.items():
        one_error(run(project, "train", *WORDS, "--training.freeze", given, cwd=place), *parts)


def test_phases_start_from_the_same_weights(place: Path) -> None:
    phases = [{"name": name, "steps": 2} for name in "ab"]
    phases[1]["overrides"] = {"training.init_from": "source"}
    config = yaml.safe_load((render(workload="tabular") / "config.yaml").read_text()) | {
        "phases": phases
    }
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    one_error(
        run(render(workload="tabular"), "train", cwd=place), "training.init_from is source", "phase"
    )


@pytest.mark.parametrize("distributed", ["fsdp", "ddp"])
@pytest.mark.first(1)
def test_two_ranks_start_from_whole_and_from_sharded_weights(
    distributed: str, tmp_path: Path
) -> None:
    """And one process from what two have saved, with averages that start there, too."""
    project = render(workload="llm", distributed=distributed, extras=["ema"])
    words = (*TINY["llm"], "--training.precision", "fp32", "--training.max_steps", "3", *STILL)
    assert run(project, "train", *words, "--name", "one", cwd=tmp_path).code == 0
    wanted = tensors(tmp_path)
    source = "one"
    for name in ("two", "three"):
        more = (
            *words,
            "--reproducibility.seed",
            "7",
            "--training.init_from",
            source,
            "--name",
            name,
        )
        more = (*more, "--data.batch_size", "4", "--training.freeze", "layers.0.*")
        results = run_ranks(project, "train", *more, cwd=tmp_path)
        assert [result.code for result in results] == [0, 0], results[0].err[-2000:]
        assert "new: nothing; left: nothing" in note(results[0].out)
        source = name
    more = ("--reproducibility.seed", "7", "--training.init_from", "three", "--name", "four")
    result = run(render(workload="llm", extras=["ema"]), "train", *words, *more, cwd=tmp_path)
    assert result.code == 0, result.err[-2000:]
    found = tensors(tmp_path)
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
    averages = torch.load(last(tmp_path) / "state.pt", weights_only=True)["hooks"]["ema"][
        "averages"
    ]
    assert all(torch.equal(average, wanted[name]) for name, average in averages.items())


def test_the_pages_commands_work(tmp_path: Path) -> None:
    page = REPOSITORY / "docs/weights.md"
    for words in documented(page):
        result = run(render(workload="tabular"), *words, cwd=tmp_path)
        assert result.code == 0, result.err
    narrow = [
        "third" if word == "second" else word for word in (*words, "--model.category_width", "4")
    ]
    partly = note(run(render(workload="tabular"), *narrow, cwd=tmp_path).out)
    assert partly.removeprefix("note: ") in " ".join(page.read_text(encoding="utf-8").split())
