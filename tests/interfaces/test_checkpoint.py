"""Checkpoints are whole or absent: round trips, what stays, and every way to die or decay in
between."""

import errno
import hashlib
import io
import json
import os
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import OneOf, engine
from running import flip_bit, step_of
from torch import nn


class Tied(nn.Module):
    """Weights of every awkward kind: shared, transposed, half, empty, a scalar, whole numbers."""

    def __init__(self, seed=0):
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

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def make(folder, seed=0, keep=2, **must_match):
    """A Checkpoint of a small run whose content `seed` decides."""
    parts = {"model": Tied(seed), "other": Part([seed, "x", None])}
    return engine("training.checkpoint").Checkpoint(folder, OneOf(), keep, must_match, **parts)


def saved(folder):
    """Steps of the checkpoints, newest first."""
    return sorted((step_of(path) for path in folder.glob("step-*.pt")), reverse=True)


def file_of(folder, step):
    (path,) = folder.glob(f"step-{step:08d}-*.pt")
    return path


def save(folder, *steps, keep=2):
    """Checkpoints of these steps, each with its own content."""
    for step in steps:
        make(folder, step, keep).save(step)


def best_step(folder):
    return make(folder).find("best")["step"]


def assert_content(folder, step, **must_match):
    """The newest intact checkpoint is that of `step`, whole, in all its parts."""
    into = make(folder, seed=99, **must_match)
    assert into.find("last")["step"] == step
    assert into.load()
    assert into.parts["other"].value == [step, "x", None]
    loaded = into.parts["model"].state_dict()
    for name, tensor in Tied(step).state_dict().items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name
    return into


def test_round_trip_with_tied_weights(tmp_path):
    assert not make(tmp_path / "absent").load()
    save(tmp_path, 7)
    model = assert_content(tmp_path, 7).parts["model"]
    assert model.head.weight is model.embedding.weight
    stored = torch.load(file_of(tmp_path, 7), weights_only=True)["model"]
    assert stored["head.weight"].data_ptr() == stored["embedding.weight"].data_ptr()


def test_a_save_needs_no_memory_for_the_content(tmp_path):
    part = Part(torch.ones(25_000_000))
    checkpoint = engine("training.checkpoint").Checkpoint(tmp_path, OneOf(), model=part)
    tracemalloc.start()
    checkpoint.save(1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_what_was_loaded_survives_the_file(tmp_path):
    """The file is mapped while it is read; what parts keep is copied."""
    kept = torch.arange(5.0)
    parts = {"model": Tied(), "other": Part(kept)}
    checkpoint = engine("training.checkpoint").Checkpoint(tmp_path, OneOf(), **parts)
    checkpoint.save(1)
    parts["other"].value = None
    checkpoint.load()
    with open(file_of(tmp_path, 1), "r+b") as file:
        file.write(bytes(file_of(tmp_path, 1).stat().st_size))
    assert torch.equal(parts["other"].value, kept)
    assert torch.equal(parts["model"].turned, Tied().turned)


@pytest.mark.parametrize(("keep", "wanted"), [(2, [5, 4]), (3, [5, 4, 3])])
def test_the_newest_stay(keep, wanted, tmp_path):
    (tmp_path / ".saving").write_bytes(b"x")  # of a run that was killed while it saved
    save(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert saved(tmp_path) == wanted
    assert len(list(tmp_path.iterdir())) == len(wanted)


def test_milestones_stay_too(tmp_path):
    for step in (3, 4, 5, 6, 7, 8, 9, 10):
        checkpoint = make(tmp_path, step)
        checkpoint.keep_every = 4
        checkpoint.save(step)
    assert saved(tmp_path) == [10, 9, 8, 4]


def test_what_a_kill_left_is_in_no_way_and_a_link_is_not_followed(tmp_path):
    """A folder of shards, links to a file, to a folder and to nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    folder = tmp_path / "checkpoints"
    saving = folder / ".saving"
    (saving / "deep").mkdir(parents=True)
    (saving / "state.pt").touch()
    for step, target in enumerate((None, outside, outside / "file", outside / "new"), start=1):
        if target:
            saving.symlink_to(target)
        save(folder, step)
        assert_content(folder, step)
        assert not saving.is_symlink()
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "mine"


def test_the_best_one_stays_until_another_is_better(tmp_path):
    made = make(tmp_path)
    made.save(1, is_best=True)
    for step in (2, 3, 4):
        made.save(step)
    resumed = make(tmp_path)
    resumed.load()
    resumed.save(5)
    assert saved(tmp_path) == [5, 4, 1]
    assert best_step(tmp_path) == 1
    assert resumed.find("last")["step"] == 5
    resumed.save(5, is_best=True)  # the same step, evaluated after it was saved
    assert saved(tmp_path) == [5, 4]
    for step in (6, 7):
        resumed.save(step)
    assert saved(tmp_path) == [7, 6, 5]
    flip_bit(file_of(tmp_path, 5), -1)
    assert best_step(tmp_path) == 7, "a damaged best one gives way to the newest"


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["fsync", "replace", 0.0, 0.5, 0.999])
def test_a_save_that_fails_is_said_and_leaves_the_others_whole(fails, tmp_path, monkeypatch):
    """A number: a file may have this fraction of the bytes; the last ones are written at its end."""
    make(tmp_path, 1).save(1, is_best=True)
    save(tmp_path, 2)
    before = sorted(tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if isinstance(fails, str):
        monkeypatch.setattr(os, fails, full)
    else:
        size = int(file_of(tmp_path, 2).stat().st_size * fails)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(engine("training.checkpoint").NotWritten, match="free some space, or"):
            make(tmp_path, 3).save(3, is_best=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    assert sorted(tmp_path.iterdir()) == before
    assert_content(tmp_path, 2)


DAMAGES = [0.0, 0.1, 0.3, 0.5, 0.7, 0.99, "cut", "empty", "longer"]


def damage(path, how):
    size = path.stat().st_size
    if isinstance(how, float):
        flip_bit(path, int(size * how))
    elif how == "longer":
        os.truncate(path, size + 1)
    else:
        os.truncate(path, size // 2 if how == "cut" else 0)


@pytest.mark.parametrize("how", DAMAGES)
def test_the_newest_intact_one_wins_and_others_are_named(how, tmp_path, monkeypatch):
    for step in (1, 2):
        make(tmp_path, step, rule=0).save(step)
    path = file_of(tmp_path, 2)
    damage(path, how)
    notes: list[str] = []
    monkeypatch.setattr(engine("training.checkpoint"), "note", notes.append)
    assert make(tmp_path).find("best")["must_match"] == {"rule": 0}
    assert notes == [f"skipped a damaged checkpoint: {path.name}"]
    assert path.exists(), "only the process that has the lock renames it"
    assert_content(tmp_path, 1, rule=0)
    assert path.with_suffix(".damaged").exists()
    assert not path.exists()


def unmapped(*_):
    """What torch says."""
    raise RuntimeError("unable to open file <x.pt> in read-only mode: Too many open files (24)")


class Unreadable(io.RawIOBase):
    """A file that opens, and cannot be read."""

    def readable(self):
        return True

    def readinto(self, _):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_error_of_reading_is_no_damage(tmp_path, monkeypatch):
    """It may pass. At listing, opening, hashing or loading: one line, and nothing is renamed."""
    save(tmp_path, 1, 2)
    before = sorted(tmp_path.iterdir())
    module = engine("training.checkpoint")
    files = engine("files")

    def failing(number):
        def call(path, *_, **__):
            raise OSError(number, os.strerror(number), str(path))

        return call

    numbers = (errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE)
    faults = [(os, "listdir", failing(number)) for number in numbers]
    faults += [(files, "open", failing(number)) for number in numbers]
    faults += [(torch, "load", failing(number)) for number in numbers]
    faults += [(files, "open", lambda *_: io.BufferedReader(Unreadable()))]
    faults += [(torch.UntypedStorage, "from_file", unmapped)]
    for owner, name, fault in faults:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault, raising=False)
            for call in (make(tmp_path).load, lambda: best_step(tmp_path)):
                with pytest.raises((engine("errors").UserError, OSError)) as caught:
                    call()
                assert owner is os or "cannot use the checkpoint" in str(caught.value)
                assert owner is os or ": try again" in str(caught.value)
        assert sorted(tmp_path.iterdir()) == before
    assert best_step(tmp_path) == 2
    assert_content(tmp_path, 2)
    (tmp_path / "step-00000003-0123456789abcdef.pt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(engine("errors").UserError, match="No such file"):
        make(tmp_path).load()
    assert module.Checkpoint(tmp_path / "absent", OneOf()).candidates("last") == []


def wrong_types():
    """Checkpoints of the next format's shape, with a value of another type in each place."""
    wrong: list[Any] = [[1], "text", {"step": 3}, {"model": {}}]
    for name in ("format", "must_match", "model", "other"):
        wrong += [{name: value} for value in ("text", [1], 7, None, torch.ones(2), {1: {2: "x"}})]
    wrong += [
        {"other": {}},
        {"model": {"turned": "x"}},
        {"model": {"turned": torch.eye(2).to_sparse()}},
    ]
    return wrong


def test_a_well_formed_checkpoint_of_wrong_types_is_one_line(tmp_path):
    """And leaves nothing but a line: no traceback of the part that meets the value."""
    save(tmp_path / "good", 1)
    good = torch.load(file_of(tmp_path / "good", 1), weights_only=True)
    for number, wrong in enumerate(wrong_types()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        is_part = isinstance(wrong, dict) and wrong.keys() <= good.keys() and len(wrong) == 1
        torch.save(good | wrong if is_part else wrong, folder / "new")
        digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()[:16]
        (folder / "new").rename(folder / f"step-00000001-{digest}.pt")
        try:
            loaded = make(folder, rule=0).load()
        except engine("errors").UserError:
            continue
        raise AssertionError((wrong, loaded))
    for wrong in ("many", None, [1], {}):
        with pytest.raises(TypeError):
            engine("training.progress").Progress().load_state_dict({"step": wrong})


def test_a_run_of_another_version_names_its_commit(tmp_path, monkeypatch):
    """Another format, another model, other values that must match, data of another format."""
    run = tmp_path / "run"
    save(run / "checkpoints", 1)
    (run / "env.json").write_text('{"git": "1a2b3c4+changes"}')
    names = "go back to its commit 1a2b3c4[+]changes"
    module = engine("training.checkpoint")
    error = engine("errors").UserError
    with pytest.raises(error, match=f"rule was None .* is 0 now: .*{names}"):
        make(run / "checkpoints", rule=0).load()
    with pytest.raises(error, match=f"cannot use .*Missing key.*{names}"):
        module.Checkpoint(run / "checkpoints", OneOf(), model=nn.Linear(2, 2)).load()
    with pytest.raises(error, match=f"cannot use .*KeyError: 'new'.*{names}"):
        module.Checkpoint(run / "checkpoints", OneOf(), new=Part(1), model=Tied()).load()
    monkeypatch.setattr(module, "FORMAT", 99)
    with pytest.raises(error, match=f"has format 5, this version reads 99: .*{names}"):
        make(run / "checkpoints").load()
    store = engine("loading.store").Store
    for old in ({"format": 4, "splits": {}}, {"format": 4, "source": 7}):
        (run / "data.json").write_text(json.dumps(old))
        for read in (store.was_synthetic, store.remembered):
            with pytest.raises(error, match=f"the data are of format 4, .* reads 5: .*{names}"):
                read(run)
    (run / "env.json").write_text("[]")
    with pytest.raises(error, match=r"go back to its commit \(see env.json\)"):
        store.remembered(run)
    (run / "data.json").write_text('{"source": {"kind": "table"}}')
    assert store.was_synthetic(run), "a damaged record counts as missing"


def test_what_differs_is_refused_before_anything_is_loaded(tmp_path):
    """An evaluation compares nothing: the weights are good for use."""
    make(tmp_path, 1, data="abc", rule=0).save(1)
    into = make(tmp_path, 5, data="xyz", rule=0)
    with pytest.raises(engine("errors").UserError, match=r"data was abc .* is xyz now"):
        into.load()
    assert into.parts["other"].value == [5, "x", None]
    assert torch.equal(into.parts["model"].embedding.weight, Tied(5).embedding.weight)
    into.restore(into.find("last"), ["model"])
    assert torch.equal(into.parts["model"].embedding.weight, Tied(1).embedding.weight)


class Killed(BaseException):
    """The process ends here."""


# Every call by which saving touches the disk.
TOUCHES = ("open", "fsync", "replace", "unlink", "mkdir")


def kill_at(hit, when, patch):
    """Ends the process before or after the call number `hit`."""
    calls = iter(range(1, 1000))

    def deadly(real):
        def call(*arguments, **named):
            number = next(calls)
            if number == hit and when == "before":
                raise Killed
            result = real(*arguments, **named)
            if number == hit:
                raise Killed
            return result

        return call

    writing = engine("training.checkpoint").HashingFile
    patch.setattr(writing, "write", deadly(writing.write))
    for name in TOUCHES:
        patch.setattr(os, name, deadly(getattr(os, name)))


def test_dying_anywhere_in_a_save_costs_that_checkpoint_at_most(tmp_path, monkeypatch):
    """Before and after each call; whoever comes next finds the old one or the new one, whole."""
    deaths = 0
    for when in ("before", "after"):
        for hit in range(1, 100):
            folder = tmp_path / f"{when}{hit}"
            save(folder, 1, 2)
            make(folder, 2).save(2, is_best=True)
            with monkeypatch.context() as patch:
                kill_at(hit, when, patch)
                try:
                    make(folder, 3).save(3, is_best=True)
                    has_died = False
                except (Killed, RuntimeError):  # torch reports what ends its writing
                    has_died = True
            deaths += has_died
            assert_content(folder, max(saved(folder)))
            assert max(saved(folder)) >= 2
            assert best_step(folder) >= 2
            save(folder, 4)  # what was left is not in the way
            assert_content(folder, 4)
            assert len(list(folder.iterdir())) == len(saved(folder))
            if not has_died:
                break
    assert deaths > 10


def test_damaged_ones_cost_no_whole_one(tmp_path):
    """A resume behind two of them goes on from an earlier step, and what it saves stays."""
    save(tmp_path, 2, 4, 6, keep=3)
    for step in (4, 6):
        damage(file_of(tmp_path, step), "longer")
    resumed = make(tmp_path, 3)
    assert resumed.find("last")["step"] == 2
    assert resumed.load()
    resumed.save(3)
    assert saved(tmp_path) == [3, 2]
    assert make(tmp_path).find("last")["step"] == 3
    save(tmp_path, 4, 5, 6)
    assert saved(tmp_path) == [6, 5]


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_the_newer_one(tmp_path, monkeypatch):
    """A training that runs has saved a better one, and removes it."""
    checkpoint = engine("training.checkpoint").Checkpoint
    real = checkpoint.is_intact
    made = make(tmp_path)
    made.save(1, is_best=True)

    def removed(self, path):
        monkeypatch.undo()
        make(tmp_path, 2).save(2, is_best=True)
        path.unlink()
        return real(self, path)

    monkeypatch.setattr(checkpoint, "is_intact", removed)
    assert best_step(tmp_path) == 2


class Malicious:
    """Runs code where it is unpickled without care."""

    def __reduce__(self):
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize("content", [{"other": Malicious()}, b"of another kind"], ids=type)
def test_a_file_of_another_kind_under_a_correct_hash_is_one_line(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path("file").write_bytes(content)
    else:
        torch.save(content, "file")
    digest = hashlib.sha256(Path("file").read_bytes()).hexdigest()[:16]
    Path("file").rename(f"step-00000001-{digest}.pt")
    with pytest.raises(engine("errors").UserError, match=r"step-00000001.*: it may run code"):
        make(tmp_path).load()
    assert not (tmp_path / "was-run").exists()
