"""The store: whole or absent, the same for the same data, read again in every later version."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import subprocess
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import engine
from importing import imported
from rendering import render, template


def stored(folder: Path, value: float = 1.0, **facts: Any) -> Any:
    store = engine("store")
    with store.StoreWriter(folder, "tabular") as writer:
        writer.create("x", (4, 1), "float32")[...] = value
        writer.facts, writer.splits = facts, {"train": [0, 4]}
    return store.Store.open(folder)


def test_the_same_bytes_under_other_facts_are_other_data(tmp_path: Path) -> None:
    """Else a run would go on with other targets, classes or characters."""
    first = stored(tmp_path / "a", targets=[0]).fingerprint
    assert stored(tmp_path / "b", targets=[0]).fingerprint == first
    assert stored(tmp_path / "c", targets=[1]).fingerprint != first
    assert stored(tmp_path / "d", 2.0, targets=[0]).fingerprint != first


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "verified.json"
    }


def test_the_same_data_are_the_same_files(tmp_path: Path) -> None:
    one, other = (stored(tmp_path / name) for name in ("a", "b"))
    assert files_of(one.folder) == files_of(other.folder)
    assert np.load(one.arrays["x"].path).tolist() == [[1.0]] * 4


def test_a_new_store_removes_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    """Files of the user stay, whatever their names; what a killed `prepare` left goes."""
    old = next(iter(stored(tmp_path).files))
    (tmp_path / "store-x-0123456789ab.npy").touch()  # renamed, but killed before the manifest
    (tmp_path / "store-0123456789ab.h5").touch()  # of a store of format 1
    mine, finished = (
        [tmp_path / name for name in ("store-sales.h5", "store-x.npy")],
        subprocess.Popen("true"),
    )
    finished.wait()
    stale, live = (tmp_path / f".store-{pid}.partial" for pid in (finished.pid, os.getppid()))
    for path in mine:
        path.touch()
    for path in (stale, live):
        path.mkdir()
        (path / "x.npy").touch()
    new = stored(tmp_path, 2.0)
    kept = {*new.files, *(path.name for path in mine), live.name}
    assert kept == {path.name for path in tmp_path.iterdir()} - {"manifest.json", "verified.json"}
    assert old not in kept


def test_a_full_disk_leaves_the_store_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path)
    before = files_of(tmp_path)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        engine("errors").UserError, match=r"could not be written .*No space left.*: free"
    ):
        stored(tmp_path, 2.0)
    assert files_of(tmp_path) == before


def test_a_store_of_format_1_is_read_and_known_by_both_rules_of_its_time(tmp_path: Path) -> None:
    values, facts, splits = (
        np.arange(6, dtype=np.float32).reshape(3, 2),
        {"b": 1, "a": 2},
        {"train": [0, 3]},
    )
    with h5py.File(tmp_path / "store-0123456789ab.h5", "w") as file:
        offset = file.create_dataset("x", data=values).id.get_offset()
        file["x"][...] = values
    content = (tmp_path / "store-0123456789ab.h5").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    entry = {"bytes": len(content), "sha256": digest, "crc32": [zlib.crc32(content)]}
    array = {"file": "store-0123456789ab.h5", "offset": offset, "shape": [3, 2], "dtype": "float32"}
    manifest = {
        **{"format": 1, "workload": "fake", "source": {}, "facts": facts, "splits": splits},
        **{"arrays": {"x": array}, "files": {array["file"]: entry}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    store = engine("store").Store.open(tmp_path)
    np.testing.assert_array_equal(store.arrays["x"].rows(), values)
    first = hashlib.sha256(json.dumps([[digest], splits]).encode()).hexdigest()[:16]
    second = hashlib.sha256(
        json.dumps([[digest], splits, facts], sort_keys=True).encode()
    ).hexdigest()[:16]
    assert store.fingerprint == second
    assert store.fingerprints == [second, first]


@pytest.mark.parametrize("change", [{"format": 99}, {"rule": 99}, {"format": "2"}])
def test_a_store_of_tomorrow_is_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    stored(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    says = "format 99|rule 99|unreadable manifest"
    with pytest.raises(engine("errors").UserError, match=says):
        engine("store").Store.open(tmp_path)


def test_a_flipped_bit_is_found_at_opening_where_the_data_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, store = engine("store"), stored(tmp_path)
    path = store.arrays["x"].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    module.Store.open(
        tmp_path
    )  # was compared when it was new, and has not changed since: not once more
    os.utime(path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "SMALL_BYTES", 0)
        module.Store.open(tmp_path)
    with pytest.raises(
        engine("errors").UserError, match=r"damaged: .*store-x-.*, block 1 of 32 MB: copy"
    ):
        module.Store.open(tmp_path)
    with pytest.raises(engine("errors").UserError, match="damaged"):
        module.verify(store, again=True)


def test_a_run_remembers_its_data_without_their_rows(tmp_path: Path) -> None:
    run, module = tmp_path / "run", engine("store")
    run.mkdir()
    assert module.Store.remembered(run) is None
    first, second = stored(tmp_path / "a", targets=[0]), stored(tmp_path / "b", targets=[1])
    for store in (first, second, second):
        store.remember(run)
    assert module.Store.remembered(run).fingerprint == second.fingerprint
    known = module.Store.remembered(run, first.fingerprint)
    assert known.facts == {"targets": [0]}
    assert known.arrays["x"].dtype == "float32"
    with pytest.raises(
        engine("errors").UserError, match=r"the rows of 'x' are not here: .*--data\.path"
    ):
        known.arrays["x"].rows()
    assert module.Store.remembered(run, "other") is None


def guard() -> Any:
    """A fresh `Hook` of the extra `guard`, beside the engine of the default project."""
    hooks = imported(render(), "hooks")
    part = template() / "template/parts/extras/guard.py"
    spec = importlib.util.spec_from_file_location(f"{hooks.__name__}.guard", part)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Hook()


def test_the_guard_ends_a_run_on_damaged_data(tmp_path: Path) -> None:
    store = stored(tmp_path)
    path = store.arrays["x"].path
    failed: list[Exception] = []
    project = SimpleNamespace(store=store, distributed=SimpleNamespace(is_main=True))
    run = SimpleNamespace(project=project, fail=failed.append)

    def watch() -> None:
        hook = guard()
        hook.start(run)
        if hook._thread is not None:  # on the main rank alone
            hook._thread.join()
        hook.after_step(run)
        hook.close(run)

    watch()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    project.distributed.is_main = False
    watch()
    assert not failed
    project.distributed.is_main = True
    watch()
    assert "store-x-" in str(failed[0])
