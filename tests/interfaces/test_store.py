"""The store: whole or absent, the same for the same data, checked when it is read."""

import json
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import OneOf, engine
from importing import imported
from rendering import render


def stored(folder, value=1.0, **facts):
    store = engine("loading.store")
    with store.StoreWriter(folder, "tabular") as writer:
        writer.append("x", np.full((4, 1), value, np.float32))
        writer.facts = facts
        writer.splits = {"train": [0, 4]}
    return store.Store.open(folder)


def test_the_same_bytes_under_other_facts_are_other_data(tmp_path):
    """Else a run would go on with other targets, classes or characters."""
    first = stored(tmp_path / "a", targets=[0])
    again = stored(tmp_path / "b", targets=[0])
    assert again.fingerprint == first.fingerprint
    assert files_of(again.folder) == files_of(first.folder)
    assert stored(tmp_path / "c", targets=[1]).fingerprint != first.fingerprint
    assert stored(tmp_path / "d", 2.0, targets=[0]).fingerprint != first.fingerprint


def files_of(folder):
    unlike = ("verified.json", ".lock")  # they name a time and a process
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in unlike}


def test_a_new_store_removes_the_old_one_and_nothing_else(tmp_path):
    """Files of the user stay, whatever their names; what a killed `prepare` left goes."""
    (old,) = stored(tmp_path).files
    mine = {"store-sales.h5", "store-x.bin"}
    killed_before_its_manifest = "store-x-0123456789ab.bin"
    for name in (*mine, killed_before_its_manifest):
        (tmp_path / name).touch()
    (tmp_path / ".store.partial").mkdir()
    (tmp_path / ".store.partial/x.bin").touch()
    new = stored(tmp_path, 2.0)
    assert files_of(tmp_path).keys() == {*new.files, *mine, "manifest.json"}
    assert old not in new.files


def test_a_second_writer_is_refused_and_the_first_one_is_not_disturbed(tmp_path):
    stored(tmp_path)
    with engine("loading.store").StoreWriter(tmp_path, "tabular") as writer:
        writer.append("x", np.full((4, 1), 2, np.float32))
        second = os.fork()
        if second == 0:
            try:
                stored(tmp_path, 3.0)
            except engine("errors").UserError as error:
                is_known = "the data folder is in use by another process" in str(error)
                os._exit(9 if is_known else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 9
    assert engine("loading.store").Store.open(tmp_path).arrays["x"].rows()[0] == 2


@pytest.mark.parametrize("hit", [1, 2])
def test_an_interruption_leaves_the_old_data_and_no_other_file(hit, tmp_path, monkeypatch):
    """Before the array gets its name, and before the manifest gets its own."""
    stored(tmp_path)
    before = files_of(tmp_path)
    real = os.replace
    calls = iter((1, 2))

    def interrupted(source, target):
        if next(calls) == hit:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, 2.0)
    assert files_of(tmp_path) == before


def test_a_store_of_another_format_is_one_line(tmp_path):
    stored(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(
        engine("errors").UserError, match=r"format 99, this project reads .*run `pre"
    ):
        engine("loading.store").Store.open(tmp_path)


def test_a_sealed_manifest_reaches_no_other_files_and_rows(tmp_path):
    """Anybody can write one: files elsewhere, more rows than there are, a file that never ends."""
    module = engine("loading.store")
    folder = tmp_path / "data"
    name = next(iter(stored(folder).files))
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["files"][name]
    outside = tmp_path / "outside.bin"
    outside.write_bytes((folder / name).read_bytes())
    os.mkfifo(folder / "pipe.bin")
    (folder / "endless.bin").symlink_to("/dev/zero")
    changes = [
        {"file": place} for place in ("../outside.bin", str(outside), "../data/../outside.bin")
    ]
    changes += [{"shape": [10**14, 1]}, {"shape": [4, 10**14]}, {"offset": 1}, {"offset": 10**20}]
    changes += [{"file": "pipe.bin"}, {"file": "endless.bin"}, {"file": ".."}]
    for change in changes:
        other = json.loads(json.dumps(manifest))
        other["arrays"]["x"] |= change
        other["files"] = {other["arrays"]["x"]["file"]: entry}
        other["seal"] = module.digest(other | {"seal": ""})
        (folder / "manifest.json").write_text(json.dumps(other))
        with pytest.raises(engine("errors").UserError):
            module.Store.open(folder)


def test_a_sealed_manifest_with_values_of_other_types_is_one_line(tmp_path):
    module = engine("loading.store")
    name = next(iter(stored(tmp_path).files))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for path, value in (
        (("source",), "text"),
        (("facts",), "text"),
        (("facts",), [1]),
        (("splits",), [1, 2]),
        (("splits",), {"train": [0, "object"]}),
        (("splits",), {"train": [0, 1e299]}),
        (("splits",), {"train": None}),
        (("files",), "text"),
        (("files", name), "text"),
        (("files", name, "bytes"), None),
        (("arrays",), [1]),
        (("arrays", "x"), "text"),
        (("arrays", "x", "shape"), -1),
        (("arrays", "x", "shape"), [4, "V3"]),
        (("arrays", "x", "shape"), [-4, 1]),
        (("arrays", "x", "dtype"), 7.5),
        (("arrays", "x", "other"), 1),
    ):
        other = json.loads(json.dumps(manifest))
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        other["seal"] = module.digest(other | {"seal": ""})
        for file in ("manifest.json", "data.json"):
            (tmp_path / file).write_text(json.dumps(other))
        for read in (module.Store.open, module.Store.remembered):
            with pytest.raises(module.Damaged, match="the manifest is damaged"):
                read(tmp_path)


def flip_unseen(path):
    """Flip bits, with the size and the times of the file as they were."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_flipped_bit_is_found_at_each_opening_where_the_data_are_small(tmp_path, monkeypatch):
    module = engine("loading.store")
    path = stored(tmp_path).arrays["x"].path
    flip_unseen(path)
    with pytest.raises(engine("errors").UserError, match=r"damaged: .*store-x-.*: copy"):
        module.Store.open(tmp_path)
    monkeypatch.setattr(module, "SMALL_BYTES", 0)
    module.Store.open(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(engine("errors").UserError, match=r"was cut, .*store-x-.*: copy"):
        module.Store.open(tmp_path)


def test_a_run_remembers_its_data_without_their_rows(tmp_path):
    remembered = engine("loading.store").Store.remembered
    run = tmp_path / "run"
    run.mkdir()
    first = stored(tmp_path / "a", targets=[0])
    first.remember(run)
    known = remembered(run)
    assert (known.fingerprint, known.facts) == (first.fingerprint, {"targets": [0]})
    says = r"the rows of 'x' are not here: .*--data\.path"
    with pytest.raises(engine("errors").UserError, match=says):
        known.arrays["x"].rows()
    text = (run / "data.json").read_text()
    (run / "data.json").write_text(text.replace("float32", "float64"))
    with pytest.raises(engine("errors").UserError, match="the manifest is damaged"):
        remembered(run)


class Guard:
    """The hook in a run on the data in a folder."""

    def __init__(self, folder):
        project = render(extras=["guard"])
        self.failed: list[Exception] = []
        self.module = imported(project, "hooks.guard")
        store = imported(project, "engine.loading.store").Store.open(folder)
        run_project = SimpleNamespace(store=store, distributed=OneOf())
        self.run = SimpleNamespace(project=run_project)

    def watch(self):
        hook = self.module.Hook()
        hook.start(self.run)
        for thread in threading.enumerate():
            if thread.name == "guard":
                thread.join()
        try:
            hook.before_record(self.run, {})
        except self.module.UserError as error:
            self.failed.append(error)
        return self.failed


def test_the_guard_ends_a_run_on_damaged_data(tmp_path):
    path = stored(tmp_path).arrays["x"].path
    guard = Guard(tmp_path)
    assert not guard.watch()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    guard.run.project.distributed.is_main = False
    assert not guard.watch()
    guard.run.project.distributed.is_main = True
    assert "store-x-" in str(guard.watch()[0])


def test_the_guard_compares_an_unchanged_file_again_after_30_days(tmp_path, monkeypatch):
    path = stored(tmp_path).arrays["x"].path
    guard = Guard(tmp_path)
    guard.watch()
    flip_unseen(path)
    assert not guard.watch(), "it was compared, and seems not to have changed"
    days_later = time.time() + 31 * 24 * 3600
    monkeypatch.setattr(guard.module.time, "time", lambda: days_later)
    assert "damaged" in str(guard.watch()[0])


def test_the_guard_names_a_file_that_the_disk_cannot_read(tmp_path):
    store = stored(tmp_path)
    guard = Guard(tmp_path)
    store.arrays["x"].path.unlink()
    assert "the disk cannot read (No such file or directory): " in str(guard.watch()[0])
