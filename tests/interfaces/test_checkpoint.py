"""Checkpoints are whole or absent: round trips, what stays, and every way to die or decay in
between."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import OneOf, engine
from running import flip_bit
from safetensors.torch import load_file
from torch import nn


class Tied(nn.Module):
    """Weights of every awkward kind: shared, transposed, half, empty, a scalar, whole numbers."""

    def __init__(self, seed: int = 0):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.turned = nn.Parameter(torch.randn(4, 2, generator=random).t())
        self.rounded = nn.Parameter(torch.randn(6, generator=random).bfloat16())
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(seed))
        with torch.no_grad():
            self.embedding.weight.copy_(torch.randn(5, 3, generator=random))


class Part:
    """Anything with a state."""

    def __init__(self, value: Any):
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def make(folder: Path, seed: int = 0, keep: int = 2, **must_match: Any) -> Any:
    """A Checkpoint of a small run whose content `seed` decides."""
    parts = {"model": Tied(seed), "other": Part([seed, "x", None])}
    return engine("checkpoint").Checkpoint(folder, OneOf(), keep, must_match, **parts)


def saved(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in engine("checkpoint").folders(folder)]


def save(folder: Path, *steps: int, keep: int = 2) -> None:
    """Checkpoints of these steps, each with its own content."""
    for step in steps:
        make(folder, step, keep).save(step)


def assert_content(folder: Path, step: int, **must_match: Any) -> Any:
    """The newest valid checkpoint is that of `step`, whole, in all its parts."""
    into = make(folder, seed=99, **must_match)
    assert into.load()["step"] == step
    assert into.parts["other"].value == [step, "x", None]
    loaded = into.parts["model"].state_dict()
    for name, tensor in Tied(step).state_dict().items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name
    return into


def test_round_trip_with_tied_weights(tmp_path):
    assert make(tmp_path / "absent").load() is None
    assert make(tmp_path).load_model() is None
    save(tmp_path, 7)
    model = assert_content(tmp_path, 7).parts["model"]
    assert model.head.weight is model.embedding.weight
    stored = load_file(tmp_path / "step-00000007/model.safetensors")
    assert len(stored) == len(model.state_dict()) - 1, "a shared tensor is stored once"


@pytest.mark.parametrize(("keep", "wanted"), [(2, [5, 4]), (3, [5, 4, 3])])
def test_the_newest_stay(keep, wanted, tmp_path):
    (tmp_path / ".trash-step-00000001").mkdir()  # of a run that was killed while it removed one
    save(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert saved(tmp_path) == wanted
    assert len(list(tmp_path.iterdir())) == len(wanted)


def test_the_best_one_stays_until_another_is_better(tmp_path):
    made = make(tmp_path)
    made.save(1, is_best=True)
    for step in (2, 3, 4):
        made.save(step)
    resumed = make(tmp_path)
    resumed.load()
    resumed.save(5)
    assert saved(tmp_path) == [5, 4, 1]
    assert resumed.load_model("best")["step"] == 1
    assert resumed.load_model("last")["step"] == 5
    resumed.save(5, is_best=True)  # the same step, evaluated after it was saved
    for step in (6, 7):
        resumed.save(step)
    assert saved(tmp_path) == [7, 6, 5]
    flip_bit(tmp_path / "step-00000005/model.safetensors", -1)
    assert resumed.load_model("best")["step"] == 7, "a damaged best one gives way to the newest"
    assert "step-00000005" in resumed.skipped[0]


def test_a_best_one_that_found_no_space_leaves_the_one_before(tmp_path, monkeypatch):
    made = make(tmp_path)
    made.save(1, is_best=True)
    with monkeypatch.context() as patch:
        patch.setattr(engine("checkpoint"), "write_sealed", full)
        with pytest.raises(engine("checkpoint").NotWritten):
            made.save(2, is_best=True)
    for step in (3, 4, 5):
        made.save(step)
    assert saved(tmp_path) == [5, 4, 1]
    assert make(tmp_path).load_model("best")["step"] == 1


def test_the_newest_valid_manifest_names_the_best_one(tmp_path):
    """A damaged one names nothing, so it removes nothing."""
    made = make(tmp_path)
    made.save(1, is_best=True)
    made.save(2)
    made.save(3)
    flip_bit(tmp_path / "step-00000003/manifest.json", 40)
    resumed = make(tmp_path)
    assert resumed.load_model("best")["step"] == 1
    assert resumed.load()["step"] == 2
    resumed.save(4)
    assert set(saved(tmp_path)) == {4, 3, 1}


DAMAGES = [
    *(("model.safetensors", place) for place in (0.0, 0.3, 0.99)),
    *(("state.pt", place) for place in (0.0, 0.3, 0.99)),
    *(("model.safetensors", damage) for damage in ("cut", "missing")),
    *(("state.pt", damage) for damage in ("cut", "missing")),
    *(("manifest.json", damage) for damage in ("cut", "empty", "missing")),
    *(("manifest.json", text) for text in ("{}", "[]", "null", "1", '"a"', 9999 * "[")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_the_newest_valid_one_wins_and_others_are_named(name, damage, tmp_path):
    for step in (1, 2):
        make(tmp_path, step, phase=0).save(step)
    path = tmp_path / "step-00000002" / name
    size = path.stat().st_size
    if isinstance(damage, float):
        flip_bit(path, int(size * damage))
    elif damage == "missing":
        path.unlink()
    elif damage in ("cut", "empty"):
        os.truncate(path, size // 2 if damage == "cut" else 0)
    else:
        path.write_text(damage)
    into = assert_content(tmp_path, 1, phase=0)
    assert len(into.skipped) == 1
    assert into.skipped[0].startswith("step-00000002")
    assert into.peek("last") == {"phase": 0}


def test_all_damaged_is_an_error_that_names_them(tmp_path):
    save(tmp_path, 1, 2)
    for step in (1, 2):
        flip_bit(tmp_path / f"step-{step:08d}" / "state.pt", 100)
    with pytest.raises(engine("errors").UserError, match=r"step-00000002.*step-00000001"):
        make(tmp_path).load()


def test_other_facts_are_refused_before_anything_is_loaded(tmp_path):
    """An evaluation compares none: the weights are good for use."""
    make(tmp_path, 1, data="abc", phase=0).save(1)
    into = make(tmp_path, 5, data="xyz", phase=0)
    with pytest.raises(engine("errors").UserError, match=r"data was abc .* is xyz now"):
        into.load()
    assert into.parts["other"].value == [5, "x", None]
    assert torch.equal(into.parts["model"].embedding.weight, Tied(5).embedding.weight)
    with pytest.raises(engine("errors").UserError, match="rule was None"):
        make(tmp_path, data="abc", rule=2).load()
    assert into.load_model("last")["step"] == 1


def test_another_model_is_one_line(tmp_path):
    save(tmp_path, 1)
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    other = engine("checkpoint").Checkpoint(tmp_path, OneOf(), model=model)
    with pytest.raises(engine("errors").UserError, match="does not fit the model") as caught:
        other.load_model("last")
    assert str(caught.value).count('"') == 6  # three names
    assert "\n" not in str(caught.value)


def test_pruning_waits_until_the_new_one_verifies(tmp_path, monkeypatch):
    """A disk that loses what it was given: the checkpoints before are all that is left."""
    save(tmp_path, 1, 2)
    real = os.replace

    def losing(source, target):
        real(source, target)
        if Path(target).name == "step-00000003":
            flip_bit(Path(target) / "model.safetensors", -1)

    monkeypatch.setattr(engine("checkpoint").os, "replace", losing)
    with pytest.raises(ValueError, match="sha256"):
        save(tmp_path, 3)
    monkeypatch.undo()
    assert saved(tmp_path) == [3, 2, 1]
    assert_content(tmp_path, 2)


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Killed(BaseException):
    """The process ends here."""


# Every call by which saving touches the disk; `os` is the one module of all, so its names go last.
WRITES = (
    ("shards", "save_file"),
    ("shards", "write_tensors"),
    ("shards", "sync"),
    ("checkpoint", "write_tensors"),
    ("checkpoint", "write_sealed"),
    ("checkpoint", "sync"),
)
TOUCHES = (*WRITES, ("checkpoint", "sha256"), ("checkpoint", "_set_aside"))


def kill_at(hit: int, when: str, patch: pytest.MonkeyPatch) -> None:
    """Ends the process before or after the call number `hit`."""
    calls = iter(range(1, 1000))

    def deadly(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            number = next(calls)
            if number == hit and when == "before":
                raise Killed
            result = real(*arguments, **named)
            if number == hit:
                raise Killed
            return result

        return call

    for module, name in TOUCHES:
        patch.setattr(engine(module), name, deadly(getattr(engine(module), name)))
    patch.setattr(engine("checkpoint").os, "replace", deadly(os.replace))


def test_dying_anywhere_in_a_save_costs_that_checkpoint_at_most(tmp_path, monkeypatch):
    """Before and after each call; whoever comes next finds the old one or the new one, whole."""
    deaths = 0
    for when in ("before", "after"):
        for hit in range(1, 100):
            folder = tmp_path / f"{when}{hit}"
            save(folder, 1, 2)
            with monkeypatch.context() as patch:
                kill_at(hit, when, patch)
                try:
                    save(folder, 3)
                    has_died = False
                except Killed:
                    has_died = True
            deaths += has_died
            assert_content(folder, max(saved(folder)))
            assert max(saved(folder)) >= 2
            save(folder, 4)  # what was left is not in the way
            assert_content(folder, 4)
            if not has_died:
                break
    assert deaths > 10


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "check the folder")]
)
def test_a_failed_save_is_said_and_leaves_the_others_whole(code, remedy, tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    save(tmp_path, 1, 2)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    not_written = engine("checkpoint").NotWritten
    for module, name in WRITES:
        with monkeypatch.context() as patch:
            patch.setattr(engine(module), name, fail)
            with pytest.raises(not_written, match=f"{os.strerror(code)}.*{remedy}"):
                save(tmp_path, 3)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before, name
    assert_content(tmp_path, 2)


def test_damaged_ones_cost_no_whole_one(tmp_path):
    """A resume behind two of them goes on from an earlier step, and what it saves stays."""
    save(tmp_path, 2, 4, 6, keep=3)
    for step in (4, 6):
        with open(tmp_path / f"step-{step:08d}" / "state.pt", "ab") as file:
            file.write(b"x")
    save(tmp_path, 3)
    assert {2, 3} <= set(saved(tmp_path))
    assert make(tmp_path).load()["step"] == 3
    save(tmp_path, 4, 5, 6)
    assert saved(tmp_path) == [6, 5]


def test_a_checkpoint_that_goes_while_it_is_read_is_one_line(tmp_path, monkeypatch):
    """A training that runs has saved a better one, and removes it."""
    module = engine("checkpoint")
    real = module.read_model
    save(tmp_path, 1)

    def removed(manifest):
        shutil.rmtree(manifest["path"])
        return real(manifest)

    monkeypatch.setattr(module, "read_model", removed)
    with pytest.raises(FileNotFoundError) as caught:
        make(tmp_path).load_model("best")
    line = str(engine("explanations").explain(caught.value, command="evaluate"))
    assert line.startswith("a checkpoint was removed while it was read")
    assert line.endswith("evaluate: run the command again")


def test_another_format_is_named_and_not_taken_for_damage(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(engine("checkpoint"), "FORMAT", 3)
    save(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(engine("errors").UserError, match="format 3, this version reads 2"):
        make(tmp_path).load()


class Malicious:
    """Runs code where it is unpickled without care."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_a_file_of_another_kind_under_a_correct_seal_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, 1)
    files = engine("files")
    path = tmp_path / "step-00000001"
    torch.save({"other": Malicious()}, path / name)
    manifest = files.read_json(path / "manifest.json")
    manifest["sha256"][name] = files.sha256(path / name)
    files.write_sealed(path / "manifest.json", manifest)
    with pytest.raises(engine("errors").UserError, match=f"{name}: .*checkpoint"):
        make(tmp_path).load()
    assert not (tmp_path / "was-run").exists()
