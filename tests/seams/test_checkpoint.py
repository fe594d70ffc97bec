"""Checkpoints are whole or absent: round trips, what stays, and every way to die or decay in between."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import OneOf, engine
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


def make(folder: Path, seed: int = 0, keep: int = 2, **facts: Any) -> Any:
    """A Checkpoint of a small run whose content `seed` decides."""
    model = Tied(seed)
    parts = {"model": model, "other": Part([seed, "x", None])}
    return engine("checkpoint").Checkpoint(folder, OneOf(), keep, facts, **parts)


def saved(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in engine("checkpoint").folders(folder)]


def save(folder: Path, *steps: int, keep: int = 2) -> None:
    """Checkpoints of these steps, each with its own content."""
    for step in steps:
        make(folder, step, keep).save(step)


def assert_content(folder: Path, step: int) -> Any:
    """The newest valid checkpoint is that of `step`, whole, in all its parts."""
    into = make(folder, seed=99)
    found = into.load()
    wanted = Tied(step).state_dict()
    assert found["step"] == step
    assert into.parts["other"].value == [step, "x", None]
    for name, tensor in into.parts["model"].state_dict().items():
        assert tensor.dtype == wanted[name].dtype
        assert torch.equal(tensor, wanted[name]), name
    return into


def test_round_trip_with_tied_weights(tmp_path: Path) -> None:
    save(tmp_path, 7)
    model = assert_content(tmp_path, 7).parts["model"]
    assert model.head.weight is model.embedding.weight
    from safetensors import safe_open

    with safe_open(tmp_path / "step-00000007" / "model.safetensors", "pt") as file:
        assert len(list(file.keys())) == len(model.state_dict()) - 1, (
            "a shared tensor is stored once"
        )


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert make(tmp_path / "absent").load() is None
    assert make(tmp_path).load_model() is None


@pytest.mark.parametrize(("keep", "wanted"), [(1, [5, 4]), (2, [5, 4]), (3, [5, 4, 3])])
def test_the_newest_stay_at_least_two(keep: int, wanted: list[int], tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert saved(tmp_path) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:08d}" for step in wanted[::-1]
    ]


def test_the_best_one_stays_until_another_is_better(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    made = make(tmp_path)
    made.mark_best(tmp_path / "step-00000001", 0.5)
    save(tmp_path, 3, 4, 5)
    assert saved(tmp_path) == [5, 4, 1]
    assert made.load_model("best")["step"] == 1
    assert made.load_model("last")["step"] == 5
    made.mark_best(tmp_path / "step-00000005", 0.4)
    save(tmp_path, 6, 7)
    assert saved(tmp_path) == [7, 6, 5]
    assert made.load_model("best")["step"] == 5


def test_a_damaged_best_one_gives_way_to_the_newest(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    made = make(tmp_path)
    made.mark_best(tmp_path / "step-00000001", 0.5)
    flip(tmp_path / "step-00000001" / "model.safetensors", -1)
    assert made.load_model("best")["step"] == 2
    assert "step-00000001" in made.skipped[0]


def test_the_same_step_again_takes_its_place(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    make(tmp_path, 3).save(2)
    assert saved(tmp_path) == [2, 1]
    into = make(tmp_path)
    assert (into.load()["step"], into.parts["other"].value[0]) == (2, 3)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


FILES = ("model.safetensors", "state.pt", "manifest.json")
DAMAGE = {
    **{
        f"{file} flipped at {share}": (file, share)
        for file in FILES[:2]
        for share in (0.0, 0.3, 0.6, 0.99)
    },
    **{f"{file} cut": (file, "cut") for file in FILES},
    **{f"{file} empty": (file, "empty") for file in FILES},
    **{f"{file} missing": (file, "missing") for file in FILES},
    "manifest without a hash": ("manifest.json", "foreign"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_valid_one_wins_and_others_are_named(damage: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    name, kind = DAMAGE[damage]
    path = tmp_path / "step-00000002" / name
    size = path.stat().st_size
    if isinstance(kind, float):
        flip(path, int(size * kind))
    elif kind == "missing":
        path.unlink()
    elif kind == "foreign":
        path.write_text("{}")
    else:
        os.truncate(path, size // 2 if kind == "cut" else 0)
    into = assert_content(tmp_path, 1)
    assert len(into.skipped) == 1
    assert into.skipped[0].startswith("step-00000002")


def test_facts_are_those_of_the_newest_valid_one(tmp_path: Path) -> None:
    assert make(tmp_path).peek("last") == {}
    for step in (1, 2):
        make(tmp_path, phase=step).save(step)
    assert make(tmp_path).peek("last") == {"phase": 2}
    flip(tmp_path / "step-00000002" / "state.pt", 100)
    assert make(tmp_path).peek("last") == {"phase": 1}


def test_all_damaged_is_an_error_that_names_them(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    for step in (1, 2):
        flip(tmp_path / f"step-{step:08d}" / "state.pt", 100)
    with pytest.raises(engine("errors").UserError, match=r"step-00000002.*step-00000001"):
        make(tmp_path).load()


def test_other_facts_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    make(tmp_path, 1, data="abc", phase=0).save(1)
    into = make(tmp_path, 5, data="xyz", phase=0)
    with pytest.raises(engine("errors").UserError, match=r"data 'abc'.*'xyz'"):
        into.load()
    assert into.parts["other"].value == [5, "x", None]
    assert torch.equal(into.parts["model"].embedding.weight, Tied(5).embedding.weight)
    into.load(data=["abc"])  # by another rule it is the same
    assert into.parts["other"].value != [5, "x", None]


def test_another_model_is_one_line(tmp_path: Path) -> None:
    save(tmp_path, 1)
    other = engine("checkpoint").Checkpoint(tmp_path, OneOf(), model=nn.Linear(2, 2))
    with pytest.raises(engine("errors").UserError, match="does not fit the model") as caught:
        other.load_model("last")
    assert "\n" not in str(caught.value)


def test_pruning_waits_until_the_new_one_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses what it was given: the checkpoints before are all that is left."""
    save(tmp_path, 1, 2)
    real = os.replace

    def losing(source: Path, target: Path) -> None:
        real(source, target)
        if Path(target).name == "step-00000003":
            flip(Path(target) / "model.safetensors", -1)

    monkeypatch.setattr(engine("checkpoint").os, "replace", losing)
    with pytest.raises(ValueError, match="sha256"):
        save(tmp_path, 3)
    monkeypatch.undo()
    assert saved(tmp_path) == [3, 2, 1]
    assert_content(tmp_path, 2)


class Killed(BaseException):
    """The process ends here."""


# Every call by which saving touches the disk; `os` is the one module of all, so its names go last.
TOUCHES = ("save_file", "_write", "sha256", "write_json", "sync", "_remove")


def test_dying_anywhere_in_a_save_costs_that_checkpoint_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each call; whoever comes next finds the old one or the new one, whole."""
    module, died = engine("checkpoint"), 0
    for when in ("before", "after"):
        for hit in range(1, 100):
            folder, calls = tmp_path / f"{when}{hit}", iter(range(1, 1000))
            save(folder, 1, 2)

            def deadly(real: Any, calls: Any = calls, hit: int = hit, when: str = when) -> Any:
                def call(*arguments: Any, **named: Any) -> Any:
                    number = next(calls)
                    if number == hit and when == "before":
                        raise Killed
                    result = real(*arguments, **named)
                    if number == hit:
                        raise Killed
                    return result

                return call

            with monkeypatch.context() as patch:
                for name in TOUCHES:
                    patch.setattr(module, name, deadly(getattr(module, name)))
                patch.setattr(module.os, "replace", deadly(os.replace))
                try:
                    save(folder, 3)
                    alive = True
                except Killed:
                    alive, died = False, died + 1
            assert_content(folder, max(saved(folder)))
            assert max(saved(folder)) >= 2
            save(folder, 4)  # and the next save is not in the way of what was left
            assert_content(folder, 4)
            if alive:
                break
    assert died > 10


def test_a_full_disk_is_said_and_leaves_the_others_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 2)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    module = engine("checkpoint")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("save_file", "_write", "write_json", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            with pytest.raises(module.DiskFull, match=r"No space left.*need"):
                save(tmp_path, 3)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before, name
    assert_content(tmp_path, 2)


def test_a_flipped_bit_anywhere_in_the_manifest_is_noticed_or_harmless(tmp_path: Path) -> None:
    """It names the step, the facts, the hashes and the tied weights."""
    for step in (1, 2):
        make(tmp_path, step, data="abc").save(step)
    path = tmp_path / "step-00000002" / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place)
        into = make(tmp_path, 99, data="abc")
        found = into.load()
        assert found["step"] == (1 if into.skipped else 2), whole[max(place - 20, 0) : place + 20]
        assert into.parts["other"].value[0] == found["step"]
        assert torch.equal(into.parts["model"].head.weight, Tied(found["step"]).head.weight)
        path.write_bytes(whole)


def test_damaged_ones_cost_no_whole_one(tmp_path: Path) -> None:
    """A resume behind two of them goes on from an earlier step, and what it saves stays."""
    save(tmp_path, 2, 4, 6, keep=3)
    for step in (4, 6):
        with open(tmp_path / f"step-{step:08d}" / "state.pt", "ab") as file:
            file.write(b"x")
    save(tmp_path, 3)
    assert {2, 3} <= set(saved(tmp_path))
    assert make(tmp_path).load("last")["step"] == 3
    save(tmp_path, 4, 5, 6)
    assert saved(tmp_path) == [6, 5]


def test_what_a_killed_run_was_removing_goes(tmp_path: Path) -> None:
    (tmp_path / ".trash-step-00000001").mkdir()
    (tmp_path / ".trash-step-00000001" / "model.safetensors").write_bytes(b"x")
    save(tmp_path, 2)
    assert not list(tmp_path.glob(".trash-*"))


def age(folder: Path, seconds: float = 60) -> None:
    """As if it had been saved a while ago."""
    for path in folder.rglob("*"):
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_a_resume_reads_each_file_against_its_hash_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the facts first, for the phase; unless a file changed in between."""
    save(tmp_path, 1, 2)
    age(tmp_path)
    module, read = engine("checkpoint"), []
    real = module.sha256
    monkeypatch.setattr(module, "sha256", lambda path: read.append(path.name) or real(path))
    assert make(tmp_path).peek("last") == {}
    assert_content(tmp_path, 2)
    assert sorted(read) == ["model.safetensors", "state.pt"]
    flip(tmp_path / "step-00000002" / "model.safetensors", -1)
    assert_content(tmp_path, 1)


def test_the_first_rank_alone_reads_against_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 1, phase=1).save(1)
    age(tmp_path)
    module, found = engine("checkpoint"), make(tmp_path, phase=1).load()
    monkeypatch.setattr(module, "sha256", None)
    module._verified.clear()

    class Second(OneOf):
        """What rank 0 says is gathered in the first place."""

        said: Any = (found, [])

        def gather(self, value: Any) -> list[Any]:
            return [self.said, value]

    other = module.Checkpoint(tmp_path, Second(2, rank=1), model=Tied(9))
    assert other.load_model("last")["step"] == 1
    assert torch.equal(other.parts["model"].embedding.weight, Tied(1).embedding.weight)
    assert other.peek("last") == {"phase": 1}


def with_rules(folder: Path, **rules: int) -> Any:
    return engine("checkpoint").Checkpoint(
        folder, OneOf(), rules=rules, model=Tied(), other=Part(5)
    )


def test_another_rule_is_refused_by_a_resume_and_not_by_an_evaluation(tmp_path: Path) -> None:
    """The weights are good for use; samples that came in another order would be seen twice, or never."""
    with_rules(tmp_path, order=2).save(1)
    assert with_rules(tmp_path, order=2).load()["rules"] == {"order": 2}
    for rules in ({"order": 3}, {"order": 2, "fingerprint": 2}):
        other = with_rules(tmp_path, **rules)
        with pytest.raises(engine("errors").UserError, match=r"rule \d of the .*version") as caught:
            other.load()
        assert "\n" not in str(caught.value)
        assert other.load_model("last")["step"] == 1


def reseal(folder: Path, **changed: Any) -> None:
    """As another version would have written the manifest; None leaves something out."""
    path = folder / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changed}
    manifest = {
        name: value for name, value in manifest.items() if value is not None and name != "seal"
    }
    sealed = {name: value for name, value in manifest.items() if name != "format" or value > 1}
    path.write_text(json.dumps({**manifest, "seal": engine("checkpoint")._seal(sealed)}))


def test_the_format_before_rules_is_read_as_of_rule_one(tmp_path: Path) -> None:
    with_rules(tmp_path, order=1).save(1)
    reseal(tmp_path / "step-00000001", format=1, rules=None)
    assert with_rules(tmp_path, order=1).load()["step"] == 1
    with pytest.raises(
        engine("errors").UserError, match="rule 1 of the order, this version rule 2"
    ):
        with_rules(tmp_path, order=2).load()


def test_a_later_format_is_said_and_not_taken_for_damage(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    reseal(tmp_path / "step-00000002", format=3)
    with pytest.raises(engine("errors").UserError, match="format 3, this version reads 1 to 2"):
        make(tmp_path).load()
